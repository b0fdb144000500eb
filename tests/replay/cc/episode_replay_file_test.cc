#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "replay/cc/episode_replay.h"
#include "tests/replay/cc/episode_replay_testing.h"
#include "tests/replay/cc/file_testing.h"

namespace scalable_agents {
namespace {

constexpr int64_t kCapacity = 100;

class EpisodeReplayFileTest : public FileTest {
 protected:
  // Fills a replay beyond its capacity, from two lives.
  void Fill(EpisodeReplay* replay) const {
    for (int index = 0; index < 30; ++index) {
      for (const Life& life : lives_) ASSERT_TRUE(Insert(life, replay, index, 5).ok());
    }
    std::vector<ReplayedUnroll> unrolls;
    ASSERT_TRUE(replay->Next({-1, -1, -1}, {0, 0, 0}, 0, 1, &unrolls).ok());
  }

  const std::vector<Life> lives_ = {{0, {26}}, {1, {7, 1, 30, 13}}};
};

TEST_F(EpisodeReplayFileTest, ARestoredReplayGoesOnWhereTheSavedOneWas) {
  EpisodeReplay saved(TestEpisodeOptions(kCapacity)), restored(TestEpisodeOptions(kCapacity));
  Fill(&saved);
  ASSERT_TRUE(saved.Save(path_).ok());
  const Status status = restored.Restore(path_);
  ASSERT_TRUE(status.ok()) << status.message();
  const EpisodeReplayStatistics was = saved.GetStatistics(), is = restored.GetStatistics();
  EXPECT_EQ(is.steps, was.steps);
  EXPECT_EQ(is.episodes, was.episodes);
  EXPECT_EQ(is.inserted_steps, was.inserted_steps);
  EXPECT_EQ(is.inserted_episodes, was.inserted_episodes);
  EXPECT_EQ(is.replayed_unrolls, was.replayed_unrolls);
  EXPECT_EQ(is.streams, 0);
  EXPECT_LE(is.bytes, was.bytes);
  // The same positions give the same unrolls, whether they are valid or not.
  std::vector<int64_t> keys, steps;
  for (int64_t key = 0; key < was.inserted_episodes; ++key) {
    for (int64_t step : {0, 6, 12, 24}) {
      keys.push_back(key);
      steps.push_back(step);
    }
  }
  std::vector<ReplayedUnroll> want, got;
  ASSERT_TRUE(saved.Next(keys, steps, 7, 1, &want).ok());
  ASSERT_TRUE(restored.Next(keys, steps, 7, 1, &got).ok());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].parts.size(), want[i].parts.size());
    for (size_t j = 0; j < want[i].parts.size(); ++j) {
      EXPECT_EQ(got[i].parts[j].episode->key, want[i].parts[j].episode->key);
      EXPECT_EQ(got[i].parts[j].episode->life_row, want[i].parts[j].episode->life_row);
      EXPECT_EQ(got[i].parts[j].first_step, want[i].parts[j].first_step);
    }
    EXPECT_EQ(Check(restored, got[i], lives_), "");
  }
  // New unrolls of the same lives begin streams of their own, and the oldest episodes make room.
  for (int index = 40; index < 70; ++index) Insert(lives_[0], &restored, index, 5);
  EXPECT_EQ(restored.GetStatistics().steps, 3 * 26);
  const ReplayedUnroll first = Next(&restored, was.inserted_episodes, 0);
  EXPECT_EQ(restored.GetStatistics().inserted_episodes, was.inserted_episodes + 5);
  EXPECT_EQ(Check(restored, first, lives_), "");
}

TEST_F(EpisodeReplayFileTest, AnotherLengthOfUnrollsMayReadTheFile) {
  EpisodeReplayOptions options = TestEpisodeOptions(kCapacity);
  EpisodeReplay saved(options);
  Fill(&saved);
  ASSERT_TRUE(saved.Save(path_).ok());
  options.unroll_length = 3;
  EpisodeReplay restored(options);
  EXPECT_TRUE(restored.Restore(path_).ok());
  EXPECT_EQ(restored.GetStatistics().steps, saved.GetStatistics().steps);
}

