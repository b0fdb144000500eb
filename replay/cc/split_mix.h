// A small random number generator: the same seed gives the same draws.
#ifndef SCALABLE_AGENTS_REPLAY_CC_SPLIT_MIX_H_
#define SCALABLE_AGENTS_REPLAY_CC_SPLIT_MIX_H_

#include <cstdint>

namespace scalable_agents {

// The next number of a sequence that `state` determines, uniform in [0, 1). Steele et al. 2014, "Fast splittable
// pseudorandom number generators" (SplitMix64).
inline double NextUniform(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_REPLAY_CC_SPLIT_MIX_H_
