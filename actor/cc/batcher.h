// Dynamic batching: groups items that arrive one by one, or a few at a time, into batches for a consumer.
//
// No function blocks. A consumer passes a callback, which runs once, on the thread that completes the batch. That is
// the consumer's own thread if enough items wait already, the thread that submits the last missing item, or the timer.
// The rules of size and time are those of the released agent's batcher (Espeholt et al. 2018, section 5.1, "dynamic
// batching").
#ifndef SCALABLE_AGENTS_ACTOR_CC_BATCHER_H_
#define SCALABLE_AGENTS_ACTOR_CC_BATCHER_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/cc/mutex.h"
#include "ops/cc/status.h"

namespace scalable_agents {

struct BatcherOptions {
  int64_t minimum_batch_size = 1;
  int64_t maximum_batch_size = 1024;
  // After this time a waiting consumer gets the items that are there, if any. Negative: it never gets fewer than the
  // minimum.
  int64_t timeout_ms = -1;
};

// Thread-safe. Item must be cheap to copy, like a shared_ptr: the batcher keeps a copy of each batch until Take().
template <typename Item>
class Batcher {
 public:
  struct Batch {
    int64_t id = -1;
    std::vector<Item> items;
  };
  using OnBatch = std::function<void(const Status&, const Batch&)>;

  explicit Batcher(const BatcherOptions& options) : options_(options) {
    if (options_.timeout_ms > 0) timer_ = std::thread([this] { RunTimer(); });
  }

  ~Batcher() {
    Close("");
    if (timer_.joinable()) timer_.join();
  }

  // Queues items, which enter batches in this order. Returns kCancelled after Close().
  Status Submit(std::vector<Item> items) {
    std::vector<Delivery> deliveries;
    {
      MutexLock lock(mutex_);
      if (closed_) return Cancelled(WithCause("Batcher is closed", cause_));
      for (Item& item : items) queue_.push_back(std::move(item));
      FormBatches(&deliveries);
    }
    Deliver(deliveries);
    return Status();
  }

  // Asks for one batch. Consumers get batches in the order in which they ask. After Close() `on_batch` gets kCancelled.
  void Next(OnBatch on_batch) {
    std::vector<Delivery> deliveries;
    MutexLock lock(mutex_);
    if (closed_) {
      const Status closed = Cancelled(WithCause("Batcher is closed", cause_));
      lock.Unlock();
      on_batch(closed, Batch());
      return;
    }
    const Clock::time_point now = Clock::now();
    waiters_.push_back({std::move(on_batch), now, now + std::chrono::milliseconds(options_.timeout_ms)});
    FormBatches(&deliveries);
    timer_wakes_.notify_one();
    lock.Unlock();
    Deliver(deliveries);
  }

  // Returns the number of items of a batch in flight, -1 for an unknown id.
  int64_t Size(int64_t id) const {
    MutexLock lock(mutex_);
    auto found = in_flight_.find(id);
    return found == in_flight_.end() ? -1 : static_cast<int64_t>(found->second.size());
  }

  // Ends a batch and returns its items. Batches may end in any order. Returns nothing for an unknown id.
  std::vector<Item> Take(int64_t id) {
    MutexLock lock(mutex_);
    auto found = in_flight_.find(id);
    if (found == in_flight_.end()) return {};
    std::vector<Item> items = std::move(found->second);
    in_flight_.erase(found);
    return items;
  }

  // Closes the batcher and ends every wait. Returns the items that are queued or in flight, which the caller must fail.
  // The second call returns nothing.
  std::vector<Item> Close(const std::string& cause) {
    std::vector<Item> orphans;
    std::deque<Waiter> waiters;
    {
      MutexLock lock(mutex_);
      if (closed_) return {};
      closed_ = true;
      cause_ = cause;
      orphans.assign(queue_.begin(), queue_.end());
      for (auto& batch : in_flight_) orphans.insert(orphans.end(), batch.second.begin(), batch.second.end());
      queue_.clear();
      in_flight_.clear();
      for (const Waiter& waiter : waiters_) waiting_ns_ += WaitedNs(waiter);
      waiters.swap(waiters_);
      timer_wakes_.notify_one();
    }
    for (Waiter& waiter : waiters) waiter.on_batch(Cancelled(WithCause("Batcher is closed", cause)), Batch());
    return orphans;
  }

