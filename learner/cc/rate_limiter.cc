#include "learner/cc/rate_limiter.h"

#include <utility>
#include <vector>

namespace scalable_agents {

int64_t RateLimiter::AwaitSample(int64_t n, Callback callback) {
  if (options_.samples_per_insert > 0 && n > 2 * options_.tolerance) {
    callback(InvalidArgument("a batch of " + std::to_string(n) + " items is more than twice the tolerance of " +
                             std::to_string(options_.tolerance) + " samples, so it might wait for ever"));
    return -1;
  }
  return Await(n, std::move(callback));
}

int64_t RateLimiter::AwaitInsert(Callback callback) { return Await(0, std::move(callback)); }

int64_t RateLimiter::Await(int64_t samples, Callback callback) {
  Status status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) {
      status = Cancelled(WithCause("The replay is closed", cause_));
    } else if (!IsAllowed(samples)) {
      waits_[next_id_] = {samples, std::move(callback)};
      return next_id_++;
    } else {
      counts_.sampled += samples;
    }
  }
  callback(status);
  if (samples > 0) EndWaits();  // It may have been what an insert waits for.
  return -1;
}

bool RateLimiter::IsAllowed(int64_t samples) const {
  const bool is_filling = counts_.inserted < options_.minimum_size;
  if (samples > 0 && is_filling) return false;
  if (is_filling || options_.samples_per_insert <= 0) return true;
  const double credit = options_.samples_per_insert * (counts_.inserted - options_.minimum_size) - counts_.sampled;
  return samples > 0 ? credit - samples >= -options_.tolerance : credit <= options_.tolerance;
}

void RateLimiter::Inserted(int64_t n) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    counts_.inserted += n;
  }
  EndWaits();
}

void RateLimiter::EndWaits() {
  std::vector<Callback> ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = waits_.begin(); it != waits_.end();) {
      if (!IsAllowed(it->second.samples)) {
        ++it;
        continue;
      }
      counts_.sampled += it->second.samples;
      ended.push_back(std::move(it->second.callback));
      waits_.erase(it);
      it = waits_.begin();  // A sample may be what an older insert waits for.
    }
  }
  for (const Callback& callback : ended) callback(Status());
}

void RateLimiter::Cancel(int64_t id) {
  Callback dropped;  // Destroyed after the lock is released.
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = waits_.find(id);
  if (it == waits_.end()) return;
  dropped = std::move(it->second.callback);
  waits_.erase(it);
}

void RateLimiter::Close(const std::string& cause) {
  std::map<int64_t, Wait> ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    closed_ = true;
    cause_ = cause;
    ended.swap(waits_);
  }
  const Status status = Cancelled(WithCause("The replay is closed", cause));
  for (const auto& id_and_wait : ended) id_and_wait.second.callback(status);
}

RateLimiter::Counts RateLimiter::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

void RateLimiter::Restore(const Counts& counts) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    counts_ = counts;
  }
  EndWaits();
}

}  // namespace scalable_agents
