// What tests of the replay of episodes insert, and checks of what they get.
#ifndef SCALABLE_AGENTS_TESTS_LEARNER_CC_EPISODE_REPLAY_TESTING_H_
#define SCALABLE_AGENTS_TESTS_LEARNER_CC_EPISODE_REPLAY_TESTING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "learner/cc/episode_replay.h"
#include "tests/learner/cc/life_testing.h"

namespace scalable_agents {

constexpr int kReplayedLength = 6;  // Steps of a replayed unroll.

inline EpisodeReplayOptions TestEpisodeOptions(int64_t capacity) {
  EpisodeReplayOptions options;
  options.components = TestComponents();
  options.done = kDone;
  options.unroll_length = kReplayedLength;
  options.capacity = capacity;
  return options;
}

// Inserts unroll number `index` of `length` steps.
inline Status Insert(const Life& life, EpisodeReplay* replay, int64_t index, int length) {
  return replay->Insert(life.id(), index, length + 1, LivedUnroll(life, index, length).rows());
}

// The next unroll of one replayer.
inline ReplayedUnroll Next(EpisodeReplay* replay, int64_t key, int64_t step, uint64_t seed = 0) {
  std::vector<ReplayedUnroll> unrolls;
  return replay->Next({key}, {step}, seed, &unrolls).ok() ? unrolls[0] : ReplayedUnroll();
}

// Says whether an unroll of this life is right: '' or what is wrong.
inline std::string Check(const EpisodeReplay& replay, const ReplayedUnroll& unroll, const Life& life) {
  constexpr int kRows = kReplayedLength + 1;
  const Episode& episode = *unroll.episode;
  const int64_t begin = episode.life_row, end = begin + episode.num_steps();
  if (!life.Starts(begin) || !life.Starts(end)) return "not an episode: it begins with row " + std::to_string(begin);
  for (int64_t row = begin + 1; row < end; ++row) {
    if (life.Starts(row)) return "another episode begins with row " + std::to_string(row);
  }
  if (unroll.first_step >= episode.num_steps()) return "no step";
  std::vector<Where> where(kRows);
  std::vector<char> frames(kRows * kFrameBytes * kStack);
  replay.Read(unroll, kWhere, reinterpret_cast<char*>(where.data()), sizeof(Where));
  replay.Read(unroll, kFrame, frames.data(), kFrameBytes * kStack);
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = begin + unroll.first_step + i;
    if (i > 0 && unroll.Trains(i - 1) != (row <= end)) return "trains " + std::to_string(i - 1);
    const std::string wrong = life.CheckRow(row, row <= end, row == end ? end : begin, where[i],
                                            frames.data() + i * kFrameBytes * kStack);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_TESTS_LEARNER_CC_EPISODE_REPLAY_TESTING_H_
