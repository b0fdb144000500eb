// TensorFlow ops of the dynamic batcher. The public Python interface is actor/dynamic_batching.py.
#include <string>
#include <vector>

#include "actor/cc/batcher.h"
#include "ops/cc/op_helpers.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace scalable_agents {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::errors::InvalidArgument;

REGISTER_OP("DynamicBatcher")
    .Output("handle: resource")
    .Attr("minimum_batch_size: int")
    .Attr("maximum_batch_size: int")
    .Attr("timeout_ms: int")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("A queue that groups rows of concurrent callers into batches. timeout_ms < 0: wait for the minimum.");

REGISTER_OP("DynamicBatcherCompute")
    .Input("handle: resource")
    .Input("inputs: input_types")
    .Output("outputs: output_types")
    .Attr("input_types: list(type) >= 1")
    .Attr("output_types: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("Queues one row, [1, ...] each, and waits for its row of the result.");

REGISTER_OP("DynamicBatcherGetInputs")
    .Input("handle: resource")
    .Output("id: int64")
    .Output("inputs: input_types")
    .Attr("input_types: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("Waits for a batch of rows, [n, ...] each.");

REGISTER_OP("DynamicBatcherSetOutputs")
    .Input("handle: resource")
    .Input("id: int64")
    .Input("outputs: output_types")
    .Attr("output_types: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Takes the results of batch `id`, [n, ...] each, and wakes its callers.");

REGISTER_OP("DynamicBatcherClose")
    .Input("handle: resource")
    .Input("cause: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Ends every wait. `cause` ends the error's message.");

constexpr int64_t kLongestTimeoutMs = (int64_t{1} << 31) - 1;  // 24 days. Times in nanoseconds must not overflow.

// A caller's row on its way through the batcher.
struct Row {
  Row(OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done) : pending(context, std::move(done)) {}
  std::vector<Tensor> inputs;
  PendingOp pending;
};

class BatcherResource : public tensorflow::ResourceBase {
 public:
  explicit BatcherResource(const BatcherOptions& options) : batcher(options) {}
  ~BatcherResource() override { Close("the batcher was deleted"); }
  std::string DebugString() const override { return "DynamicBatcher"; }

  void Close(const std::string& cause) {
    for (const auto& row : batcher.Close(cause)) {
      row->pending.Finish(
          [&](OpKernelContext*) { return tensorflow::errors::Cancelled(WithCause("Compute was cancelled", cause)); });
    }
  }

  Batcher<std::shared_ptr<Row>> batcher;
};

class DynamicBatcherOp : public tensorflow::ResourceOpKernel<BatcherResource> {
 public:
  explicit DynamicBatcherOp(OpKernelConstruction* context) : ResourceOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("minimum_batch_size", &options_.minimum_batch_size));
    OP_REQUIRES_OK(context, context->GetAttr("maximum_batch_size", &options_.maximum_batch_size));
    OP_REQUIRES_OK(context, context->GetAttr("timeout_ms", &options_.timeout_ms));
    OP_REQUIRES(context, options_.minimum_batch_size >= 1 && options_.maximum_batch_size >= options_.minimum_batch_size,
                InvalidArgument("batch sizes: want 1 <= minimum <= maximum, got ", options_.minimum_batch_size, " and ",
                                options_.maximum_batch_size));
    OP_REQUIRES(context, options_.timeout_ms <= kLongestTimeoutMs,
                InvalidArgument("timeout_ms: want at most ", kLongestTimeoutMs, ", got ", options_.timeout_ms));
  }

 private:
  absl::Status CreateResource(BatcherResource** resource) override {
    *resource = new BatcherResource(options_);
    return absl::OkStatus();
  }
  BatcherOptions options_;
};

class ComputeOp : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto resource = ResourceOf<BatcherResource>(context);
    if (!resource) return done();
    auto row = std::make_shared<Row>(context, done);
    OpInputList inputs;
    OP_REQUIRES_OK_ASYNC(context, context->input_list("inputs", &inputs), done);
    for (const Tensor& input : inputs) {
      OP_REQUIRES_ASYNC(context, input.dims() >= 1 && input.dim_size(0) == 1,
                        InvalidArgument("Batcher requires batch size 1 but was ",
                                        input.dims() < 1 ? std::string("a scalar") : std::to_string(input.dim_size(0))),
                        done);
      row->inputs.push_back(input);
    }
    // A cancelled row stays in its batch, because the other rows still need it. Its own result is dropped.
    if (!row->pending.Begin([row] {
          row->pending.Finish([](OpKernelContext*) { return tensorflow::errors::Cancelled("Compute was cancelled"); });
        })) {
      return;
    }
    const Status status = resource->batcher.Submit({row});
    if (!status.ok()) row->pending.Finish([&](OpKernelContext*) { return ToTensorFlow(status); });
  }
};