// A changed format needs another version, or files of earlier versions would be misread.
TEST_F(EpisodeReplayFileTest, TheFormatIsThatOfEarlierVersions) {
  EpisodeReplay saved(TestEpisodeOptions(kCapacity));
  Fill(&saved);
  ASSERT_TRUE(saved.Save(path_).ok());
  EXPECT_EQ(Content().size(), 1991u);
  EXPECT_EQ(Hash(Content()), 14187686825889569598u);
}

TEST_F(EpisodeReplayFileTest, AnEmptyReplayCanBeSaved) {
  EpisodeReplay saved(TestEpisodeOptions(kCapacity)), restored(TestEpisodeOptions(kCapacity));
  Insert(lives_[0], &saved, 0, 5);  // Rows of an episode that is not complete.
  ASSERT_TRUE(saved.Save(path_).ok());
  ASSERT_TRUE(restored.Restore(path_).ok());
  EXPECT_EQ(restored.GetStatistics().episodes, 0);
  EXPECT_EQ(restored.GetStatistics().rows, 0);
}

TEST_F(EpisodeReplayFileTest, FilesOfVersion1AreRead) {
  EpisodeReplay saved(TestEpisodeOptions(kCapacity)), restored(TestEpisodeOptions(kCapacity));
  ASSERT_TRUE(saved.Save(path_).ok());
  WriteAsVersion1();
  EXPECT_TRUE(restored.Restore(path_).ok());
  EpisodeReplayOptions options = TestEpisodeOptions(kCapacity);
  options.capacity = 101;
  EXPECT_EQ(EpisodeReplay(options).Restore(path_).code(), StatusCode::kInvalidArgument);
}

TEST_F(EpisodeReplayFileTest, DamageToTheHeaderIsNotCalledOtherSettings) {
  EpisodeReplay saved(TestEpisodeOptions(kCapacity));
  Fill(&saved);
  ASSERT_TRUE(saved.Save(path_).ok());
  ExpectDamageToTheHeaderIsNamed([&] { return EpisodeReplay(TestEpisodeOptions(kCapacity)).Restore(path_); });
}

TEST_F(EpisodeReplayFileTest, EveryDamageIsNoticed) {
  EpisodeReplay saved(TestEpisodeOptions(kCapacity));
  Fill(&saved);
  ASSERT_TRUE(saved.Save(path_).ok());
  ExpectEveryDamageIsNoticed([&] {
    EpisodeReplay restored(TestEpisodeOptions(kCapacity));
    const Status status = restored.Restore(path_);
    EXPECT_EQ(restored.GetStatistics().episodes, 0);
    EXPECT_EQ(restored.GetStatistics().bytes, 0);
    return status;
  });
}

TEST_F(EpisodeReplayFileTest, OtherSettingsAreRefused) {
  EpisodeReplay saved(TestEpisodeOptions(kCapacity));
  ASSERT_TRUE(saved.Save(path_).ok());
  const std::vector<std::function<void(EpisodeReplayOptions*)>> changes = {
      [](EpisodeReplayOptions* options) { options->capacity = 101; },
      [](EpisodeReplayOptions* options) { options->components[kFrame].stack = 2; },
      [](EpisodeReplayOptions* options) { options->components.push_back({1, 1, 1}); }};
  for (const auto& change : changes) {
    EpisodeReplayOptions options = TestEpisodeOptions(kCapacity);
    change(&options);
    EpisodeReplay other(options);
    const Status status = other.Restore(path_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("other settings"), std::string::npos);
  }
}

TEST_F(EpisodeReplayFileTest, OnlyAnEmptyReplayIsRestored) {
  EpisodeReplay saved(TestEpisodeOptions(kCapacity));
  Fill(&saved);
  ASSERT_TRUE(saved.Save(path_).ok());
  const int64_t episodes = saved.GetStatistics().episodes;
  EXPECT_EQ(saved.Restore(path_).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(saved.GetStatistics().episodes, episodes);
}

TEST_F(EpisodeReplayFileTest, ErrorsOfTheSystemNameTheFile) {
  EpisodeReplay replay(TestEpisodeOptions(kCapacity));
  Fill(&replay);
  const Status status = replay.Save("/dev/full");  // Always says that there is no space left.
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "/dev/full: No space left on device");
  EXPECT_EQ(replay.Save(path_ + "/absent/file").code(), StatusCode::kUnavailable);
  EpisodeReplay restored(TestEpisodeOptions(kCapacity));
  EXPECT_EQ(restored.Restore(path_ + "_absent").code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace scalable_agents
