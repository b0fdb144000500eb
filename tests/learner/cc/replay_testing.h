// Unrolls for tests of the replay. Every byte of a row tells where the row comes from.
#ifndef SCALABLE_AGENTS_TESTS_LEARNER_CC_REPLAY_TESTING_H_
#define SCALABLE_AGENTS_TESTS_LEARNER_CC_REPLAY_TESTING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "learner/cc/sequence_replay.h"

namespace scalable_agents {

constexpr int kDone = 0, kWhere = 1, kFrame = 2;      // The components.
constexpr int kFrameBytes = 6, kStack = 4, kUnit = 1;

// Where a row comes from.
struct Where {
  int32_t life, row;
};

inline ReplayOptions TestOptions(const SequenceGeometry& geometry, int64_t capacity, double priority_exponent = 1) {
  ReplayOptions options;
  options.components = {{1, 1, 1}, {sizeof(Where), 1, 1}, {kFrameBytes, kStack, kUnit}};
  options.done = kDone;
  options.state_bytes = {sizeof(Where), 2};
  options.state_offsets = {0};
  options.geometry = geometry;
  options.capacity = capacity;
  options.priority_exponent = priority_exponent;
  return options;
}

inline char FrameByte(int32_t life, int64_t row, int i) { return 1 + (life * 31 + row * 7 + i) % 250; }

// An actor that lives episodes of given lengths, one after the other, for ever.
class TestLife {
 public:
  TestLife(int32_t life, std::vector<int> episode_lengths) : life_(life), lengths_(std::move(episode_lengths)) {}

  // Whether row number `row` has the first observation of an episode.
  bool Starts(int64_t row) const {
    for (size_t i = 0; row > 0; ++i) row -= lengths_[i % lengths_.size()];
    return row == 0;
  }

  // Inserts unroll number `index` of `length` steps. Returns the new sequences.
  std::vector<std::shared_ptr<const Sequence>> Insert(SequenceReplay* replay, int64_t index, int length) const {
    std::vector<char> done, frames;
    std::vector<Where> where, state;
    std::vector<int16_t> state2;
    for (int64_t row = index * length; row <= (index + 1) * length; ++row) {
      done.push_back(Starts(row));
      where.push_back({life_, static_cast<int32_t>(row)});
      for (int i = 0; i < kFrameBytes; ++i) frames.push_back(FrameByte(life_, row, i));
      state.push_back({life_, static_cast<int32_t>(row - 1)});  // The state before the row before.
      state2.push_back(row - 1);
    }
    NewUnroll unroll;
    unroll.life_id = life_;
    unroll.index = index;
    unroll.num_rows = length + 1;
    unroll.rows = {{done.data(), 1},
                   {reinterpret_cast<const char*>(where.data()), sizeof(Where)},
                   {frames.data(), kFrameBytes}};
    unroll.starts_episode = unroll.rows[kDone];
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

  // Says whether every row, frame and state of a sequence of this life is right: '' or what is wrong. `stream_row` is
  // the row of the life with which its stream began.
  std::string Check(const SequenceReplay& replay, const Sequence& sequence, int64_t stream_row = 0) const {
    const SequenceGeometry& geometry = replay.options().geometry;
    std::vector<Where> where(geometry.num_rows());
    replay.Read(sequence, kWhere, 0, geometry.num_rows(), reinterpret_cast<char*>(where.data()), sizeof(Where));
    std::vector<char> frames(geometry.num_rows() * kFrameBytes * kStack);
    replay.Read(sequence, kFrame, 0, geometry.num_rows(), frames.data(), kFrameBytes * kStack);
    int64_t episode = -1;  // The row in which the episode of the last row began.
    for (int offset = 0; offset < geometry.num_rows(); ++offset) {
      const int64_t row = sequence.life_row + offset;
      const int64_t place = sequence.first + offset;
      const bool exists = place >= sequence.rows.begin() && place < sequence.rows.end();
      const std::string at = "row " + std::to_string(row) + ": ";
      if (where[offset].life != (exists ? life_ : 0)) return at + "life " + std::to_string(where[offset].life);
      if (where[offset].row != (exists ? row : 0)) return at + "is row " + std::to_string(where[offset].row);
      if (exists) {
        for (episode = row; !Starts(episode) && episode > stream_row;) --episode;
      }
      for (int age = 0; age < kStack; ++age) {
        for (int i = 0; i < kFrameBytes; ++i) {
          const char got = frames[(offset * kFrameBytes + i) * kStack + kStack - 1 - age];
          const char want = exists && row - age >= episode ? FrameByte(life_, row - age, i) : 0;
          if (got != want) return at + "frame of age " + std::to_string(age) + " is wrong";
        }
      }
    }
    if (sequence.first >= sequence.rows.begin()) {  // Otherwise the burn-in is padding, and there is no state.
      Where state;
      int16_t state2;
      replay.ReadState(sequence, 0, 0, reinterpret_cast<char*>(&state));
      replay.ReadState(sequence, 0, 1, reinterpret_cast<char*>(&state2));
      if (state.life != life_ || state.row != sequence.life_row) return "state of row " + std::to_string(state.row);
      if (state2 != static_cast<int16_t>(sequence.life_row)) return "second field of the state";
    }
    return "";
  }

 private:
  const int32_t life_;
  const std::vector<int> lengths_;
  mutable Status status_;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_TESTS_LEARNER_CC_REPLAY_TESTING_H_
