// TensorFlow ops that use an actor pool. The op in actor_pool_resource_op.cc makes the pool.
#include <string.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actor/cc/actor_pool.h"
#include "actor/cc/actor_pool_resource.h"
#include "ops/cc/op_helpers.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace scalable_agents {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

REGISTER_OP("ActorPoolAttach")
    .Input("handle: resource")
    .Input("worker: int32")
    .Input("socket: int32")
    .Input("memory: int32")
    .Input("actor_ids: int32")
    .Input("level_ids: int32")
    .Input("groups: int32")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Starts the environments of a worker process; slot i is actor_ids[i]. The caller may close the descriptors.");

REGISTER_OP("ActorPoolNextBatch")
    .Input("handle: resource")
    .Output("id: int64")
    .Output("actor_id: int32")
    .Output("last_action: int32")
    .Output("environment_output: environment_types")
    .Output("agent_state: state_types")
    .Attr("newest_frames: bool")
    .Attr("environment_types: list(type)")
    .Attr("state_types: list(type) >= 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc(
        "Waits for a batch of actors that need an action. Every output but the id is [n, ...]. With newest_frames, it has "
        "only the newest frame of each stack.");

REGISTER_OP("ActorPoolCompleteBatch")
    .Input("handle: resource")
    .Input("id: int64")
    .Input("version: int64")
    .Input("agent_output: output_types")
    .Input("agent_state: state_types")
    .Attr("output_types: list(type)")
    .Attr("state_types: list(type) >= 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Takes the decisions for batch `id`, [n, ...] each, and the version of the parameters that made them.");

