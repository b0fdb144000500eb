// The TensorFlow op that makes a replay of sequences. Its Python interface is replay/sequence_replay.py.
#include <vector>

#include "ops/cc/field.h"
#include "ops/cc/op_helpers.h"
#include "replay/cc/replay_op_helpers.h"
#include "replay/cc/replay_resource.h"
#include "replay/cc/sequence_replay.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace scalable_agents {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::errors::InvalidArgument;

REGISTER_OP("SequenceReplay")
    .Output("handle: resource")
    .Attr("row_types: list(type) >= 1")
    .Attr("row_shapes: list(shape) >= 1")
    .Attr("stacks: list(int) >= 1")
    .Attr("done_component: int")
    .Attr("state_types: list(type) >= 0")
    .Attr("state_shapes: list(shape) >= 0")
    .Attr("state_offsets: list(int) >= 0")
    .Attr("burn_in: int")
    .Attr("length: int")
    .Attr("period: int")
    .Attr("cross_episodes: bool")
    .Attr("capacity: int")
    .Attr("priority_exponent: float")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Makes a replay. Types and shapes are those of one row; of a stack of frames, those of the newest frame.");

class ReplayOp : public tensorflow::ResourceOpKernel<ReplayResource> {
 public:
  explicit ReplayOp(OpKernelConstruction* context) : ResourceOpKernel(context) {
    OP_REQUIRES_OK(context, GetRowAttributes(context, &rows_));
    options_.components = rows_.components;
    options_.done = rows_.done;
    OP_REQUIRES_OK(context, GetFields(context, "state", &states_));
    float priority_exponent;
    OP_REQUIRES_OK(context, context->GetAttr("state_offsets", &options_.state_offsets));
    OP_REQUIRES_OK(context, context->GetAttr("burn_in", &options_.geometry.burn_in));
    OP_REQUIRES_OK(context, context->GetAttr("length", &options_.geometry.length));
    OP_REQUIRES_OK(context, context->GetAttr("period", &options_.geometry.period));
    OP_REQUIRES_OK(context, context->GetAttr("cross_episodes", &options_.geometry.cross_episodes));
    OP_REQUIRES_OK(context, context->GetAttr("capacity", &options_.capacity));
    OP_REQUIRES_OK(context, context->GetAttr("priority_exponent", &priority_exponent));
    options_.priority_exponent = priority_exponent;
    const SequenceGeometry& geometry = options_.geometry;
    OP_REQUIRES(context, geometry.burn_in >= 0 && geometry.length >= 1 && geometry.period >= 1,
                InvalidArgument("burn_in, length and period: want at least 0, 1 and 1, got ", geometry.burn_in, ", ",
                                geometry.length, " and ", geometry.period));
    OP_REQUIRES(context, geometry.period <= geometry.length,
                InvalidArgument("period: want at most the length of ", geometry.length, ", got ", geometry.period,
                                ": steps between two sequences would never be trained"));
    OP_REQUIRES(context, options_.capacity >= 1, InvalidArgument("capacity: want at least 1, got ", options_.capacity));
    OP_REQUIRES(context, priority_exponent >= 0,
                InvalidArgument("priority_exponent: want at least 0, got ", priority_exponent));
    for (const Field& field : states_) options_.state_bytes.push_back(field.bytes());
    for (int offset : options_.state_offsets) {
      OP_REQUIRES(context, offset >= 0 && offset < geometry.num_rows(),
                  InvalidArgument("state_offsets: want 0 to ", geometry.num_rows() - 1, ", got ", offset));
    }
  }

 private:
  absl::Status CreateResource(ReplayResource** resource) override {
    return ToTensorFlow(WithMemory([&] {
      *resource = new ReplayResource(options_, rows_.fields, states_);
      return Status();
    }));
  }

  ReplayOptions options_;
  RowAttributes rows_;
  std::vector<Field> states_;
};

REGISTER_KERNEL_BUILDER(Name("SequenceReplay").Device(tensorflow::DEVICE_CPU), ReplayOp);

}  // namespace
}  // namespace scalable_agents
