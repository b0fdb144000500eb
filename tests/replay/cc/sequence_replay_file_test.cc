#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "replay/cc/sequence_replay.h"
#include "tests/replay/cc/file_testing.h"
#include "tests/replay/cc/replay_testing.h"

namespace scalable_agents {
namespace {

constexpr SequenceGeometry kGeometry{4, 8, 4, false, 0};

class SequenceReplayFileTest : public FileTest {
 protected:
  static ReplayOptions Options() { return TestOptions(kGeometry, 30, 0.9); }

  // Fills a replay beyond its capacity, from two lives. A few sequences have no priority yet.
  void Fill(SequenceReplay* replay) {
    for (int index = 0; index < 30; ++index) {
      for (const TestLife* life : {&one_, &two_}) {
        for (const auto& sequence : life->Insert(replay, index, 5)) {
          if (sequence->key % 7 == 0) continue;
          ASSERT_TRUE(replay->Update({sequence->key}, {1. + sequence->key % 5}).ok());
        }
      }
    }
  }

  std::vector<Sampled> SampleOf(SequenceReplay* replay) {
    std::vector<Sampled> sampled;
    EXPECT_TRUE(replay->Sample(50, 7, &sampled).ok());
    return sampled;
  }

  const TestLife one_{1, {1000}}, two_{2, {7, 1, 30, 13}};
};

TEST_F(SequenceReplayFileTest, ARestoredReplayGoesOnWhereTheSavedOneWas) {
  SequenceReplay saved(Options()), restored(Options());
  Fill(&saved);
  SampleOf(&saved);
  ASSERT_TRUE(saved.Save(path_).ok());
  const Status status = restored.Restore(path_);
  ASSERT_TRUE(status.ok()) << status.message();
  const ReplayStatistics was = saved.GetStatistics(), is = restored.GetStatistics();
  EXPECT_EQ(is.size, was.size);
  EXPECT_EQ(is.inserted, was.inserted);
  EXPECT_EQ(is.sampled, was.sampled);
  EXPECT_LE(is.bytes, was.bytes);
  const std::vector<Sampled> want = SampleOf(&saved), got = SampleOf(&restored);
  for (size_t i = 0; i < want.size(); ++i) {
    const Sequence& sequence = *got[i].sequence;
    EXPECT_EQ(sequence.key, want[i].sequence->key);
    EXPECT_EQ(sequence.life_row, want[i].sequence->life_row);
    EXPECT_EQ(got[i].probability, want[i].probability);
    EXPECT_EQ(got[i].age, want[i].age);
    EXPECT_EQ((sequence.life_id == 1 ? one_ : two_).Check(restored, sequence), "");
  }
  // New unrolls of the same lives begin streams of their own, and replace the oldest sequences.
  for (int index = 40; index < 70; ++index) {
    for (const auto& sequence : one_.Insert(&restored, index, 5)) {
      EXPECT_EQ(one_.Check(restored, *sequence, 200), "");
      EXPECT_GE(sequence->key, was.inserted);
    }
  }
  EXPECT_EQ(restored.GetStatistics().size, 30);
}

// A changed format needs another version, or files of earlier versions would be misread.
TEST_F(SequenceReplayFileTest, TheFormatIsThatOfEarlierVersions) {
  SequenceReplay saved(TestOptions(kGeometry, 30, 1));  // With exponent 1, no power is rounded.
  Fill(&saved);
  SampleOf(&saved);
  ASSERT_TRUE(saved.Save(path_).ok());
  EXPECT_EQ(Content().size(), 6245u);
  EXPECT_EQ(Hash(Content()), 16615814833901011631u);
}

TEST_F(SequenceReplayFileTest, AnEmptyReplayCanBeSaved) {
  SequenceReplay saved(Options()), restored(Options());
  ASSERT_TRUE(saved.Save(path_).ok());
  ASSERT_TRUE(restored.Restore(path_).ok());
  EXPECT_EQ(restored.GetStatistics().size, 0);
}

TEST_F(SequenceReplayFileTest, FilesOfVersion1AreRead) {
  SequenceReplay saved(Options()), restored(Options());
  ASSERT_TRUE(saved.Save(path_).ok());
  WriteAsVersion1();
  EXPECT_TRUE(restored.Restore(path_).ok());
  ReplayOptions options = Options();
  options.capacity = 31;
  EXPECT_EQ(SequenceReplay(options).Restore(path_).code(), StatusCode::kInvalidArgument);
}

TEST_F(SequenceReplayFileTest, DamageToTheHeaderIsNotCalledOtherSettings) {
  SequenceReplay saved(Options());
  Fill(&saved);
  ASSERT_TRUE(saved.Save(path_).ok());
  ExpectDamageToTheHeaderIsNamed([&] { return SequenceReplay(Options()).Restore(path_); });
}

TEST_F(SequenceReplayFileTest, EveryDamageIsNoticed) {
  SequenceReplay saved(Options());
  Fill(&saved);
  ASSERT_TRUE(saved.Save(path_).ok());
  ExpectEveryDamageIsNoticed([&] {
    SequenceReplay restored(Options());
    const Status status = restored.Restore(path_);
    EXPECT_EQ(restored.GetStatistics().size, 0);
    EXPECT_EQ(restored.GetStatistics().bytes, 0);
    return status;
  });
}

TEST_F(SequenceReplayFileTest, OtherSettingsAreRefused) {
  SequenceReplay saved(Options());
  ASSERT_TRUE(saved.Save(path_).ok());
  const std::vector<std::function<void(ReplayOptions*)>> changes = {
      [](ReplayOptions* options) { options->capacity = 31; },
      [](ReplayOptions* options) { options->priority_exponent = 0; },
      [](ReplayOptions* options) { options->geometry.period = 3; },
      [](ReplayOptions* options) { options->geometry.cross_episodes = true; },
      [](ReplayOptions* options) { options->state_offsets = {1}; },
      [](ReplayOptions* options) { options->components[kFrame].stack = 2; }};
  for (const auto& change : changes) {
    ReplayOptions options = Options();
    change(&options);
    SequenceReplay other(options);
    const Status status = other.Restore(path_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("other settings"), std::string::npos);
  }
}

TEST_F(SequenceReplayFileTest, OnlyAnEmptyReplayIsRestored) {
  SequenceReplay saved(Options());
  Fill(&saved);
  ASSERT_TRUE(saved.Save(path_).ok());
  EXPECT_EQ(saved.Restore(path_).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(saved.GetStatistics().size, 30);
}

TEST_F(SequenceReplayFileTest, ErrorsOfTheSystemNameTheFile) {
  SequenceReplay replay(Options());
  Fill(&replay);
  Status status = replay.Save("/dev/full");  // Always says that there is no space left.
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "/dev/full: No space left on device");
  status = replay.Save(path_ + "/absent/file");
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  SequenceReplay restored(Options());
  EXPECT_EQ(restored.Restore(path_ + "_absent").code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace scalable_agents