REGISTER_OP("ActorPoolNextUnroll")
    .Input("handle: resource")
    .Output("components: types")
    .Attr("types: list(type)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("Waits for a full unroll.");

REGISTER_OP("ActorPoolNextFault")
    .Input("handle: resource")
    .Output("worker: int32")
    .Output("reason: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("Waits for a worker to be at fault.");

REGISTER_OP("ActorPoolRelease")
    .Input("handle: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Pools with a barrier: lets all actors begin another unroll, once all wait with a full one.");

REGISTER_OP("ActorPoolReleaseOne")
    .Input("handle: resource")
    .Input("actor_id: int32")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Pools whose barrier is unroll: lets one actor begin another unroll, if it waits with a full one.");

REGISTER_OP("ActorPoolRetire")
    .Input("handle: resource")
    .Input("actor_id: int32")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Stops an environment after its current step.");

REGISTER_OP("ActorPoolStatistics")
    .Input("handle: resource")
    .Output("statistics: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("[6]: steps, batches, rows, and nanoseconds of inference waiting, workers stepping, actors blocked.");

REGISTER_OP("ActorPoolClose")
    .Input("handle: resource")
    .Input("cause: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Ends every wait. `cause` ends the error's message.");

absl::Status Attach(OpKernelContext* context, PoolResource* resource) {
  int32_t worker, socket, memory;
  TF_RETURN_IF_ERROR(GetScalar(context, "worker", &worker));
  TF_RETURN_IF_ERROR(GetScalar(context, "socket", &socket));
  TF_RETURN_IF_ERROR(GetScalar(context, "memory", &memory));
  const int64_t num_slots = context->input(4).NumElements();
  for (const char* name : {"actor_ids", "level_ids", "groups"}) {
    TF_RETURN_IF_ERROR(CheckVector(context, name, num_slots));
  }
  auto value = [&](int input, int64_t slot) { return context->input(input).vec<int32_t>()(slot); };
  std::vector<ActorPool::Environment> environments;
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    environments.push_back({value(4, slot), value(5, slot), value(6, slot)});
  }
  return ToTensorFlow(resource->pool.Attach(worker, socket, memory, environments));
}

std::function<void()> CloseIfItExists(PoolResource* resource, const char* cause) {
  return IfItExists(resource, [cause](PoolResource* existing) { existing->pool.Close(cause); });
}

class NextBatchOp : public tensorflow::AsyncOpKernel {
 public:
  explicit NextBatchOp(tensorflow::OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("newest_frames", &newest_frames_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto resource = ResourceOf<PoolResource>(context);
    if (!resource) return done();
    OP_REQUIRES_OK_ASYNC(context, CheckOutputTypes(*context, resource->batch_types), done);
    auto pending = std::make_shared<PendingOp>(context, done);
    if (!pending->Begin(CloseIfItExists(resource.get(), "inference was cancelled"))) return;
    PoolResource* pool = resource.get();  // A plain pointer: the pool owns the callback and outlives it.
    pool->pool.NextBatch([this, pool, pending](const Status& status, const ActorPool::ActorBatch& batch) {
      pending->Finish(
          [&](OpKernelContext* context) { return status.ok() ? Gather(*pool, batch, context) : ToTensorFlow(status); });
    });
  }

 private:
  absl::Status Gather(const PoolResource& pool, const ActorPool::ActorBatch& batch, OpKernelContext* context) const {
    const Fields& fields = pool.fields;
    const int64_t size = batch.items.size();
    Tensor *id, *actor_id, *last_action;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape(), &id));
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({size}), &actor_id));
    TF_RETURN_IF_ERROR(context->allocate_output(2, TensorShape({size}), &last_action));
    id->scalar<int64_t>()() = batch.id;
    for (int64_t i = 0; i < size; ++i) {
      actor_id->vec<int32_t>()(i) = batch.items[i]->tag.actor_id;
      memcpy(Data(*last_action) + i * sizeof(int32_t), batch.items[i]->decision.output.data(), sizeof(int32_t));
    }
    int output = 3;
    for (size_t f = 0; f < fields.environment.size(); ++f) {
      const EnvironmentField& stacked = pool.layout.environment_fields[f];
      const Field& field = newest_frames_ ? pool.components[pool.first_row_component + f] : fields.environment[f];
      TF_RETURN_IF_ERROR(GatherField(field, batch, output++, context, [&](const Actor& actor, char* to) {
        const char* const slot = actor.channel->slot(actor.slot);
        if (newest_frames_) {
          CopyFrame(stacked, slot, stacked.stack - 1, to);
        } else {
          memcpy(to, slot + stacked.offset, field.bytes());
        }
      }));
    }
    int64_t offset = 0;
    for (const Field& field : fields.state) {
      TF_RETURN_IF_ERROR(GatherField(field, batch, output++, context, [&](const Actor& actor, char* to) {
        memcpy(to, actor.decision.state.data() + offset, field.bytes());
      }));
      offset += field.bytes();
    }
    return absl::OkStatus();
  }

  template <typename Copy>
  static absl::Status GatherField(const Field& field, const ActorPool::ActorBatch& batch, int output,
                                  OpKernelContext* context, Copy copy) {
    Tensor* tensor;
    TF_RETURN_IF_ERROR(context->allocate_output(output, Prepend(batch.items.size(), field.shape), &tensor));
    const int64_t bytes = field.bytes();
    for (size_t i = 0; i < batch.items.size(); ++i) copy(*batch.items[i], Data(*tensor) + i * bytes);
    return absl::OkStatus();
  }

  bool newest_frames_;
};

absl::Status CompleteBatch(OpKernelContext* context, PoolResource* resource) {
  int64_t id, version;
  TF_RETURN_IF_ERROR(GetScalar(context, "id", &id));
  TF_RETURN_IF_ERROR(GetScalar(context, "version", &version));
  std::vector<const char*> outputs, states;
  const int64_t size = resource->pool.BatchSize(id);
  if (size >= 0) {  // Otherwise the pool reports the invalid id.
    OpInputList inputs;
    TF_RETURN_IF_ERROR(GetInputs(context, "agent_output", "field", resource->fields.output, {size}, &inputs));
    for (const Tensor& input : inputs) outputs.push_back(Data(input));
    TF_RETURN_IF_ERROR(GetInputs(context, "agent_state", "field", resource->fields.state, {size}, &inputs));
    for (const Tensor& input : inputs) states.push_back(Data(input));
  }
  return ToTensorFlow(resource->pool.CompleteBatch(id, version, outputs, states));
}

