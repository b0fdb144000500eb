// What tests of the replay of episodes insert, and checks of what they get.
#ifndef SCALABLE_AGENTS_TESTS_REPLAY_CC_EPISODE_REPLAY_TESTING_H_
#define SCALABLE_AGENTS_TESTS_REPLAY_CC_EPISODE_REPLAY_TESTING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "replay/cc/episode_replay.h"
#include "tests/replay/cc/stream_testing.h"

namespace scalable_agents {

constexpr int kReplayedLength = 6;  // Steps of a replayed unroll.

inline EpisodeReplayOptions TestEpisodeOptions(int64_t capacity) {
  EpisodeReplayOptions options;
  options.components = TestComponents();
  options.contents = "of this test";
  options.done = kDone;
  options.is_observed = {false, false, true};
  options.unroll_length = kReplayedLength;
  options.capacity = capacity;
  return options;
}

// Inserts unroll number `index` of `length` steps.
inline Status Insert(const TestStream& stream, EpisodeReplay* replay, int64_t index, int length) {
  return replay->Insert(stream.id(), index, length + 1, TestUnroll(stream, index, length).rows());
}

// The next unroll of one replayer.
inline ReplayedUnroll Next(EpisodeReplay* replay, int64_t key, int64_t step, uint64_t seed = 0) {
  std::vector<ReplayedUnroll> unrolls;
  return replay->Next({key}, {step}, seed, 1, &unrolls).ok() ? unrolls[0] : ReplayedUnroll();
}

// Says whether an unroll is right: '' or what is wrong. streams[id] is the stream with this id.
inline std::string Check(const EpisodeReplay& replay, const ReplayedUnroll& unroll,
                         const std::vector<TestStream>& streams) {
  constexpr int kRows = kReplayedLength + 1;
  if (unroll.parts.empty() || unroll.parts[0].row != 0) return "it does not begin with row 0";
  std::vector<Where> where(kRows);
  std::vector<char> earlier((kStack - 1) * kFrameBytes), newest(kRows * kFrameBytes), done(kRows);
  replay.Read(unroll, kWhere, reinterpret_cast<char*>(where.data()), sizeof(Where));
  replay.ReadEarlier(unroll, kFrame, earlier.data());
  replay.Read(unroll, kFrame, newest.data(), kFrameBytes);
  replay.Read(unroll, kDone, done.data(), 1);
  const std::vector<char> frames = Stacks(earlier, newest, done);
  size_t part = 0;
  for (int i = 0; i < kRows; ++i) {
    const ReplayedUnroll::Part* now = &unroll.parts[part];
    const TestStream* stream = &streams[now->episode->stream_id];
    int64_t row = now->episode->stream_row + now->first_step + i - now->row;
    if (i == now->row && !(i == 0 && now->first_step > 0)) {
      // The episode begins here.
      const int64_t begin = now->episode->stream_row, end = begin + now->episode->num_steps();
      if (!stream->Starts(begin) || !stream->Starts(end))
        return "not an episode: it begins with " + std::to_string(begin);
      for (int64_t other = begin + 1; other < end; ++other) {
        if (stream->Starts(other)) return "another episode begins with row " + std::to_string(other);
      }
    }
    if (where[i].stream != stream->id() || where[i].row != row)
      return "row " + std::to_string(i) + " is from elsewhere";
    if (done[i] != stream->Starts(row)) return "done in row " + std::to_string(i);
    if (i > 0 &&
        row == now->episode->stream_row + now->episode->num_steps()) {  // The next episode's first observation.
      if (++part == unroll.parts.size() || unroll.parts[part].row != i) return "no episode goes on";
      now = &unroll.parts[part];
      if (now->first_step != 0) return "the next episode does not begin with its first step";
      stream = &streams[now->episode->stream_id];
      row = now->episode->stream_row;
    }
    const std::string wrong =
        stream->CheckFrames(row, now->episode->stream_row, frames.data() + i * kFrameBytes * kStack);
    if (!wrong.empty()) return wrong;
  }
  const ReplayedUnroll::Part& last = unroll.parts.back();
  if (part + 1 != unroll.parts.size()) return "a part is not in the unroll";
  if (unroll.next_key != last.episode->key) return "next_key";
  if (unroll.next_step != last.first_step + kReplayedLength - last.row) return "next_step";
  return "";
}

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_TESTS_REPLAY_CC_EPISODE_REPLAY_TESTING_H_
