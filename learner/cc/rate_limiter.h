// Keeps the number of samples per insert of a replay near a given ratio.
#ifndef SCALABLE_AGENTS_LEARNER_CC_RATE_LIMITER_H_
#define SCALABLE_AGENTS_LEARNER_CC_RATE_LIMITER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "ops/cc/status.h"

namespace scalable_agents {

// Whoever is ahead waits: sampling for new items, or inserting for samples. Thread-safe. No thread blocks: a callback
// is called when the wait ends, on the thread that ends it.
//
// With the credit c = samples_per_insert * (inserted - minimum_size) - sampled:
//   sampling n items needs inserted >= minimum_size and c - n >= -tolerance;
//   inserting needs inserted < minimum_size or c <= tolerance.
// If n <= 2 * tolerance, never both wait.
class RateLimiter {
 public:
  using Callback = std::function<void(const Status&)>;

  struct Options {
    double samples_per_insert = 0;  // 0: neither waits for the other; sampling waits for the first items only.
    int64_t minimum_size = 1;       // Items to be inserted before the first one is sampled.
    double tolerance = 0;           // In samples.
  };

  explicit RateLimiter(const Options& options) : options_(options) {}

  // Calls `callback` when n items may be sampled. They then count as sampled. With an error it has been closed, or n is
  // more than twice the tolerance. Returns an id for Cancel.
  int64_t AwaitSample(int64_t n, Callback callback);

  // Calls `callback` when items may be inserted. Inserted() tells their number afterwards.
  int64_t AwaitInsert(Callback callback);

  // Counts inserted items.
  void Inserted(int64_t n);

  // Forgets a wait. Its callback may still run if this comes too late.
  void Cancel(int64_t id);

  // Ends all waits, also later ones, with kCancelled. `cause` ends the message. Only the first call counts.
  void Close(const std::string& cause);

  struct Counts {
    int64_t inserted = 0, sampled = 0;
  };
  Counts counts() const;

  // Continues with these counts, those of an earlier process.
  void Restore(const Counts& counts);

 private:
  struct Wait {
    int64_t samples;  // 0 for an insert.
    Callback callback;
  };

  int64_t Await(int64_t samples, Callback callback);
  bool IsAllowed(int64_t samples) const;
  // Ends all waits that need not wait any longer, the oldest ones first.
  void EndWaits();

  const Options options_;
  mutable std::mutex mutex_;  // Guards all that follows.
  Counts counts_;
  std::map<int64_t, Wait> waits_;  // By id, so the oldest one is the first.
  int64_t next_id_ = 0;
  bool closed_ = false;
  std::string cause_;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_LEARNER_CC_RATE_LIMITER_H_
