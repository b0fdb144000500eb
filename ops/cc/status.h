// The status of an operation of the C++ core, which uses neither TensorFlow nor absl.
#ifndef SCALABLE_AGENTS_OPS_CC_STATUS_H_
#define SCALABLE_AGENTS_OPS_CC_STATUS_H_

#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace scalable_agents {

enum class StatusCode { kOk, kInvalidArgument, kCancelled, kUnavailable, kResourceExhausted };

class Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }
inline Status Cancelled(std::string message) { return {StatusCode::kCancelled, std::move(message)}; }
inline Status Unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }
inline Status ResourceExhausted(std::string message) { return {StatusCode::kResourceExhausted, std::move(message)}; }

// Returns the result of `work`, or kResourceExhausted if there is not enough memory for it.
template <typename Work>
Status WithMemory(const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("there is not enough memory");
  } catch (const std::length_error&) {  // A container can never hold that much.
    return ResourceExhausted("there is not enough memory");
  }
}

// Returns "what: cause", or "what" alone if `cause` is empty.
inline std::string WithCause(const std::string& what, const std::string& cause) {
  return cause.empty() ? what : what + ": " + cause;
}

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_OPS_CC_STATUS_H_