class GetInputsOp : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto resource = ResourceOf<BatcherResource>(context);
    if (!resource) return done();
    auto pending = std::make_shared<PendingOp>(context, done);
    if (!pending->Begin(IfItExists(resource.get(), [pending](BatcherResource* batcher) {
          pending->Finish(
              [](OpKernelContext*) { return tensorflow::errors::Cancelled("GetInputs operation was cancelled"); });
          batcher->Close("GetInputs operation was cancelled");
        }))) {
      return;
    }
    BatcherResource* batcher = resource.get();  // A plain pointer: the batcher owns the callback and outlives it.
    batcher->batcher.Next([batcher, pending](const Status& status, const Batcher<std::shared_ptr<Row>>::Batch& batch) {
      absl::Status result;
      pending->Finish([&](OpKernelContext* context) {
        result = status.ok() ? Concatenate(batch.items, context) : ToTensorFlow(status);
        if (!result.ok()) return result;
        Tensor id(tensorflow::DT_INT64, {});
        id.scalar<int64_t>()() = batch.id;
        context->set_output(0, id);
        return result;
      });
      if (status.ok() && !result.ok()) batcher->Close(std::string(result.message()));
    });
  }

 private:
  static absl::Status Concatenate(const std::vector<std::shared_ptr<Row>>& rows, OpKernelContext* context) {
    OpOutputList outputs;
    TF_RETURN_IF_ERROR(context->output_list("inputs", &outputs));
    for (int i = 0; i < outputs.size(); ++i) {
      std::vector<Tensor> parts;
      for (const auto& row : rows) {
        if (static_cast<int>(row->inputs.size()) != outputs.size() ||
            row->inputs[i].dtype() != outputs.expected_output_dtype(i)) {
          return InvalidArgument("Types of inputs must be equal across the callers of a batch: input ", i);
        }
        if (row->inputs[i].shape() != rows[0]->inputs[i].shape()) {
          return InvalidArgument("Shapes of inputs must be equal across the callers of a batch: input ", i, " is ",
                                 rows[0]->inputs[i].shape().DebugString(), " and ",
                                 row->inputs[i].shape().DebugString());
        }
        parts.push_back(row->inputs[i]);
      }
      Tensor batch;
      TF_RETURN_IF_ERROR(tensorflow::tensor::Concat(parts, &batch));
      outputs.set(i, batch);
    }
    return absl::OkStatus();
  }
};

absl::Status CheckOutputs(int64_t size, int64_t id, const OpInputList& outputs) {
  if (size < 0) return InvalidArgument("Invalid computation id. Id: ", id);
  for (const Tensor& output : outputs) {
    if (output.dims() < 1) return InvalidArgument("Output must have a batch dimension, got a scalar");
    if (output.dim_size(0) != size) {
      return InvalidArgument("Output must have the same batch dimension as the input batch: want ", size, ", got ",
                             output.dim_size(0));
    }
  }
  return absl::OkStatus();
}

absl::Status SetOutputs(OpKernelContext* context, BatcherResource* resource) {
  OpInputList outputs;
  TF_RETURN_IF_ERROR(context->input_list("outputs", &outputs));
  int64_t id;
  TF_RETURN_IF_ERROR(GetScalar(context, "id", &id));
  const absl::Status status = CheckOutputs(resource->batcher.Size(id), id, outputs);
  if (!status.ok()) {
    resource->Close(std::string(status.message()));
    return status;
  }
  tensorflow::DataTypeVector types;
  for (const Tensor& output : outputs) types.push_back(output.dtype());
  const auto rows = resource->batcher.Take(id);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i]->pending.Finish([&](OpKernelContext* caller) {
      TF_RETURN_IF_ERROR(CheckOutputTypes(*caller, types));
      // A copy, since a slice of the batch may lack the alignment that kernels expect.
      for (int j = 0; j < outputs.size(); ++j) {
        caller->set_output(j, tensorflow::tensor::DeepCopy(outputs[j].Slice(i, i + 1)));
      }
      return absl::OkStatus();
    });
  }
  return absl::OkStatus();
}

absl::Status Close(OpKernelContext* context, BatcherResource* resource) {
  tensorflow::tstring cause;
  TF_RETURN_IF_ERROR(GetScalar(context, "cause", &cause));
  resource->Close(cause);
  return absl::OkStatus();
}

REGISTER_KERNEL_BUILDER(Name("DynamicBatcher").Device(tensorflow::DEVICE_CPU), DynamicBatcherOp);
REGISTER_KERNEL_BUILDER(Name("DynamicBatcherCompute").Device(tensorflow::DEVICE_CPU), ComputeOp);
REGISTER_KERNEL_BUILDER(Name("DynamicBatcherGetInputs").Device(tensorflow::DEVICE_CPU), GetInputsOp);
REGISTER_KERNEL_BUILDER(Name("DynamicBatcherSetOutputs").Device(tensorflow::DEVICE_CPU),
                        ResourceOp<BatcherResource, SetOutputs>);
REGISTER_KERNEL_BUILDER(Name("DynamicBatcherClose").Device(tensorflow::DEVICE_CPU), ResourceOp<BatcherResource, Close>);

}  // namespace
}  // namespace scalable_agents
