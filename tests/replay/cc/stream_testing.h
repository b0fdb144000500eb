// The rows of streams, for tests of the replays. Every byte of a row tells where the row comes from.
#ifndef SCALABLE_AGENTS_TESTS_REPLAY_CC_STREAM_TESTING_H_
#define SCALABLE_AGENTS_TESTS_REPLAY_CC_STREAM_TESTING_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "replay/cc/row_store.h"

namespace scalable_agents {

constexpr int kDone = 0, kWhere = 1, kFrame = 2;  // The components.
constexpr int kFrameBytes = 6, kStack = 4, kUnit = 1;

// Where a row comes from.
struct Where {
  int32_t stream, row;
};

inline std::vector<RowComponent> TestComponents() {
  return {{1, 1, 1}, {sizeof(Where), 1, 1}, {kFrameBytes, kStack, kUnit}};
}

inline char FrameByte(int32_t stream, int64_t row, int i) { return 1 + (stream * 31 + row * 7 + i) % 250; }

// The stacks of frames of all rows: of what a replay reads, the frames before row 0 and the newest frame of each row. A
// stack has no frame from before its episode's start.
inline std::vector<char> Stacks(const std::vector<char>& earlier, const std::vector<char>& newest,
                                const std::vector<char>& done) {
  std::vector<char> frames = earlier, stacks(done.size() * kFrameBytes * kStack);
  frames.insert(frames.end(), newest.begin(), newest.end());
  for (int row = 0; row < static_cast<int>(done.size()); ++row) {
    for (int age = 0; age < kStack; ++age) {
      const char* const frame = frames.data() + (kStack - 1 + row - age) * kFrameBytes;
      for (int i = 0; i < kFrameBytes; ++i) stacks[(row * kFrameBytes + i) * kStack + kStack - 1 - age] = frame[i];
      if (age <= row && done[row - age]) break;
    }
  }
  return stacks;
}

// A stream of episodes of given lengths, one after the other, for ever.
class TestStream {
 public:
  TestStream(int32_t id, std::vector<int> episode_lengths) : id_(id), lengths_(std::move(episode_lengths)) {}

  int32_t id() const { return id_; }

  // Whether row number `row` has the first observation of an episode.
  bool Starts(int64_t row) const {
    for (size_t i = 0; row > 0; ++i) row -= lengths_[i % lengths_.size()];
    return row == 0;
  }

  // Says whether a row that was read is right: '' or what is wrong. If it does not exist, it must be zeros, whatever
  // its stack of frames is. Else its episode, or what the segment has of it, began with row `episode`.
  std::string CheckRow(int64_t row, bool exists, int64_t episode, const Where& where, const char* frames) const {
    const std::string at = "row " + std::to_string(row) + ": ";
    if (where.stream != (exists ? id_ : 0)) return at + "stream " + std::to_string(where.stream);
    if (where.row != (exists ? row : 0)) return at + "is row " + std::to_string(where.row);
    return exists ? CheckFrames(row, episode, frames) : "";
  }

  // The same of the stack of frames of a row: '' or what is wrong. It has no frame of rows before row `first`.
  std::string CheckFrames(int64_t row, int64_t first, const char* frames) const {
    for (int age = 0; age < kStack; ++age) {
      for (int i = 0; i < kFrameBytes; ++i) {
        const char want = row - age >= first ? FrameByte(id_, row - age, i) : 0;
        if (frames[i * kStack + kStack - 1 - age] != want) {
          return "row " + std::to_string(row) + ": frame of age " + std::to_string(age) + " is wrong";
        }
      }
    }
    return "";
  }

 private:
  const int32_t id_;
  const std::vector<int> lengths_;
};

// Unroll number `index` of `length` steps of a stream.
class TestUnroll {
 public:
  TestUnroll(const TestStream& stream, int64_t index, int length) {
    for (int64_t row = index * length; row <= (index + 1) * length; ++row) {
      done_.push_back(stream.Starts(row));
      where_.push_back({stream.id(), static_cast<int32_t>(row)});
      for (int i = 0; i < kFrameBytes; ++i) frames_.push_back(FrameByte(stream.id(), row, i));
    }
  }

  // The rows by component.
  std::vector<StridedRows> rows() const {
    return {{done_.data(), 1},
            {reinterpret_cast<const char*>(where_.data()), sizeof(Where)},
            {frames_.data(), kFrameBytes}};
  }

 private:
  std::vector<char> done_, frames_;
  std::vector<Where> where_;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_TESTS_REPLAY_CC_STREAM_TESTING_H_
