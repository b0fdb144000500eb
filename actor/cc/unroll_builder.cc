#include "actor/cc/unroll_builder.h"

#include <string.h>

#include <string>
#include <utility>

namespace scalable_agents {
namespace {

// Returns the sum, or the largest size_t if it overflows. No allocation of that size can succeed.
size_t Sum(const std::vector<int64_t>& bytes) {
  size_t sum = 0;
  for (int64_t b : bytes) {
    if (__builtin_add_overflow(sum, static_cast<size_t>(b), &sum)) return ~size_t{0};
  }
  return sum;
}

}  // namespace

void CopyFrame(const EnvironmentField& field, const char* slot, int index, char* to) {
  if (field.stack == 1) {
    memcpy(to, slot + field.offset, field.bytes);
    return;
  }
  const int64_t bytes = field.bytes, unit = field.unit_bytes, stride = field.stack * unit;
  const char* frame = slot + field.offset + index * unit;
  if (unit == 1 && field.stack == 4) {  // Atari.
    // The compiler makes wide instructions of a loop with constant strides, and a bound that no byte can change.
    for (int64_t i = 0; i < bytes; ++i) to[i] = frame[4 * i];
    return;
  }
  for (int64_t i = 0; i < bytes; i += unit, frame += stride) memcpy(to + i, frame, unit);
}

Decision::Decision(const UnrollLayout& layout)
    : output(Sum(layout.agent_output_bytes)), state(Sum(layout.agent_state_bytes)) {}

Status UnrollBuilder::Append(const StreamTag& tag, const char* slot, const Decision& decision) {
  if (unroll_.empty()) {
    const Status status = Start(tag, slot, decision);
    if (!status.ok()) return status;
  }
  const int row = row_++;
  int component = layout_.first_environment();
  for (const EnvironmentField& field : layout_.environment_fields) {
    CopyFrame(field, slot, field.stack - 1, unroll_[component++].data + row * field.bytes);
  }
  const char* output = decision.output.data();
  for (int64_t bytes : layout_.agent_output_bytes) {
    memcpy(unroll_[component++].data + row * bytes, output, bytes);
    output += bytes;
  }
  memcpy(unroll_[component].data + row * sizeof(int64_t), &decision.version, sizeof(int64_t));
  return Status();
}

Status UnrollBuilder::TakeFull(const StreamTag& tag, const char* slot, const Decision& decision, Unroll* full) {
  *full = std::move(unroll_);
  Clear();
  ++num_taken_;
  return Append(tag, slot, decision);
}

void UnrollBuilder::Clear() {
  unroll_.clear();
  row_ = 0;
}

Status UnrollBuilder::Start(const StreamTag& tag, const char* slot, const Decision& decision) {
  for (int component = 0; component <= layout_.version(); ++component) {
    const Status status = WithMemory([&] {
      unroll_.push_back(allocate_(component));
      return unroll_.back().owner ? Status() : ResourceExhausted("");
    });
    if (status.ok()) continue;
    Clear();
    return ResourceExhausted("there is not enough memory for another unroll of " +
                             std::to_string(layout_.unroll_length) + " steps");
  }
  memcpy(unroll_[0].data, &tag.level_id, sizeof(int32_t));
  memcpy(unroll_[1].data, &tag.actor_id, sizeof(int32_t));
  memcpy(unroll_[2].data, &tag.stream_id, sizeof(int64_t));
  memcpy(unroll_[3].data, &num_taken_, sizeof(int64_t));
  const char* state = decision.state.data();
  for (size_t field = 0; field < layout_.agent_state_bytes.size(); ++field) {
    memcpy(unroll_[UnrollLayout::kFirstState + field].data, state, layout_.agent_state_bytes[field]);
    state += layout_.agent_state_bytes[field];
  }
  int component = layout_.first_earlier();
  for (const EnvironmentField& field : layout_.environment_fields) {
    if (field.stack == 1) continue;
    char* to = unroll_[component++].data;
    for (int i = 0; i < field.stack - 1; ++i, to += field.bytes) CopyFrame(field, slot, i, to);
  }
  return Status();
}

}  // namespace scalable_agents
