// Keeps the samples of a replay in proportion to what is inserted.
#ifndef SCALABLE_AGENTS_REPLAY_CC_RATE_LIMIT_H_
#define SCALABLE_AGENTS_REPLAY_CC_RATE_LIMIT_H_

#include <cstdint>

namespace scalable_agents {

// Says whether inserting or sampling is ahead. If no batch has more than 2 * tolerance items, never both are. But a
// replay may lack items to sample while inserting is ahead, so SequenceReplay::MayInsert does not ask this limit alone.
struct RateLimit {
  double samples_per_insert = 0;  // 0: neither waits for the other.
  double tolerance = 0;           // Samples by which either may be ahead.
  int64_t minimum_size = 1;       // Items that must have been inserted before the first sample.

  // The samples by which inserting is ahead. It is 0 when exactly the minimum size has been inserted.
  double Lead(int64_t inserted, int64_t sampled) const {
    return samples_per_insert * static_cast<double>(inserted - minimum_size) - static_cast<double>(sampled);
  }
  bool MayInsert(int64_t inserted, int64_t sampled) const {
    return samples_per_insert == 0 || Lead(inserted, sampled) <= tolerance;
  }
  // Whether n more items may be sampled.
  bool MaySample(int64_t n, int64_t inserted, int64_t sampled) const {
    return samples_per_insert == 0 || Lead(inserted, sampled + n) >= -tolerance;
  }
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_REPLAY_CC_RATE_LIMIT_H_
