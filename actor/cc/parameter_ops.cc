// TensorFlow ops of the parameter snapshot (actor/parameters.py). Inference reads it while the learner writes it.
#include <map>
#include <memory>
#include <vector>

#include "ops/cc/mutex.h"
#include "ops/cc/op_helpers.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace scalable_agents {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::errors::InvalidArgument;

REGISTER_OP("ParameterSnapshot")
    .Output("handle: resource")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Makes a snapshot: one version of a list of tensors, replaced as a whole.");

REGISTER_OP("ParameterSnapshotPublish")
    .Input("handle: resource")
    .Input("version: int64")
    .Input("parameters: types")
    .Attr("types: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Replaces the version and all tensors at once.");

REGISTER_OP("ParameterSnapshotLatest")
    .Input("handle: resource")
    .Output("version: int64")
    .Output("parameters: types")
    .Attr("types: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("Returns the latest published version and tensors. FailedPrecondition before the first.");

REGISTER_OP("ParameterSnapshotHold")
    .Input("handle: resource")
    .Input("holders: int32")
    .Output("version: int64")
    .Output("parameters: types")
    .Attr("types: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc(
        "Returns what the holders, [n], hold. A holder that holds nothing first takes the latest version. InvalidArgument "
        "if they hold different versions.");

REGISTER_OP("ParameterSnapshotLetGo")
    .Input("handle: resource")
    .Input("holders: int32")
    .Output("version: int64")
    .Output("parameters: types")
    .Attr("types: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("As ParameterSnapshotHold, but the holders hold nothing afterwards.");

class SnapshotResource : public tensorflow::ResourceBase {
 public:
  struct Snapshot {
    Tensor version;
    std::vector<Tensor> parameters;
  };

  std::string DebugString() const override { return "ParameterSnapshot"; }

  void Publish(std::shared_ptr<const Snapshot> snapshot) {
    MutexLock lock(mutex_);
    latest_.swap(snapshot);  // The lock is released before the old one is freed.
  }

  std::shared_ptr<const Snapshot> latest() {
    MutexLock lock(mutex_);
    return latest_;
  }

  // Sets `common` to what the holders hold. Those that hold nothing first take the latest. With let_go, they hold
  // nothing afterwards. Returns false if they hold different snapshots.
  template <typename Holders>
  bool Hold(const Holders& holders, bool let_go, std::shared_ptr<const Snapshot>* common) {
    MutexLock lock(mutex_);
    bool is_common = true;
    for (int64_t i = 0; i < holders.size(); ++i) {
      std::shared_ptr<const Snapshot>& held = held_[holders(i)];
      if (!held) held = latest_;
      if (i == 0) *common = held;
      is_common = is_common && held == *common;
      if (let_go) held.reset();
    }
    return is_common;
  }

 private:
  Mutex mutex_;
  std::shared_ptr<const Snapshot> latest_ GUARDED_BY(mutex_);
  std::map<int32_t, std::shared_ptr<const Snapshot>> held_ GUARDED_BY(mutex_);
};

class SnapshotOp : public tensorflow::ResourceOpKernel<SnapshotResource> {
 public:
  using ResourceOpKernel::ResourceOpKernel;

 private:
  absl::Status CreateResource(SnapshotResource** resource) override {
    *resource = new SnapshotResource;
    return absl::OkStatus();
  }
};

absl::Status Publish(OpKernelContext* context, SnapshotResource* resource) {
  OpInputList parameters;
  TF_RETURN_IF_ERROR(context->input_list("parameters", &parameters));
  auto snapshot = std::make_shared<SnapshotResource::Snapshot>();
  snapshot->version = context->input(1);
  snapshot->parameters.assign(parameters.begin(), parameters.end());
  resource->Publish(std::move(snapshot));
  return absl::OkStatus();
}

// Returns a snapshot as the outputs of an op.
absl::Status Give(const std::shared_ptr<const SnapshotResource::Snapshot>& snapshot, OpKernelContext* context) {
  if (!snapshot) return tensorflow::errors::FailedPrecondition("no parameters have been published yet");
  OpOutputList parameters;
  TF_RETURN_IF_ERROR(context->output_list("parameters", &parameters));
  if (parameters.size() != static_cast<int>(snapshot->parameters.size())) {
    return InvalidArgument("parameters: want ", snapshot->parameters.size(), ", got ", parameters.size());
  }
  for (int i = 0; i < parameters.size(); ++i) {
    if (snapshot->parameters[i].dtype() != parameters.expected_output_dtype(i)) {
      return InvalidArgument("parameter ", i, " has another type than was published");
    }
    parameters.set(i, snapshot->parameters[i]);
  }
  context->set_output(0, snapshot->version);
  return absl::OkStatus();
}

absl::Status Latest(OpKernelContext* context, SnapshotResource* resource) { return Give(resource->latest(), context); }

template <bool let_go>
absl::Status Hold(OpKernelContext* context, SnapshotResource* resource) {
  const auto holders = context->input(1).flat<int32_t>();
  if (holders.size() == 0) return InvalidArgument("holders: want at least one");
  std::shared_ptr<const SnapshotResource::Snapshot> snapshot;
  if (!resource->Hold(holders, let_go, &snapshot)) return InvalidArgument("the holders hold different versions");
  return Give(snapshot, context);
}

REGISTER_KERNEL_BUILDER(Name("ParameterSnapshot").Device(tensorflow::DEVICE_CPU), SnapshotOp);
REGISTER_KERNEL_BUILDER(Name("ParameterSnapshotPublish").Device(tensorflow::DEVICE_CPU),
                        ResourceOp<SnapshotResource, Publish>);
REGISTER_KERNEL_BUILDER(Name("ParameterSnapshotLatest").Device(tensorflow::DEVICE_CPU),
                        ResourceOp<SnapshotResource, Latest>);
REGISTER_KERNEL_BUILDER(Name("ParameterSnapshotHold").Device(tensorflow::DEVICE_CPU),
                        ResourceOp<SnapshotResource, Hold<false>>);
REGISTER_KERNEL_BUILDER(Name("ParameterSnapshotLetGo").Device(tensorflow::DEVICE_CPU),
                        ResourceOp<SnapshotResource, Hold<true>>);

// On a GPU, the tensors stay in the GPU's memory, and the ops only pass references to them. The version is in the
// host's memory.
REGISTER_KERNEL_BUILDER(Name("ParameterSnapshot").Device(tensorflow::DEVICE_GPU).HostMemory("handle"), SnapshotOp);
REGISTER_KERNEL_BUILDER(
    Name("ParameterSnapshotPublish").Device(tensorflow::DEVICE_GPU).HostMemory("handle").HostMemory("version"),
    ResourceOp<SnapshotResource, Publish>);
REGISTER_KERNEL_BUILDER(
    Name("ParameterSnapshotLatest").Device(tensorflow::DEVICE_GPU).HostMemory("handle").HostMemory("version"),
    ResourceOp<SnapshotResource, Latest>);
REGISTER_KERNEL_BUILDER(Name("ParameterSnapshotHold")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handle")
                            .HostMemory("holders")
                            .HostMemory("version"),
                        ResourceOp<SnapshotResource, Hold<false>>);
REGISTER_KERNEL_BUILDER(Name("ParameterSnapshotLetGo")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handle")
                            .HostMemory("holders")
                            .HostMemory("version"),
                        ResourceOp<SnapshotResource, Hold<true>>);

}  // namespace
}  // namespace scalable_agents
