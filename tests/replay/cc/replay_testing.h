// Unrolls for tests of the replay of sequences.
#ifndef SCALABLE_AGENTS_TESTS_REPLAY_CC_REPLAY_TESTING_H_
#define SCALABLE_AGENTS_TESTS_REPLAY_CC_REPLAY_TESTING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "replay/cc/sequence_replay.h"
#include "tests/replay/cc/stream_testing.h"

namespace scalable_agents {

inline ReplayOptions TestOptions(const SequenceGeometry& geometry, int64_t capacity, double priority_exponent = 1) {
  ReplayOptions options;
  options.components = TestComponents();
  options.contents = "of this test";
  options.done = kDone;
  options.state_bytes = {sizeof(Where), 2};
  options.state_offsets = {0};
  options.geometry = geometry;
  options.capacity = capacity;
  options.priority_exponent = priority_exponent;
  return options;
}

// A TestStream that inserts its unrolls into a replay of sequences.
class SequenceStream : public TestStream {
 public:
  using TestStream::TestStream;

  // Inserts unroll number `index` of `length` steps. Returns the new sequences. If a life is lost in row `lost_life` of
  // the stream, an episode begins there, and the game goes on.
  std::vector<std::shared_ptr<const Sequence>> Insert(SequenceReplay* replay, int64_t index, int length,
                                                      int64_t lost_life = -1) const {
    std::vector<Where> state;
    std::vector<int16_t> state2;
    for (int64_t row = index * length; row <= (index + 1) * length; ++row) {
      state.push_back({id(), static_cast<int32_t>(row - 1)});  // The state before the row before.
      state2.push_back(row - 1);
    }
    const TestUnroll lived(*this, index, length);
    NewUnroll unroll;
    unroll.stream_id = id();
    unroll.index = index;
    unroll.num_rows = length + 1;
    unroll.rows = lived.rows();
    unroll.rows.resize(replay->options().components.size(), unroll.rows[0]);
    std::vector<char> starts;
    for (int i = 0; i <= length; ++i) starts.push_back(*unroll.rows[kDone].row(i) || index * length + i == lost_life);
    unroll.starts_episode = {starts.data(), 1};
    if (replay->options().geometry.cross_episodes) {
      unroll.first_step = index * length;
    } else {
      while (!Starts(index * length - unroll.first_step)) ++unroll.first_step;
    }
    unroll.states = {{reinterpret_cast<const char*>(state.data()), sizeof(Where)},
                     {reinterpret_cast<const char*>(state2.data()), 2}};
    std::vector<std::shared_ptr<const Sequence>> inserted;
    status_ = replay->Insert(unroll, &inserted);
    return inserted;
  }

  const Status& status() const { return status_; }  // Of the last insertion.

  // Says whether every row, frame and state of a sequence of this stream is right: '' or what is wrong. `segment_row`
  // is the row of the stream with which its segment began.
  std::string Check(const SequenceReplay& replay, const Sequence& sequence, int64_t segment_row = 0) const {
    const SequenceGeometry& geometry = replay.options().geometry;
    std::vector<Where> where(geometry.num_rows());
    replay.Read(sequence, kWhere, 0, geometry.num_rows(), reinterpret_cast<char*>(where.data()), sizeof(Where));
    std::vector<char> earlier((kStack - 1) * kFrameBytes), newest(geometry.num_rows() * kFrameBytes),
        done(geometry.num_rows());
    replay.ReadEarlier(sequence, kFrame, earlier.data());
    replay.Read(sequence, kFrame, 0, geometry.num_rows(), newest.data(), kFrameBytes);
    replay.Read(sequence, kDone, 0, geometry.num_rows(), done.data(), 1);
    const std::vector<char> frames = Stacks(earlier, newest, done);
    int64_t episode = -1;  // The row in which the episode of the last row began.
    for (int offset = 0; offset < geometry.num_rows(); ++offset) {
      const int64_t row = sequence.stream_row + offset;
      const int64_t place = sequence.first + offset;
      const bool exists = place >= sequence.rows.begin() && place < sequence.rows.end();
      if (exists) {
        for (episode = row; !Starts(episode) && episode > segment_row;) --episode;
      }
      const std::string wrong =
          CheckRow(row, exists, episode, where[offset], frames.data() + offset * kFrameBytes * kStack);
      if (!wrong.empty()) return wrong;
    }
    Where state;
    int16_t state2;
    replay.ReadState(sequence, 0, 0, reinterpret_cast<char*>(&state));
    replay.ReadState(sequence, 0, 1, reinterpret_cast<char*>(&state2));
    const bool is_padded = sequence.first < sequence.rows.begin();  // Then there is no state.
    const int64_t row = is_padded ? 0 : sequence.stream_row;
    if (state.stream != (is_padded ? 0 : id()) || state.row != row) return "state of row " + std::to_string(state.row);
    return state2 == static_cast<int16_t>(row) ? "" : "second field of the state";
  }

 private:
  mutable Status status_;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_TESTS_REPLAY_CC_REPLAY_TESTING_H_
