// TensorFlow ops of the actor pool; the Python face is actor/actor_pool.py.
#include <memory>
#include <string>
#include <vector>

#include "actor/cc/actor_pool.h"
#include "ops/cc/op_helpers.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace scalable_agents {
namespace {

using tensorflow::DataType;
using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::errors::InvalidArgument;

REGISTER_OP("ActorPool")
    .Output("handle: resource")
    .Attr("num_environments: int")
    .Attr("unroll_length: int")
    .Attr("slot_bytes: int")
    .Attr("action_offset: int")
    .Attr("environment_types: list(type)")
    .Attr("environment_shapes: list(shape)")
    .Attr("environment_offsets: list(int)")
    .Attr("output_types: list(type)")
    .Attr("output_shapes: list(shape)")
    .Attr("state_types: list(type) >= 0")
    .Attr("state_shapes: list(shape) >= 0")
    .Attr("completed_capacity: int")
    .Attr("environment_timeout_ms: int")
    .Attr("long_work_factor: int")
    .Attr("synchronous: bool")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("The actors of this process. Types and shapes are of one row; offsets lie in a worker's slot.");

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
    .Doc("Starts the environments of a worker process; slot i is actor_ids[i]. Descriptors are duplicated.");

REGISTER_OP("ActorPoolNextBatch")
    .Input("handle: resource")
    .Output("id: int64")
    .Output("actor_id: int32")
    .Output("last_action: int32")
    .Output("environment_output: environment_types")
    .Output("agent_state: state_types")
    .Attr("environment_types: list(type)")
    .Attr("state_types: list(type) >= 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("Waits for actors to act for. Every output but the id is [n, ...].");

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
    .Doc("Hands in the decisions for batch `id`, [n, ...] each, and the version of the parameters that took them.");

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
    .Doc("Synchronous pools: once all actors wait with a full unroll, lets them go on for another one.");

REGISTER_OP("ActorPoolRetire")
    .Input("handle: resource")
    .Input("actor_id: int32")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("An environment rests: no more steps are asked of it.");

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
    .Doc("Ends every wait, with `cause` at the end of its message.");

// One field of a row.
struct Field {
  DataType type;
  TensorShape shape;
  int64_t bytes() const { return shape.num_elements() * tensorflow::DataTypeSize(type); }
};

TensorShape Prepend(int64_t size, TensorShape shape) {
  shape.InsertDim(0, size);
  return shape;
}

char* Data(const Tensor& tensor) { return static_cast<char*>(tensor.data()); }

struct Fields {
  std::vector<Field> environment, output, state;
  std::vector<int64_t> environment_offsets;  // In a worker's slot.
};

class PoolResource : public tensorflow::ResourceBase {
 public:
  PoolResource(const ActorPool::Options& options, const Fields& fields)
      : fields(fields), pool(options, [this, length = options.unroll_length](int component) {
          return AllocateComponent(component, length);
        }) {
    components.push_back({tensorflow::DT_INT32, TensorShape()});  // Level id.
    components.push_back({tensorflow::DT_INT32, TensorShape()});  // Actor id.
    for (const Field& field : fields.state) components.push_back(field);
    first_row_component = components.size();
    for (const Field& field : fields.environment) components.push_back(field);
    for (const Field& field : fields.output) components.push_back(field);
    components.push_back({tensorflow::DT_INT64, TensorShape()});  // Parameter version.
  }
  ~PoolResource() override { pool.Close("the pool was deleted"); }
  std::string DebugString() const override { return "ActorPool"; }

  const Fields fields;
  std::vector<Field> components;  // Of an unroll; those from first_row_component on have unroll_length + 1 rows.
  size_t first_row_component;
  ActorPool pool;

 private:
  // Unrolls are written straight into the tensors that leave the pool.
  Buffer AllocateComponent(int component, int unroll_length) {
    const Field& field = components[component];
    const bool rows = static_cast<size_t>(component) >= first_row_component;
    auto tensor = std::make_shared<Tensor>(field.type, rows ? Prepend(unroll_length + 1, field.shape) : field.shape);
    if (!tensor->IsInitialized()) return {};  // There was no memory.
    return {Data(*tensor), tensor};
  }
};

class ActorPoolOp : public tensorflow::ResourceOpKernel<PoolResource> {
 public:
  explicit ActorPoolOp(OpKernelConstruction* context) : ResourceOpKernel(context) {
    int64_t num_environments, unroll_length, capacity;
    OP_REQUIRES_OK(context, context->GetAttr("num_environments", &num_environments));
    OP_REQUIRES_OK(context, context->GetAttr("unroll_length", &unroll_length));
    OP_REQUIRES_OK(context, context->GetAttr("slot_bytes", &options_.slot_bytes));
    OP_REQUIRES_OK(context, context->GetAttr("action_offset", &options_.action_offset));
    OP_REQUIRES_OK(context, context->GetAttr("environment_offsets", &fields_.environment_offsets));
    OP_REQUIRES_OK(context, context->GetAttr("completed_capacity", &capacity));
    OP_REQUIRES_OK(context, context->GetAttr("environment_timeout_ms", &options_.environment_timeout_ms));
    OP_REQUIRES_OK(context, context->GetAttr("long_work_factor", &options_.long_work_factor));
    OP_REQUIRES_OK(context, context->GetAttr("synchronous", &options_.synchronous));
    OP_REQUIRES_OK(context, GetFields(context, "environment", &fields_.environment));
    OP_REQUIRES_OK(context, GetFields(context, "output", &fields_.output));
    OP_REQUIRES_OK(context, GetFields(context, "state", &fields_.state));
    OP_REQUIRES(context, IsCount(num_environments) && IsCount(unroll_length) && IsCount(capacity),
                InvalidArgument("num_environments, unroll_length and completed_capacity: want 1 to ", kMaximumCount,
                                ", got ", num_environments, ", ", unroll_length, " and ", capacity));
    const std::vector<int64_t>& offsets = fields_.environment_offsets;
    OP_REQUIRES(context, offsets.size() == fields_.environment.size(),
                InvalidArgument("environment_offsets: want ", fields_.environment.size(), ", got ", offsets.size()));
    OP_REQUIRES(context, !fields_.output.empty() && fields_.output[0].type == tensorflow::DT_INT32 &&
                             fields_.output[0].shape.dims() == 0,
                InvalidArgument("agent output: want the int32 action first"));
    OP_REQUIRES_OK(context, CheckSizes(unroll_length));
    options_.num_environments = num_environments;
    options_.unroll_length = unroll_length;
    options_.completed_capacity = capacity;
    for (size_t i = 0; i < offsets.size(); ++i) {
      options_.environment_fields.push_back({offsets[i], fields_.environment[i].bytes()});
    }
    for (const Field& field : fields_.output) options_.agent_output_bytes.push_back(field.bytes());
    for (const Field& field : fields_.state) options_.agent_state_bytes.push_back(field.bytes());
  }

 private:
  static constexpr int64_t kMaximumCount = (int64_t{1} << 31) - 2;  // An int, also with one row more.
  static bool IsCount(int64_t value) { return value >= 1 && value <= kMaximumCount; }

  // That all fields lie in a slot, and that the bytes of an unroll can be counted.
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
    for (size_t i = 0; i < fields_.environment.size(); ++i) {
      const int64_t offset = fields_.environment_offsets[i], bytes = fields_.environment[i].bytes();
      if (offset < 0 || offset > options_.slot_bytes - bytes) {
        return InvalidArgument("environment_offsets: ", bytes, " bytes at ", offset, " are not in a slot of ",
                               options_.slot_bytes);
      }
    }
    return absl::OkStatus();
  }

  static absl::Status GetFields(OpKernelConstruction* context, const std::string& name, std::vector<Field>* fields) {
    std::vector<DataType> types;
    std::vector<TensorShape> shapes;
    TF_RETURN_IF_ERROR(context->GetAttr(name + "_types", &types));
    TF_RETURN_IF_ERROR(context->GetAttr(name + "_shapes", &shapes));
    if (types.size() != shapes.size()) return InvalidArgument(name, ": as many types as shapes are wanted");
    for (size_t i = 0; i < types.size(); ++i) {
      if (tensorflow::DataTypeSize(types[i]) == 0) return InvalidArgument(name, ": a row has no field of that type");
      fields->push_back({types[i], shapes[i]});
    }
    return absl::OkStatus();
  }

  absl::Status CreateResource(PoolResource** resource) override {
    *resource = new PoolResource(options_, fields_);
    return absl::OkStatus();
  }

  ActorPool::Options options_;
  Fields fields_;
};

class AttachOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    auto resource = ResourceOf<PoolResource>(context);
    if (!resource) return;
    auto scalar = [&](int input) { return context->input(input).scalar<int32_t>()(); };
    const auto actor_ids = context->input(4).vec<int32_t>();
    const auto level_ids = context->input(5).vec<int32_t>();
    const auto groups = context->input(6).vec<int32_t>();
    OP_REQUIRES(context, actor_ids.size() == level_ids.size() && actor_ids.size() == groups.size(),
                InvalidArgument("actor_ids, level_ids and groups: want one each per slot"));
    std::vector<ActorPool::Environment> environments;
    for (int i = 0; i < actor_ids.size(); ++i) environments.push_back({actor_ids(i), level_ids(i), groups(i)});
    OP_REQUIRES_OK(context, ToTensorFlow(resource->pool.Attach(scalar(1), scalar(2), scalar(3), environments)));
  }
};

