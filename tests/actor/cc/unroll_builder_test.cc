#include "actor/cc/unroll_builder.h"

#include <gtest/gtest.h>
#include <stddef.h>
#include <string.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace scalable_agents {
namespace {

// The components of these tests' unrolls, in order, and their bytes per row.
enum {
  kLevel,
  kActor,
  kStream,
  kIndex,
  kFirstState,
  kSecondState,
  kReward,
  kPixels,
  kAction,
  kLogit,
  kVersion,
  kComponents
};
constexpr int64_t kBytes[kComponents] = {4, 4, 8, 8, 8, 2, 4, 3, 4, 8, 8};

struct Slot {
  char pixels[3];
  float reward;
};

class UnrollBuilderTest : public testing::Test {
 protected:
  UnrollBuilderTest() {
    layout_.unroll_length = 2;
    layout_.environment_fields = {{offsetof(Slot, reward), 4}, {offsetof(Slot, pixels), 3}};
    layout_.agent_output_bytes = {4, 8};
    layout_.agent_state_bytes = {8, 2};
    decision_ = std::make_unique<Decision>(layout_);
    builder_ = std::make_unique<UnrollBuilder>(&layout_, &allocate_);
  }

  Buffer Allocate(int component) {
    if (allocations_left_-- == 0) return {};
    const int rows = component >= kReward ? layout_.unroll_length + 1 : 1;
    auto memory = std::make_shared<std::vector<char>>(rows * kBytes[component], '\x7f');  // For the sanitizer.
    return {memory->data(), memory};
  }

  // Makes decision number `row`, and appends the environment's output.
  Status Append(int row) {
    const int32_t action = 10 * row;
    const double logit = 0.5 * row;
    const int64_t state = 100 + row;
    memcpy(decision_->output.data(), &action, 4);
    memcpy(decision_->output.data() + 4, &logit, 8);
    memcpy(decision_->state.data(), &state, 8);
    decision_->state[8] = decision_->state[9] = static_cast<char>(row);
    decision_->version = 1000 + row;
    const char number = static_cast<char>(row);
    slot_ = {{number, number, number}, -1.f * row};
    return builder_->Append(tag_, slot(), *decision_);
  }

  // Appends rows until the unroll is full, and takes it.
  Unroll Fill(int* row) {
    while (!builder_->full()) EXPECT_TRUE(Append((*row)++).ok());
    Unroll unroll;
    EXPECT_TRUE(builder_->TakeFull(tag_, slot(), *decision_, &unroll).ok());
    EXPECT_FALSE(builder_->full());
    return unroll;
  }

  const char* slot() const { return reinterpret_cast<const char*>(&slot_); }

  template <typename T>
  static T Get(const Unroll& unroll, int component, int row = 0) {
    T value;
    memcpy(&value, unroll[component].data + row * sizeof(T), sizeof(T));
    return value;
  }

  // Checks that the unroll has rows `first` to `first` + 2, and the ids of its stream.
  static void Check(const Unroll& unroll, int64_t index, int first) {
    ASSERT_EQ(unroll.size(), kComponents);
    EXPECT_EQ(Get<int32_t>(unroll, kLevel), 7);
    EXPECT_EQ(Get<int32_t>(unroll, kActor), 8);
    EXPECT_EQ(Get<int64_t>(unroll, kStream), int64_t{1} << 40);
    EXPECT_EQ(Get<int64_t>(unroll, kIndex), index);
    EXPECT_EQ(Get<int64_t>(unroll, kFirstState), 100 + first);
    EXPECT_EQ(unroll[kSecondState].data[1], first);
    for (int t = 0; t <= 2; ++t) {
      EXPECT_EQ(Get<float>(unroll, kReward, t), -(first + t));
      for (int pixel = 0; pixel < 3; ++pixel) EXPECT_EQ(unroll[kPixels].data[3 * t + pixel], first + t);
      EXPECT_EQ(Get<int32_t>(unroll, kAction, t), 10 * (first + t));
      EXPECT_EQ(Get<double>(unroll, kLogit, t), 0.5 * (first + t));
      EXPECT_EQ(Get<int64_t>(unroll, kVersion, t), 1000 + first + t);
    }
  }

