// The TensorFlow resource of the ops of the replay.
#ifndef SCALABLE_AGENTS_REPLAY_CC_REPLAY_RESOURCE_H_
#define SCALABLE_AGENTS_REPLAY_CC_REPLAY_RESOURCE_H_

#include <string>
#include <utility>
#include <vector>

#include "ops/cc/field.h"
#include "replay/cc/replay_op_helpers.h"
#include "replay/cc/sequence_replay.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace scalable_agents {

// A replay, and the types and shapes of what it holds.
class ReplayResource : public tensorflow::ResourceBase {
 public:
  ReplayResource(const ReplayOptions& options, std::vector<Field> rows, std::vector<Field> states)
      : rows(std::move(rows)), states(std::move(states)), replay(options) {}
  std::string DebugString() const override { return "SequenceReplay"; }

  // The shape [n0, n1, ...] of many rows of a component when they are read.
  tensorflow::TensorShape ReadShapeOf(int component, int64_t n0, int64_t n1) const {
    return ReadShape(rows[component], replay.options().components[component], n0, n1);
  }

  const std::vector<Field> rows, states;  // As they are stored.
  SequenceReplay replay;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_REPLAY_CC_REPLAY_RESOURCE_H_
