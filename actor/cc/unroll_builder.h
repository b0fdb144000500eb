// Builds the unrolls of one stream, row by row. The rows follow actor/unroll.py.
#ifndef SCALABLE_AGENTS_ACTOR_CC_UNROLL_BUILDER_H_
#define SCALABLE_AGENTS_ACTOR_CC_UNROLL_BUILDER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/cc/status.h"

namespace scalable_agents {

// One field of a row: its place in a worker's slot, and its size in an unroll.
struct EnvironmentField {
  int64_t offset;
  int64_t bytes;           // In an unroll.
  int stack = 1;           // k > 1: the slot has the newest k frames, stacked along the last axis, the newest one last.
                           // The unroll has the newest frame of each row, and the k-1 frames before row 0.
  int64_t unit_bytes = 1;  // Along the last axis of one frame. Used for stacks only.
};

// The memory of one component of an unroll. `owner` keeps it alive. It is null if the allocation failed.
struct Buffer {
  char* data = nullptr;
  std::shared_ptr<void> owner;
};

// Copies frame number `index` of a field's stack, counted from the oldest one, out of a slot. Without a stack, copies
// the field.
void CopyFrame(const EnvironmentField& field, const char* slot, int index, char* to);

// The components of an unroll, in the order of the fields of actor/unroll.py:
// level id, actor id, stream id, index, agent state …, earlier frames …, environment output …, agent output …,
// parameter version.
using Unroll = std::vector<Buffer>;

// The layout of all unrolls of a pool.
struct UnrollLayout {
  static constexpr int kFirstState = 4;  // The component after level id, actor id, stream id and index.

  int unroll_length = 0;                             // Agent steps.
  std::vector<EnvironmentField> environment_fields;  // In the order of EnvironmentOutput: reward, discount, done, …
  std::vector<int64_t> agent_output_bytes;           // Bytes per row. The first field is the int32 action.
  std::vector<int64_t> agent_state_bytes;

  int first_earlier() const { return kFirstState + agent_state_bytes.size(); }
  int first_environment() const { return first_earlier() + num_stacks(); }
  int first_output() const { return first_environment() + environment_fields.size(); }
  int version() const { return first_output() + agent_output_bytes.size(); }
  int num_stacks() const {
    return std::count_if(environment_fields.begin(), environment_fields.end(),
                         [](const EnvironmentField& field) { return field.stack > 1; });
  }
};

// The policy's last decision for an actor.
struct Decision {
  // Makes zeros, the value before the first decision. Throws std::bad_alloc or std::length_error without memory.
  explicit Decision(const UnrollLayout& layout);

  std::vector<char> output;  // The fields one after the other; the int32 action is first.
  std::vector<char> state;   // The recurrent state before the next inference, its fields one after the other.
  int64_t version = 0;       // The version of the parameters that computed `output`.
};

// The ids that every unroll of a stream contains.
struct StreamTag {
  int32_t level_id = 0;
  int32_t actor_id = 0;
  int64_t stream_id = 0;
};

class UnrollBuilder {
 public:
  // Allocates the memory of an unroll's component number `component`.
  using Allocate = std::function<Buffer(int component)>;

  // Both arguments must outlive this object.
  UnrollBuilder(const UnrollLayout* layout, const Allocate* allocate) : layout_(*layout), allocate_(*allocate) {}

  // Appends a row: the environment's output, from its slot, and the decision that led to it. The first row of an unroll
  // also stores the recurrent state. Do not call this while the unroll is full.
  // kResourceExhausted: there is no memory for another unroll.
  Status Append(const StreamTag& tag, const char* slot, const Decision& decision);

  // Whether the unroll has all of its rows.
  bool full() const { return row_ == layout_.unroll_length + 1; }

  // Takes the full unroll and starts the next one, whose row 0 repeats the last row: `slot` and `decision` are those of
  // that row. kResourceExhausted: there is no memory for the next one.
  Status TakeFull(const StreamTag& tag, const char* slot, const Decision& decision, Unroll* full);

  // Drops the rows since the last full unroll.
  void Clear();

 private:
  Status Start(const StreamTag& tag, const char* slot, const Decision& decision);

  const UnrollLayout& layout_;
  const Allocate& allocate_;
  Unroll unroll_;          // Empty before the first row.
  int row_ = 0;            // Number of its rows so far.
  int64_t num_taken_ = 0;  // The index of the unroll in this stream: the number of full ones before it.
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_ACTOR_CC_UNROLL_BUILDER_H_
