// The TensorFlow resource of the ops of the replay.
#ifndef SCALABLE_AGENTS_LEARNER_CC_REPLAY_RESOURCE_H_
#define SCALABLE_AGENTS_LEARNER_CC_REPLAY_RESOURCE_H_

#include <string>
#include <utility>
#include <vector>

#include "learner/cc/sequence_replay.h"
#include "ops/cc/field.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace scalable_agents {

// A replay, and the types and shapes of what it holds.
class ReplayResource : public tensorflow::ResourceBase {
 public:
  ReplayResource(const ReplayOptions& options, std::vector<Field> rows, std::vector<Field> states)
      : rows(std::move(rows)), states(std::move(states)), replay(options) {}
  std::string DebugString() const override { return "SequenceReplay"; }

  // The shape [n0, n1, ...] of many rows of a component when they are read, with stacks of frames.
  tensorflow::TensorShape ReadShape(int component, int64_t n0, int64_t n1) const {
    tensorflow::TensorShape shape = rows[component].shape;
    const int stack = replay.options().components[component].stack, last = shape.dims() - 1;
    if (stack > 1) shape.set_dim(last, stack * shape.dim_size(last));
    return Prepend(n0, Prepend(n1, shape));
  }

  const std::vector<Field> rows, states;  // As they are stored.
  SequenceReplay replay;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_LEARNER_CC_REPLAY_RESOURCE_H_
