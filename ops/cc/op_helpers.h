// Helpers for kernels: the conversion of statuses, ops that wait, and the lookup of resources.
#ifndef SCALABLE_AGENTS_OPS_CC_OP_HELPERS_H_
#define SCALABLE_AGENTS_OPS_CC_OP_HELPERS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "ops/cc/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/errors.h"

namespace scalable_agents {

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

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_OPS_CC_OP_HELPERS_H_
