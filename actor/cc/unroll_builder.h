// Writes the rows of one life of an actor into unrolls. The rows follow actor/unroll.py.
#ifndef SCALABLE_AGENTS_ACTOR_CC_UNROLL_BUILDER_H_
#define SCALABLE_AGENTS_ACTOR_CC_UNROLL_BUILDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/cc/status.h"

namespace scalable_agents {

// Where one field of a row lies in a worker's slot.
struct EnvironmentField {
  int64_t offset;
  int64_t bytes;
};

// Memory that one component of an unroll is written to; `owner` keeps it alive. Without one there was no memory.
struct Buffer {
  char* data = nullptr;
  std::shared_ptr<void> owner;
};

// The components of an unroll, in the order of the fields of actor/unroll.py:
// level id, actor id, life id, index, agent state …, environment output …, agent output …, parameter version.
using Unroll = std::vector<Buffer>;

// What the unrolls of a pool have in common.
struct UnrollLayout {
  static constexpr int kFirstState = 4;  // The component after level id, actor id, life id and index.

  int unroll_length = 0;                             // Agent steps.
  std::vector<EnvironmentField> environment_fields;  // In the order of EnvironmentOutput: reward, discount, done, …
  std::vector<int64_t> agent_output_bytes;           // Per row; the first is the int32 action.
  std::vector<int64_t> agent_state_bytes;

  int first_environment() const { return kFirstState + agent_state_bytes.size(); }
  int first_output() const { return first_environment() + environment_fields.size(); }
  int version() const { return first_output() + agent_output_bytes.size(); }
};

// What the policy last decided for an actor.
struct Decision {
  // Zeros, as before the first decision. Throws std::bad_alloc or std::length_error where there is no memory.
  explicit Decision(const UnrollLayout& layout);

  std::vector<char> output;  // Field after field; begins with the int32 action.
  std::vector<char> state;   // The recurrent state that the next inference starts from, field after field.
  int64_t version = 0;       // Of the parameters that computed `output`.
};

// The numbers that every unroll of a life carries.
struct LifeTag {
  int32_t level_id = 0;
  int32_t actor_id = 0;
  int64_t life_id = 0;
};

class UnrollBuilder {
 public:
  // Memory for the unroll's component number `component`.
  using Allocate = std::function<Buffer(int component)>;

  // Both arguments have to outlive this.
  UnrollBuilder(const UnrollLayout* layout, const Allocate* allocate) : layout_(*layout), allocate_(*allocate) {}

  // Appends a row: the environment's answer, from its slot, and the decision that led to it. The first row of an
  // unroll takes the recurrent state along. Not to be called while the unroll is full.
  // kResourceExhausted: there is no memory for another unroll.
  Status Append(const LifeTag& tag, const char* slot, const Decision& decision);

  // Whether the unroll has all of its rows.
  bool full() const { return row_ == layout_.unroll_length + 1; }

  // Takes out the full unroll and starts the next one, whose row 0 repeats the last row. `decision` is that row's.
  // kResourceExhausted: there is no memory for the next one.
  Status TakeFull(const LifeTag& tag, const Decision& decision, Unroll* full);

  // Drops the rows that have been appended since the last full unroll.
  void Clear();

 private:
  Status Start(const LifeTag& tag, const Decision& decision);

  const UnrollLayout& layout_;
  const Allocate& allocate_;
  Unroll unroll_;          // Empty before the first row.
  int row_ = 0;            // Rows written to it.
  int64_t num_taken_ = 0;  // The index of the unroll: full ones of this life before it.
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_ACTOR_CC_UNROLL_BUILDER_H_