  // Returns the nanoseconds for which consumers have waited for batches, summed over consumers. It includes current
  // waits.
  int64_t waiting_ns() const {
    MutexLock lock(mutex_);
    int64_t sum = waiting_ns_;
    for (const Waiter& waiter : waiters_) sum += WaitedNs(waiter);
    return sum;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiter {
    OnBatch on_batch;
    Clock::time_point since;
    Clock::time_point deadline;
  };
  struct Delivery {
    OnBatch on_batch;
    Batch batch;
  };

  static int64_t WaitedNs(const Waiter& waiter) {
    return std::chrono::nanoseconds(Clock::now() - waiter.since).count();
  }

  // Serves waiters, oldest first, while the queue can fill a batch.
  void FormBatches(std::vector<Delivery>* deliveries) REQUIRES(mutex_) {
    while (!waiters_.empty() && !queue_.empty()) {
      const bool late = options_.timeout_ms >= 0 && Clock::now() >= waiters_.front().deadline;  // At once if 0.
      const bool enough = static_cast<int64_t>(queue_.size()) >= options_.minimum_batch_size;
      if (!enough && !late) return;
      deliveries->push_back({std::move(waiters_.front().on_batch), {next_id_++, {}}});
      waiting_ns_ += WaitedNs(waiters_.front());
      waiters_.pop_front();
      Batch& batch = deliveries->back().batch;
      const int64_t size = std::min<int64_t>(queue_.size(), options_.maximum_batch_size);
      batch.items.assign(queue_.begin(), queue_.begin() + size);
      queue_.erase(queue_.begin(), queue_.begin() + size);
      in_flight_[batch.id] = batch.items;
    }
  }

  static void Deliver(const std::vector<Delivery>& deliveries) {
    for (const Delivery& delivery : deliveries) delivery.on_batch(Status(), delivery.batch);
  }

  // Serves waiters whose deadline has passed. If the queue is empty then, the waiter waits for another timeout.
  void RunTimer() {
    MutexLock lock(mutex_);
    while (!closed_) {
      if (waiters_.empty()) {
        timer_wakes_.wait(lock.lock());
        continue;
      }
      const Clock::time_point deadline = waiters_.front().deadline;
      if (Clock::now() < deadline) {
        timer_wakes_.wait_until(lock.lock(), deadline);
        continue;
      }
      if (queue_.empty()) {
        // Rotation keeps the deadlines in order. The order of waiters does not matter while there are no items.
        Waiter waiter = std::move(waiters_.front());
        waiters_.pop_front();
        waiter.deadline = Clock::now() + std::chrono::milliseconds(options_.timeout_ms);
        waiters_.push_back(std::move(waiter));
        continue;
      }
      std::vector<Delivery> deliveries;
      FormBatches(&deliveries);
      lock.Unlock();
      Deliver(deliveries);
      deliveries.clear();
      lock.Lock();
    }
  }

  const BatcherOptions options_;
  mutable Mutex mutex_;
  std::condition_variable timer_wakes_;
  std::deque<Item> queue_ GUARDED_BY(mutex_);
  std::deque<Waiter> waiters_ GUARDED_BY(mutex_);
  std::map<int64_t, std::vector<Item>> in_flight_ GUARDED_BY(mutex_);  // By batch id.
  int64_t next_id_ GUARDED_BY(mutex_) = 0;
  int64_t waiting_ns_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
  std::string cause_ GUARDED_BY(mutex_);
  std::thread timer_;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_ACTOR_CC_BATCHER_H_
