// Helpers for kernels: the conversion of statuses, ops that wait, ops of a resource, inputs and outputs.
#ifndef SCALABLE_AGENTS_OPS_CC_OP_HELPERS_H_
#define SCALABLE_AGENTS_OPS_CC_OP_HELPERS_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ops/cc/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/errors.h"

namespace scalable_agents {

// The largest number of steps, environments or unrolls that ops take. One more row still fits into an int.
constexpr int64_t kMaximumCount = (int64_t{1} << 31) - 2;

inline absl::Status ToTensorFlow(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return absl::OkStatus();
    case StatusCode::kInvalidArgument:
      return tensorflow::errors::InvalidArgument(status.message());
    case StatusCode::kCancelled:
      return tensorflow::errors::Cancelled(status.message());
    case StatusCode::kUnavailable:
      return tensorflow::errors::Unavailable(status.message());
    case StatusCode::kResourceExhausted:
      return tensorflow::errors::ResourceExhausted(status.message());
  }
  return tensorflow::errors::Internal("unknown status code");
}

// An asynchronous op that ends with its result or its cancellation, whichever is first.
class PendingOp {
 public:
  PendingOp(tensorflow::OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done)
      : context_(context), done_(std::move(done)), cancellation_(context->cancellation_manager()) {}

  // Registers `on_cancel` to be called if the step is cancelled. If the step is cancelled already, ends the op and
  // returns false.
  bool Begin(std::function<void()> on_cancel) {
    if (cancellation_ == nullptr) return true;
    token_ = cancellation_->get_cancellation_token();
    if (cancellation_->RegisterCallback(token_, std::move(on_cancel))) return true;
    cancellation_ = nullptr;
    Finish([](tensorflow::OpKernelContext*) { return tensorflow::errors::Cancelled("the step was cancelled"); });
    return false;
  }

  // Ends the op with the status that `produce` returns. If the op has ended already, does not call `produce`.
  void Finish(const std::function<absl::Status(tensorflow::OpKernelContext*)>& produce) {
    if (finished_.exchange(true)) return;
    // This does not wait for a running `on_cancel`, which may be the caller.
    if (cancellation_ != nullptr) cancellation_->TryDeregisterCallback(token_);
    const absl::Status status = produce(context_);
    if (!status.ok()) context_->SetStatus(status);
    done_();
  }

 private:
  tensorflow::OpKernelContext* const context_;
  const tensorflow::AsyncOpKernel::DoneCallback done_;
  tensorflow::CancellationManager* cancellation_;
  tensorflow::CancellationToken token_ = 0;
  std::atomic<bool> finished_{false};
};

// Returns the resource of input 0 as a shared pointer, so that callbacks may keep it. If the resource no longer exists,
// returns null and sets the context's status.
template <typename Resource>
std::shared_ptr<Resource> ResourceOf(tensorflow::OpKernelContext* context) {
  Resource* resource = nullptr;
  const absl::Status status = tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), &resource);
  if (!status.ok()) {
    context->SetStatus(status);
    return nullptr;
  }
  return std::shared_ptr<Resource>(resource, [](Resource* held) { held->Unref(); });
}

// Returns a function that calls `work` with the resource, if it still exists. It does not keep the resource. An op that
// waits passes it to PendingOp::Begin: the thread that ends the wait may belong to the resource, and must not be the
// one that deletes it, because the resource's destructor waits for that thread.
template <typename Resource, typename Work>
std::function<void()> IfItExists(Resource* resource, Work work) {
  return [weak = tensorflow::core::WeakPtr<Resource>(resource), work] {
    if (auto held = weak.GetNewRef()) work(held.get());
  };
}

// An op that calls Run(context, resource) with the resource of input 0.
template <typename Resource, absl::Status (*Run)(tensorflow::OpKernelContext*, Resource*)>
class ResourceOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    auto resource = ResourceOf<Resource>(context);
    if (!resource) return;
    absl::Status result;
    const Status memory = WithMemory([&] {
      result = Run(context, resource.get());
      return Status();
    });
    OP_REQUIRES_OK(context, memory.ok() ? result : ToTensorFlow(memory));
  }
};

// Reads an input that must be a scalar.
template <typename T>
absl::Status GetScalar(tensorflow::OpKernelContext* context, const char* name, T* scalar) {
  const tensorflow::Tensor* input;
  TF_RETURN_IF_ERROR(context->input(name, &input));
  if (input->NumElements() != 1) {
    return tensorflow::errors::InvalidArgument(name, ": want a scalar, got ", input->shape().DebugString());
  }
  *scalar = input->flat<T>()(0);
  return absl::OkStatus();
}

// Checks that an input is a vector of a given size.
inline absl::Status CheckVector(tensorflow::OpKernelContext* context, const char* name, int64_t size) {
  const tensorflow::Tensor* vector;
  TF_RETURN_IF_ERROR(context->input(name, &vector));
  if (vector->shape() == tensorflow::TensorShape({size})) return absl::OkStatus();
  return tensorflow::errors::InvalidArgument(name, ": want [", size, "], got ", vector->shape().DebugString());
}

// Checks that the caller of an op has asked for outputs of these types.
inline absl::Status CheckOutputTypes(const tensorflow::OpKernelContext& context,
                                     const tensorflow::DataTypeVector& types) {
  const tensorflow::DataTypeVector& asked = context.op_kernel().output_types();
  if (asked == types) return absl::OkStatus();
  return tensorflow::errors::InvalidArgument("outputs: want ", tensorflow::DataTypeSliceString(types), ", got ",
                                             tensorflow::DataTypeSliceString(asked));
}

// Makes output 0 a vector of these numbers.
inline absl::Status SetCounts(tensorflow::OpKernelContext* context, const std::vector<int64_t>& counts) {
  tensorflow::Tensor* output;
  TF_RETURN_IF_ERROR(
      context->allocate_output(0, tensorflow::TensorShape({static_cast<int64_t>(counts.size())}), &output));
  std::copy(counts.begin(), counts.end(), output->vec<int64_t>().data());
  return absl::OkStatus();
}

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_OPS_CC_OP_HELPERS_H_