  UnrollLayout layout_;
  StreamTag tag_ = {7, 8, int64_t{1} << 40};
  int allocations_left_ = -1;  // Negative: no limit.
  const UnrollBuilder::Allocate allocate_ = [this](int component) { return Allocate(component); };
  Slot slot_;
  std::unique_ptr<Decision> decision_;
  std::unique_ptr<UnrollBuilder> builder_;
};

TEST_F(UnrollBuilderTest, LayoutNumbersTheComponents) {
  EXPECT_EQ(UnrollLayout::kFirstState, kFirstState);
  EXPECT_EQ(layout_.first_environment(), kReward);
  EXPECT_EQ(layout_.first_output(), kAction);
  EXPECT_EQ(layout_.version(), kVersion);
}

TEST_F(UnrollBuilderTest, UnrollsFollowEachOtherWithTheirIndex) {
  int row = 0;
  for (int index = 0; index < 4; ++index) Check(Fill(&row), index, 2 * index);  // Row 0 repeats the last row.
}

TEST_F(UnrollBuilderTest, DroppedRowsHaveNoIndex) {
  int row = 0;
  Check(Fill(&row), 0, 0);
  builder_->Clear();
  EXPECT_FALSE(builder_->full());
  row = 30;
  Check(Fill(&row), 1, 30);
}

TEST_F(UnrollBuilderTest, RowsHaveTheNewestFrameAndTheUnrollTheFramesBeforeRow0) {
  for (const auto& [stack, unit] : std::vector<std::pair<int, int>>{{4, 1}, {3, 1}, {4, 2}, {2, 6}}) {
    constexpr int kFrameBytes = 12;
    UnrollLayout layout;
    layout.unroll_length = 1;
    layout.environment_fields = {{5, kFrameBytes, stack, unit}};
    layout.agent_output_bytes = {4};
    EXPECT_EQ(layout.first_environment(), layout.first_earlier() + 1);
    const Decision decision(layout);
    const int most_frames = std::max(stack - 1, 2);
    const UnrollBuilder::Allocate allocate = [&](int) {
      auto memory = std::make_shared<std::vector<char>>(most_frames * kFrameBytes);
      return Buffer{memory->data(), memory};
    };
    UnrollBuilder builder(&layout, &allocate);
    std::vector<char> first(5 + kFrameBytes * stack), second(first.size());
    std::vector<std::vector<char>> frames(stack);  // Of the first slot. All bytes of the second slot are larger by 100.
    for (int i = 0; i < kFrameBytes * stack; ++i) {
      first[5 + i] = static_cast<char>(1 + i);
      second[5 + i] = static_cast<char>(101 + i);
      frames[i / unit % stack].push_back(first[5 + i]);
    }
    ASSERT_TRUE(builder.Append(tag_, first.data(), decision).ok());
    ASSERT_TRUE(builder.Append(tag_, second.data(), decision).ok());
    Unroll unroll, next;
    ASSERT_TRUE(builder.TakeFull(tag_, second.data(), decision, &unroll).ok());
    ASSERT_TRUE(builder.Append(tag_, first.data(), decision).ok());
    ASSERT_TRUE(builder.TakeFull(tag_, first.data(), decision, &next).ok());
    for (int i = 0; i < kFrameBytes; ++i) {
      const char newest = frames.back()[i], later = static_cast<char>(newest + 100);
      const char* const of_rows = unroll[layout.first_environment()].data;
      EXPECT_EQ(of_rows[i], newest);
      EXPECT_EQ(of_rows[kFrameBytes + i], later);
      EXPECT_EQ(next[layout.first_environment()].data[i], later);
      EXPECT_EQ(next[layout.first_environment()].data[kFrameBytes + i], newest);
      for (int frame = 0; frame < stack - 1; ++frame) {
        const int place = frame * kFrameBytes + i;
        EXPECT_EQ(unroll[layout.first_earlier()].data[place], frames[frame][i]);
        EXPECT_EQ(next[layout.first_earlier()].data[place], static_cast<char>(frames[frame][i] + 100));
      }
    }
  }
}

TEST_F(UnrollBuilderTest, FirstDecisionIsZero) {
  EXPECT_EQ(decision_->output, std::vector<char>(12));
  EXPECT_EQ(decision_->state, std::vector<char>(10));
  EXPECT_EQ(decision_->version, 0);
}

TEST_F(UnrollBuilderTest, NoMemoryForTheFirstUnroll) {
  allocations_left_ = kComponents - 1;
  const Status status = Append(0);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "there is not enough memory for another unroll of 2 steps");
  allocations_left_ = -1;
  int row = 0;
  Check(Fill(&row), 0, 0);  // The failed attempt left no rows.
}

TEST_F(UnrollBuilderTest, NoMemoryForTheNextUnroll) {
  for (int row = 0; row < 3; ++row) ASSERT_TRUE(Append(row).ok());
  allocations_left_ = 0;
  Unroll unroll;
  EXPECT_EQ(builder_->TakeFull(tag_, slot(), *decision_, &unroll).code(), StatusCode::kResourceExhausted);
}

TEST_F(UnrollBuilderTest, MemoryThatCannotBeAllocatedIsAnError) {
  const UnrollBuilder::Allocate allocate = [](int) -> Buffer { throw std::bad_alloc(); };
  UnrollBuilder builder(&layout_, &allocate);
  const Slot slot = {};
  EXPECT_EQ(builder.Append(tag_, reinterpret_cast<const char*>(&slot), *decision_).code(),
            StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace scalable_agents