class NextUnrollOp : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto resource = ResourceOf<PoolResource>(context);
    if (!resource) return done();
    OP_REQUIRES_OK_ASYNC(context, CheckOutputTypes(*context, resource->unroll_types), done);
    auto pending = std::make_shared<PendingOp>(context, done);
    if (!pending->Begin(CloseIfItExists(resource.get(), "taking unrolls was cancelled"))) return;
    resource->pool.NextUnroll([pending](const Status& status, Unroll* unroll) {
      pending->Finish([&](OpKernelContext* context) {
        if (!status.ok()) return ToTensorFlow(status);
        for (size_t i = 0; i < unroll->size(); ++i) {
          context->set_output(i, *static_cast<Tensor*>((*unroll)[i].owner.get()));
        }
        return absl::OkStatus();
      });
    });
  }
};

class NextFaultOp : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto resource = ResourceOf<PoolResource>(context);
    if (!resource) return done();
    auto pending = std::make_shared<PendingOp>(context, done);
    if (!pending->Begin(CloseIfItExists(resource.get(), "watching the workers was cancelled"))) return;
    resource->pool.NextFault([pending](const Status& status, int worker, const std::string& reason) {
      pending->Finish([&](OpKernelContext* context) {
        if (!status.ok()) return ToTensorFlow(status);
        Tensor number(worker), text(tensorflow::DT_STRING, {});
        text.scalar<tensorflow::tstring>()() = reason;
        context->set_output(0, number);
        context->set_output(1, text);
        return absl::OkStatus();
      });
    });
  }
};

absl::Status Release(OpKernelContext*, PoolResource* resource) { return ToTensorFlow(resource->pool.Release()); }

absl::Status ReleaseOne(OpKernelContext* context, PoolResource* resource) {
  int32_t actor_id;
  TF_RETURN_IF_ERROR(GetScalar(context, "actor_id", &actor_id));
  return ToTensorFlow(resource->pool.ReleaseOne(actor_id));
}

absl::Status Retire(OpKernelContext* context, PoolResource* resource) {
  int32_t actor_id;
  TF_RETURN_IF_ERROR(GetScalar(context, "actor_id", &actor_id));
  return ToTensorFlow(resource->pool.Retire(actor_id));
}

absl::Status Statistics(OpKernelContext* context, PoolResource* resource) {
  const ActorPool::Statistics s = resource->pool.GetStatistics();
  return SetCounts(context, {s.steps, s.batches, s.rows, s.inference_waiting_ns, s.stepping_ns, s.blocked_ns});
}

absl::Status Close(OpKernelContext* context, PoolResource* resource) {
  tensorflow::tstring cause;
  TF_RETURN_IF_ERROR(GetScalar(context, "cause", &cause));
  resource->pool.Close(cause);
  return absl::OkStatus();
}

REGISTER_KERNEL_BUILDER(Name("ActorPoolAttach").Device(tensorflow::DEVICE_CPU), ResourceOp<PoolResource, Attach>);
REGISTER_KERNEL_BUILDER(Name("ActorPoolNextBatch").Device(tensorflow::DEVICE_CPU), NextBatchOp);
REGISTER_KERNEL_BUILDER(Name("ActorPoolCompleteBatch").Device(tensorflow::DEVICE_CPU),
                        ResourceOp<PoolResource, CompleteBatch>);
REGISTER_KERNEL_BUILDER(Name("ActorPoolNextUnroll").Device(tensorflow::DEVICE_CPU), NextUnrollOp);
REGISTER_KERNEL_BUILDER(Name("ActorPoolNextFault").Device(tensorflow::DEVICE_CPU), NextFaultOp);
REGISTER_KERNEL_BUILDER(Name("ActorPoolRelease").Device(tensorflow::DEVICE_CPU), ResourceOp<PoolResource, Release>);
REGISTER_KERNEL_BUILDER(Name("ActorPoolReleaseOne").Device(tensorflow::DEVICE_CPU),
                        ResourceOp<PoolResource, ReleaseOne>);
REGISTER_KERNEL_BUILDER(Name("ActorPoolRetire").Device(tensorflow::DEVICE_CPU), ResourceOp<PoolResource, Retire>);
REGISTER_KERNEL_BUILDER(Name("ActorPoolStatistics").Device(tensorflow::DEVICE_CPU),
                        ResourceOp<PoolResource, Statistics>);
REGISTER_KERNEL_BUILDER(Name("ActorPoolClose").Device(tensorflow::DEVICE_CPU), ResourceOp<PoolResource, Close>);

}  // namespace
}  // namespace scalable_agents