class NextBatchOp : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto resource = ResourceOf<PoolResource>(context);
    if (!resource) return done();
    auto pending = std::make_shared<PendingOp>(context, done);
    if (!pending->Begin([resource] { resource->pool.Close("inference was cancelled"); })) return;
    PoolResource* pool = resource.get();  // Not shared: the callback is the pool's, which outlives it.
    pool->pool.NextBatch([pool, pending](const Status& status, const ActorPool::ActorBatch& batch) {
      pending->Finish([&](OpKernelContext* context) {
        return status.ok() ? Gather(pool->fields, batch, context) : ToTensorFlow(status);
      });
    });
  }

 private:
  static absl::Status Gather(const Fields& fields, const ActorPool::ActorBatch& batch, OpKernelContext* context) {
    const int64_t size = batch.items.size();
    Tensor *id, *actor_id, *last_action;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape(), &id));
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({size}), &actor_id));
    TF_RETURN_IF_ERROR(context->allocate_output(2, TensorShape({size}), &last_action));
    id->scalar<int64_t>()() = batch.id;
    for (int64_t i = 0; i < size; ++i) {
      actor_id->vec<int32_t>()(i) = batch.items[i]->actor_id;
      memcpy(Data(*last_action) + i * sizeof(int32_t), batch.items[i]->output.data(), sizeof(int32_t));
    }
    int output = 3;
    for (size_t f = 0; f < fields.environment.size(); ++f) {
      const int64_t offset = fields.environment_offsets[f];
      TF_RETURN_IF_ERROR(GatherField(fields.environment[f], batch, output++, context, [offset](const Actor& actor) {
        return actor.channel->slot(actor.slot) + offset;
      }));
    }
    int64_t offset = 0;
    for (const Field& field : fields.state) {
      TF_RETURN_IF_ERROR(GatherField(field, batch, output++, context,
                                     [offset](const Actor& actor) { return actor.state.data() + offset; }));
      offset += field.bytes();
    }
    return absl::OkStatus();
  }

  template <typename Source>
  static absl::Status GatherField(const Field& field, const ActorPool::ActorBatch& batch, int output,
                                  OpKernelContext* context, Source source) {
    Tensor* tensor;
    TF_RETURN_IF_ERROR(context->allocate_output(output, Prepend(batch.items.size(), field.shape), &tensor));
    const int64_t bytes = field.bytes();
    for (size_t i = 0; i < batch.items.size(); ++i) memcpy(Data(*tensor) + i * bytes, source(*batch.items[i]), bytes);
    return absl::OkStatus();
  }
};

class CompleteBatchOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    auto resource = ResourceOf<PoolResource>(context);
    if (!resource) return;
    const int64_t id = context->input(1).scalar<int64_t>()();
    std::vector<const char*> outputs, states;
    const int64_t size = resource->pool.BatchSize(id);
    if (size >= 0) {  // Else the pool tells what is wrong with the id.
      OP_REQUIRES_OK(context, Check(context, "agent_output", resource->fields.output, size, &outputs));
      OP_REQUIRES_OK(context, Check(context, "agent_state", resource->fields.state, size, &states));
    }
    OP_REQUIRES_OK(context, ToTensorFlow(resource->pool.CompleteBatch(
                                id, context->input(2).scalar<int64_t>()(), outputs, states)));
  }

 private:
  static absl::Status Check(OpKernelContext* context, const std::string& name, const std::vector<Field>& fields,
                            int64_t size, std::vector<const char*>* data) {
    OpInputList inputs;
    TF_RETURN_IF_ERROR(context->input_list(name, &inputs));
    if (inputs.size() != static_cast<int>(fields.size())) {
      return InvalidArgument(name, ": want ", fields.size(), " fields, got ", inputs.size());
    }
    for (size_t i = 0; i < fields.size(); ++i) {
      const TensorShape want = Prepend(size, fields[i].shape);
      if (inputs[i].shape() != want || inputs[i].dtype() != fields[i].type) {
        return InvalidArgument(name, ", field ", i, ": want ", tensorflow::DataTypeString(fields[i].type), " ",
                               want.DebugString(), ", got ", tensorflow::DataTypeString(inputs[i].dtype()), " ",
                               inputs[i].shape().DebugString());
      }
      data->push_back(Data(inputs[i]));
    }
    return absl::OkStatus();
  }
};

