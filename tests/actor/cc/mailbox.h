// A queue that takes values from callbacks on any thread. A test waits for them.
#ifndef SCALABLE_AGENTS_TESTS_ACTOR_CC_MAILBOX_H_
#define SCALABLE_AGENTS_TESTS_ACTOR_CC_MAILBOX_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace scalable_agents {

// Far longer than any wait takes, even under a sanitizer on a busy machine. After this time a test fails.
constexpr std::chrono::seconds kPatience(30);

template <typename T>
class Mailbox {
 public:
  void Put(T value) {
    std::lock_guard<std::mutex> lock(mutex_);
    values_.push_back(std::move(value));
    arrived_.notify_all();
  }

  // Waits for a value and takes the oldest one. Returns nothing if none comes in time.
  std::optional<T> Wait(std::chrono::milliseconds patience = kPatience) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!arrived_.wait_for(lock, patience, [this] { return !values_.empty(); })) return std::nullopt;
    T value = std::move(values_.front());
    values_.pop_front();
    return value;
  }

  size_t size() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return values_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<T> values_;
};

// Polls until `condition` holds, for conditions without an event. Returns false if it does not hold in time.
inline bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_TESTS_ACTOR_CC_MAILBOX_H_
