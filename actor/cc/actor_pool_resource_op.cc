// The TensorFlow op that makes an actor pool. Its Python interface is actor/actor_pool.py.
#include <string>
#include <vector>

#include "actor/cc/actor_pool.h"
#include "actor/cc/actor_pool_resource.h"
#include "ops/cc/field.h"
#include "ops/cc/op_helpers.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace scalable_agents {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::TensorShape;
using tensorflow::errors::InvalidArgument;

REGISTER_OP("ActorPool")
    .Output("handle: resource")
    .Attr("num_environments: int")
    .Attr("unroll_length: int")
    .Attr("slot_bytes: int")
    .Attr("environment_types: list(type)")
    .Attr("environment_shapes: list(shape)")
    .Attr("environment_offsets: list(int)")
    .Attr("environment_stacks: list(int)")
    .Attr("output_types: list(type)")
    .Attr("output_shapes: list(shape)")
    .Attr("state_types: list(type) >= 0")
    .Attr("state_shapes: list(shape) >= 0")
    .Attr("completed_capacity: int")
    .Attr("environment_timeout_ms: int")
    .Attr("long_work_factor: int")
    .Attr("barrier: {'none', 'unroll', 'step'}")
    .Attr("dynamic_batching: bool")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(
        "Makes the actors of this process. Types and shapes are those of a row; offsets are bytes in a slot. Of a field "
        "with a stack k > 1, unrolls have the newest of k frames of each row, and the earlier ones of row 0.");

class ActorPoolOp : public tensorflow::ResourceOpKernel<PoolResource> {
 public:
  explicit ActorPoolOp(OpKernelConstruction* context) : ResourceOpKernel(context) {
    int64_t num_environments, unroll_length, capacity;
    std::string barrier;
    OP_REQUIRES_OK(context, context->GetAttr("num_environments", &num_environments));
    OP_REQUIRES_OK(context, context->GetAttr("unroll_length", &unroll_length));
    OP_REQUIRES_OK(context, context->GetAttr("slot_bytes", &options_.slot_bytes));
    OP_REQUIRES_OK(context, context->GetAttr("environment_offsets", &fields_.environment_offsets));
    OP_REQUIRES_OK(context, context->GetAttr("environment_stacks", &fields_.environment_stacks));
    OP_REQUIRES_OK(context, context->GetAttr("completed_capacity", &capacity));
    OP_REQUIRES_OK(context, context->GetAttr("environment_timeout_ms", &options_.environment_timeout_ms));
    OP_REQUIRES_OK(context, context->GetAttr("long_work_factor", &options_.long_work_factor));
    OP_REQUIRES_OK(context, context->GetAttr("barrier", &barrier));
    OP_REQUIRES_OK(context, context->GetAttr("dynamic_batching", &options_.dynamic_batching));
    OP_REQUIRES_OK(context, GetFields(context, "environment", &fields_.environment));
    OP_REQUIRES_OK(context, GetFields(context, "output", &fields_.output));
    OP_REQUIRES_OK(context, GetFields(context, "state", &fields_.state));
    OP_REQUIRES(context, IsCount(num_environments) && IsCount(unroll_length) && IsCount(capacity),
                InvalidArgument("num_environments, unroll_length and completed_capacity: want 1 to ", kMaximumCount,
                                ", got ", num_environments, ", ", unroll_length, " and ", capacity));
    const std::vector<int64_t>& offsets = fields_.environment_offsets;
    OP_REQUIRES(context, offsets.size() == fields_.environment.size(),
                InvalidArgument("environment_offsets: want ", fields_.environment.size(), ", got ", offsets.size()));
    OP_REQUIRES_OK(context, CheckStacks());
    OP_REQUIRES(context,
                !fields_.output.empty() && fields_.output[0].type == tensorflow::DT_INT32 &&
                    fields_.output[0].shape.dims() == 0,
                InvalidArgument("agent output: want the int32 action first"));
    OP_REQUIRES_OK(context, CheckSizes(unroll_length));
    options_.barrier = barrier == "step" ? Barrier::kStep : barrier == "unroll" ? Barrier::kUnroll : Barrier::kNone;
    options_.num_environments = num_environments;
    options_.layout.unroll_length = unroll_length;
    options_.completed_capacity = capacity;
    for (size_t i = 0; i < offsets.size(); ++i) {
      const Field field = fields_.InUnroll(i);
      options_.layout.environment_fields.push_back(
          {offsets[i], field.bytes(), fields_.environment_stacks[i], LastAxisBytes(field)});
    }
    for (const Field& field : fields_.output) options_.layout.agent_output_bytes.push_back(field.bytes());
    for (const Field& field : fields_.state) options_.layout.agent_state_bytes.push_back(field.bytes());
  }

 private:
  static bool IsCount(int64_t value) { return value >= 1 && value <= kMaximumCount; }

  // Checks that stacks can be taken apart.
  absl::Status CheckStacks() const {
    const std::vector<int>& stacks = fields_.environment_stacks;
    if (stacks.size() != fields_.environment.size()) {
      return InvalidArgument("environment_stacks: want ", fields_.environment.size(), ", got ", stacks.size());
    }
    for (size_t i = 0; i < stacks.size(); ++i) {
      const TensorShape& shape = fields_.environment[i].shape;
      if (stacks[i] < 1 || (stacks[i] > 1 && (shape.dims() == 0 || shape.dim_size(shape.dims() - 1) % stacks[i]))) {
        return InvalidArgument("environment_stacks: ", shape.DebugString(), " is not a stack of ", stacks[i]);
      }
    }
    return absl::OkStatus();
  }

  // Checks that all fields lie in a slot, and that the bytes of an unroll do not overflow.
  absl::Status CheckSizes(int64_t unroll_length) const {
    int64_t row_bytes = 0, unroll_bytes;
    for (const auto* fields : {&fields_.environment, &fields_.output, &fields_.state}) {
      for (const Field& field : *fields) {
        int64_t bytes;
        if (__builtin_mul_overflow(field.shape.num_elements(), tensorflow::DataTypeSize(field.type), &bytes) ||
            __builtin_add_overflow(row_bytes, bytes, &row_bytes)) {
          return InvalidArgument("a row has more bytes than can be counted");
        }
      }
    }
    if (__builtin_mul_overflow(unroll_length + 1, row_bytes, &unroll_bytes)) {
      return InvalidArgument("unroll_length: ", unroll_length, " rows of ", row_bytes,
                             " bytes are more than can be counted");
    }
    TF_RETURN_IF_ERROR(CheckPlace("action", 0, sizeof(int32_t)));
    for (size_t i = 0; i < fields_.environment.size(); ++i) {
      TF_RETURN_IF_ERROR(
          CheckPlace("environment_offsets", fields_.environment_offsets[i], fields_.environment[i].bytes()));
    }
    return absl::OkStatus();
  }

  absl::Status CheckPlace(const char* name, int64_t offset, int64_t bytes) const {
    if (offset >= 0 && offset <= options_.slot_bytes - bytes) return absl::OkStatus();
    return InvalidArgument(name, ": ", bytes, " bytes at ", offset, " are not in a slot of ", options_.slot_bytes);
  }

  absl::Status CreateResource(PoolResource** resource) override {
    *resource = new PoolResource(options_, fields_);
    return absl::OkStatus();
  }

  ActorPool::Options options_;
  Fields fields_;
};

REGISTER_KERNEL_BUILDER(Name("ActorPool").Device(tensorflow::DEVICE_CPU), ActorPoolOp);

}  // namespace
}  // namespace scalable_agents