class NextUnrollOp : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto resource = ResourceOf<PoolResource>(context);
    if (!resource) return done();
    OP_REQUIRES_ASYNC(context, context->num_outputs() == static_cast<int>(resource->components.size()),
                      InvalidArgument("unroll: want ", resource->components.size(), " components, got ",
                                      context->num_outputs()),
                      done);
    auto pending = std::make_shared<PendingOp>(context, done);
    if (!pending->Begin([resource] { resource->pool.Close("taking unrolls was cancelled"); })) return;
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
    if (!pending->Begin([resource] { resource->pool.Close("watching the workers was cancelled"); })) return;
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

class ReleaseOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    if (auto resource = ResourceOf<PoolResource>(context)) resource->pool.Release();
  }
};

class RetireOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    auto resource = ResourceOf<PoolResource>(context);
    if (!resource) return;
    const Tensor& actor_id = context->input(1);
    OP_REQUIRES(context, actor_id.NumElements() == 1,
                InvalidArgument("actor_id: want a scalar, got ", actor_id.shape().DebugString()));
    OP_REQUIRES_OK(context, ToTensorFlow(resource->pool.Retire(actor_id.flat<int32_t>()(0))));
  }
};

class StatisticsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    auto resource = ResourceOf<PoolResource>(context);
    if (!resource) return;
    const ActorPool::Statistics s = resource->pool.GetStatistics();
    const std::vector<int64_t> values = {s.steps, s.batches, s.rows, s.inference_waiting_ns, s.stepping_ns,
                                         s.blocked_ns};
    Tensor* statistics;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({static_cast<int64_t>(values.size())}),
                                                     &statistics));
    std::copy(values.begin(), values.end(), statistics->vec<int64_t>().data());
  }
};

class CloseOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    auto resource = ResourceOf<PoolResource>(context);
    if (resource) resource->pool.Close(context->input(1).scalar<tensorflow::tstring>()());
  }
};

REGISTER_KERNEL_BUILDER(Name("ActorPool").Device(tensorflow::DEVICE_CPU), ActorPoolOp);
REGISTER_KERNEL_BUILDER(Name("ActorPoolAttach").Device(tensorflow::DEVICE_CPU), AttachOp);
REGISTER_KERNEL_BUILDER(Name("ActorPoolNextBatch").Device(tensorflow::DEVICE_CPU), NextBatchOp);
REGISTER_KERNEL_BUILDER(Name("ActorPoolCompleteBatch").Device(tensorflow::DEVICE_CPU), CompleteBatchOp);
REGISTER_KERNEL_BUILDER(Name("ActorPoolNextUnroll").Device(tensorflow::DEVICE_CPU), NextUnrollOp);
REGISTER_KERNEL_BUILDER(Name("ActorPoolNextFault").Device(tensorflow::DEVICE_CPU), NextFaultOp);
REGISTER_KERNEL_BUILDER(Name("ActorPoolRelease").Device(tensorflow::DEVICE_CPU), ReleaseOp);
REGISTER_KERNEL_BUILDER(Name("ActorPoolRetire").Device(tensorflow::DEVICE_CPU), RetireOp);
REGISTER_KERNEL_BUILDER(Name("ActorPoolStatistics").Device(tensorflow::DEVICE_CPU), StatisticsOp);
REGISTER_KERNEL_BUILDER(Name("ActorPoolClose").Device(tensorflow::DEVICE_CPU), CloseOp);

}  // namespace
}  // namespace scalable_agents
