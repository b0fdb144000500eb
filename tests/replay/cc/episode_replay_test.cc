#include "replay/cc/episode_replay.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/replay/cc/episode_replay_testing.h"

namespace scalable_agents {
namespace {

constexpr int kUnrollLength = 5;

TEST(EpisodeReplayTest, ReplayersGoThroughWholeEpisodes) {
  EpisodeReplay replay(TestEpisodeOptions(10'000));
  const std::vector<TestStream> streams = {{0, {40}}, {1, {7, 1, 30, 13}}, {2, {1}}, {3, {6, 12, 5, 3}}};
  for (int index = 0; index < 41; ++index) {
    for (const TestStream& stream : streams) ASSERT_TRUE(Insert(stream, &replay, index, kUnrollLength).ok());
  }
  const EpisodeReplayStatistics statistics = replay.GetStatistics();
  // Rows 0 to 205 of each stream, of which some episodes are whole: 5 of stream 0, 4 times 4 of stream 1, and so on.
  EXPECT_EQ(statistics.episodes, 5 + 4 * 4 + 205 + (4 * 7 + 3));
  EXPECT_EQ(statistics.steps, 200 + 204 + 205 + (26 * 7 + 23));
  EXPECT_EQ(statistics.inserted_episodes, statistics.episodes);
  EXPECT_EQ(statistics.streams, 4);
  std::vector<int64_t> next_row(streams.size());  // Episodes of a stream have keys in the order of time.
  for (int64_t key = 0; key < statistics.episodes; ++key) {
    std::shared_ptr<const Episode> episode;
    for (int64_t step = 0; step == 0 || step < episode->num_steps(); step += kReplayedLength) {
      const ReplayedUnroll unroll = Next(&replay, key, step, key);
      episode = unroll.parts[0].episode;
      ASSERT_EQ(episode->key, key);
      ASSERT_EQ(unroll.parts[0].first_step, step);
      ASSERT_EQ(Check(replay, unroll, streams), "");
    }
    int64_t& row = next_row[episode->stream_id];
    EXPECT_EQ(episode->stream_row, row);
    row += episode->num_steps();
  }
}

TEST(EpisodeReplayTest, ReplayersGoOnWithAnotherEpisode) {
  EpisodeReplay replay(TestEpisodeOptions(10'000));
  const std::vector<TestStream> streams = {{0, {40}}, {1, {1}}, {2, {3, kReplayedLength}}};
  for (const TestStream& stream : streams) Insert(stream, &replay, 0, 90);
  int64_t key = -1, step = 0;
  size_t most_parts = 0;
  bool ends_with_the_unroll = false;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const ReplayedUnroll unroll = Next(&replay, key, step, seed);
    ASSERT_EQ(Check(replay, unroll, streams), "");
    if (seed > 0) {  // It goes on where the unroll before ended.
      EXPECT_EQ(unroll.parts[0].episode->key, key);
      EXPECT_EQ(unroll.parts[0].first_step, step);
    }
    key = unroll.next_key;
    step = unroll.next_step;
    most_parts = std::max(most_parts, unroll.parts.size());
    ends_with_the_unroll |= step == 0;
  }
  EXPECT_EQ(most_parts, kReplayedLength + 1u);
  EXPECT_TRUE(ends_with_the_unroll);
}

// Episodes are drawn uniformly and replayed to their ends, so that the steps of long ones come as often.
TEST(EpisodeReplayTest, StepsAreReplayedEquallyOften) {
  EpisodeReplay replay(TestEpisodeOptions(10'000));
  Insert(TestStream(0, {1, 3, 5, 11, 40}), &replay, 0, 120);  // Each length twice.
  constexpr int kReplayers = 64, kCalls = 400;
  std::vector<int64_t> keys(kReplayers, -1), steps(kReplayers);
  std::map<int64_t, int64_t> count_by_length;  // Replayed steps of all episodes with so many steps.
  for (int call = 0; call < kCalls; ++call) {
    std::vector<ReplayedUnroll> unrolls;
    ASSERT_TRUE(replay.Next(keys, steps, call, 1, &unrolls).ok());
    for (int i = 0; i < kReplayers; ++i) {
      const std::vector<ReplayedUnroll::Part>& parts = unrolls[i].parts;
      for (size_t j = 0; j < parts.size(); ++j) {
        const int64_t end = j + 1 < parts.size() ? parts[j + 1].row : kReplayedLength;
        count_by_length[parts[j].episode->num_steps()] += end - parts[j].row;
      }
      keys[i] = unrolls[i].next_key;
      steps[i] = unrolls[i].next_step;
    }
  }
  ASSERT_EQ(count_by_length.size(), 5u);
  const double expected = 1. * kCalls * kReplayers * kReplayedLength / 120;  // Of each of the 120 steps.
  for (const auto& [length, count] : count_by_length) {
    EXPECT_NEAR(count / (2. * length * expected), 1., 0.1) << length;
  }
}

TEST(EpisodeReplayTest, ASegmentThatBeginsInAnEpisodeSkipsItsRest) {
  EpisodeReplay replay(TestEpisodeOptions(1000));
  const TestStream stream(0, {33, 20});
  for (int index = 2; index < 6; ++index) Insert(stream, &replay, index, kUnrollLength);  // Rows 10 to 30.
  EXPECT_EQ(replay.GetStatistics().rows, 0);
  EXPECT_EQ(replay.GetStatistics().bytes, 0);
  for (int index = 6; index < 11; ++index) Insert(stream, &replay, index, kUnrollLength);  // To row 55.
  EXPECT_EQ(replay.GetStatistics().episodes, 1);
  const ReplayedUnroll unroll = Next(&replay, 0, 0);
  EXPECT_EQ(unroll.parts[0].episode->stream_row, 33);
  EXPECT_EQ(unroll.parts[0].episode->num_steps(), 20);
  EXPECT_EQ(Check(replay, unroll, {stream}), "");
}

TEST(EpisodeReplayTest, NoEpisodeSpansAGap) {
  EpisodeReplay replay(TestEpisodeOptions(1000));
  const TestStream stream(0, {20});
  for (int index : {0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 9, 10, 11}) Insert(stream, &replay, index, kUnrollLength);
  // The episode from row 0 is whole. The next one lacks rows 26 to 29. The one from row 40 is whole.
  const EpisodeReplayStatistics statistics = replay.GetStatistics();
  EXPECT_EQ(statistics.episodes, 2);
  EXPECT_EQ(statistics.gaps, 1);
  EXPECT_EQ(statistics.repeated_unrolls, 2);
  EXPECT_EQ(Next(&replay, 1, 0).parts[0].episode->stream_row, 40);
  EXPECT_EQ(Check(replay, Next(&replay, 1, 18), {stream}), "");
  // The first row after a gap may start an episode.
  for (int index = 16; index < 20; ++index) Insert(stream, &replay, index, kUnrollLength);
  EXPECT_EQ(Next(&replay, 2, 0).parts[0].episode->stream_row, 80);
}

TEST(EpisodeReplayTest, TheOldestEpisodesMakeRoom) {
  EpisodeReplay replay(TestEpisodeOptions(30));
  const TestStream stream(0, {8, 12, 5, 40, 3});
  std::vector<int64_t> steps, episodes;
  for (int index = 0; index < 14; ++index) {
    Insert(stream, &replay, index, 5);
    steps.push_back(replay.GetStatistics().steps);
    episodes.push_back(replay.GetStatistics().episodes);
  }
  // Episodes end with rows 8, 20, 25, 65 and 68. The longest one does not fit, but it is kept until the next one comes.
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 8, 8, 20, 25, 25, 25, 25, 25, 25, 25, 25, 40, 3}));
  EXPECT_EQ(episodes, (std::vector<int64_t>{0, 1, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 1, 1}));
  EXPECT_EQ(replay.GetStatistics().inserted_episodes, 5);
  EXPECT_EQ(Next(&replay, 4, 0).parts[0].episode->num_steps(), 3);
  // Exactly as many steps as the capacity fit.
  EpisodeReplay exact(TestEpisodeOptions(20));
  Insert(stream, &exact, 0, 20);
  EXPECT_EQ(exact.GetStatistics().steps, 20);
}

TEST(EpisodeReplayTest, OneUnrollMayHaveMoreThanTheCapacity) {
  EpisodeReplay replay(TestEpisodeOptions(10));
  const TestStream stream(0, {4});
  Insert(stream, &replay, 0, 100);
  EXPECT_EQ(replay.GetStatistics().steps, 8);
  EXPECT_EQ(replay.GetStatistics().inserted_episodes, 25);
  EXPECT_EQ(Check(replay, Next(&replay, 24, 0), {stream}), "");
  EXPECT_EQ(Next(&replay, 24, 0).parts[0].episode->stream_row, 96);
}

TEST(EpisodeReplayTest, MemoryIsThatOfTheEpisodesAndOfRunningOnes) {
  EpisodeReplay replay(TestEpisodeOptions(100));
  const TestStream stream(0, {25});
  for (int index = 0; index < 400; ++index) Insert(stream, &replay, index, kUnrollLength);
  EXPECT_LE(replay.GetStatistics().rows, 100 + 25 + 2 * RowLayout::kRowsPerSlab);
  for (int other = 2; other < 40; ++other) Insert(TestStream(other, {100}), &replay, 0, 100);
  // The last one of these episodes, and the row with which each stream's next episode has begun.
  EXPECT_EQ(replay.GetStatistics().episodes, 1);
  EXPECT_LE(replay.GetStatistics().rows, 101 + 39 * RowLayout::kRowsPerSlab);
}

TEST(EpisodeReplayTest, AnEpisodeThatIsTooLongIsDropped) {
  EpisodeReplayOptions options = TestEpisodeOptions(1000);
  options.longest_episode = 20;
  EpisodeReplay replay(options);
  const TestStream stream(0, {21, 22, 1000, 7});  // The first one may be one of 20 steps and a reset.
  for (int index = 0; index < 400; ++index) {
    ASSERT_TRUE(Insert(stream, &replay, index, kUnrollLength).ok());
    EXPECT_LE(replay.GetStatistics().rows - replay.GetStatistics().steps, 20 + 2 * RowLayout::kRowsPerSlab);
  }
  // Rows 0 to 2,000: the first episode, the fourth one and the fifth one are kept. The third one had begun with row 43.
  EXPECT_EQ(replay.GetStatistics().long_episodes, 4);
  EXPECT_EQ(replay.GetStatistics().episodes, 3);
  EXPECT_EQ(replay.GetStatistics().steps, 21 + 7 + 21);
  EXPECT_EQ(replay.GetStatistics().gaps, 0);
  const std::vector<int64_t> begins = {0, 1043, 1050};
  for (int64_t key = 0; key < 3; ++key) {
    const ReplayedUnroll unroll = Next(&replay, key, 0);
    EXPECT_EQ(unroll.parts[0].episode->stream_row, begins[key]);
    EXPECT_EQ(Check(replay, unroll, {stream}), "");
  }
  // One unroll may have everything: the end of an episode, one that is too long, and the start of another.
  EpisodeReplay other(options);
  Insert(stream, &other, 0, 1100);
  EXPECT_EQ(other.GetStatistics().episodes, 3);
  EXPECT_EQ(other.GetStatistics().steps, 21 + 7 + 21);
}

TEST(EpisodeReplayTest, AnEpisodeOutlivesItsPlaceInTheReplayWhileItIsRead) {
  EpisodeReplay replay(TestEpisodeOptions(20));
  const TestStream stream(0, {15});
  Insert(stream, &replay, 0, 15);
  const ReplayedUnroll unroll = Next(&replay, 0, 6);
  for (int index = 1; index < 10; ++index) Insert(stream, &replay, index, 15);
  EXPECT_EQ(Check(replay, unroll, {stream}), "");
  const ReplayedUnroll other = Next(&replay, 0, 12);  // The episode is gone, and another one is drawn.
  EXPECT_EQ(other.parts[0].episode->key, 9);
  EXPECT_EQ(other.parts[0].first_step, 0);
}

TEST(EpisodeReplayTest, EpisodesAreEquallyLikely) {
  constexpr int kDraws = 100'000, kEpisodes = 20;
  EpisodeReplay replay(TestEpisodeOptions(10'000));
  Insert(TestStream(1, {1, 200, 3, 17}), &replay, 0, 221 * 5);
  ASSERT_EQ(replay.GetStatistics().episodes, kEpisodes);
  std::vector<ReplayedUnroll> unrolls;
  ASSERT_TRUE(replay.Next(std::vector<int64_t>(kDraws, -1), std::vector<int64_t>(kDraws, 0), 1, 1, &unrolls).ok());
  std::vector<double> counts(kEpisodes);
  for (const ReplayedUnroll& unroll : unrolls) ++counts[unroll.parts[0].episode->key];
  double chi_squared = 0;
  const double expected = 1. * kDraws / kEpisodes;
  for (double count : counts) chi_squared += (count - expected) * (count - expected) / expected;
  EXPECT_LT(chi_squared, 43.8);  // Exceeded with probability 0.001 at 19 degrees of freedom.
}

TEST(EpisodeReplayTest, NewReplayersBeginAnywhereAndStayApartWhereEpisodesHaveTheSameLength) {
  constexpr int kReplayers = 10'000, kSteps = 25;
  EpisodeReplay replay(TestEpisodeOptions(10'000));
  Insert(TestStream(1, {kSteps}), &replay, 0, kSteps * 4);
  std::vector<int64_t> keys(kReplayers, -1), steps(kReplayers, 0);
  std::vector<ReplayedUnroll> unrolls;
  for (int seed = 0; seed < 20; ++seed) {
    ASSERT_TRUE(replay.Next(keys, steps, seed, 1, &unrolls).ok());
    std::vector<double> counts(kSteps);
    for (int i = 0; i < kReplayers; ++i) {
      ++counts[unrolls[i].parts[0].first_step];
      keys[i] = unrolls[i].next_key;
      steps[i] = unrolls[i].next_step;
    }
    double chi_squared = 0;
    const double expected = 1. * kReplayers / kSteps;
    for (double count : counts) chi_squared += (count - expected) * (count - expected) / expected;
    EXPECT_LT(chi_squared, 51.2);  // Exceeded with probability 0.001 at 24 degrees of freedom.
  }
}

TEST(EpisodeReplayTest, TheSameContentsAndArgumentsGiveTheSameUnrolls) {
  EpisodeReplay replay(TestEpisodeOptions(10'000));
  Insert(TestStream(1, {9, 4}), &replay, 0, 500);
  const auto positions = [&](uint64_t seed) {
    std::vector<ReplayedUnroll> unrolls;
    // Two replayers go on; one has reached the end; one names an episode that is not there yet.
    EXPECT_TRUE(replay.Next({2, 3, 2, -1, 1000}, {8, 3, 9, 0, 0}, seed, 1, &unrolls).ok());
    EXPECT_EQ(unrolls[0].parts[0].episode->key, 2);
    EXPECT_EQ(unrolls[1].parts[0].first_step, 3);
    std::vector<int64_t> result;
    for (size_t i : {2, 4}) EXPECT_EQ(unrolls[i].parts[0].first_step, 0);
    for (const ReplayedUnroll& unroll : unrolls) {
      for (const ReplayedUnroll::Part& part : unroll.parts) result.push_back(part.episode->key);
    }
    return result;
  };
  EXPECT_EQ(positions(5), positions(5));
  EXPECT_NE(positions(5), positions(6));
  EXPECT_EQ(replay.GetStatistics().replayed_unrolls, 4 * 5);
}

TEST(EpisodeReplayTest, BelowTheMinimumSizeNothingIsReplayed) {
  EpisodeReplay replay(TestEpisodeOptions(100));
  const TestStream stream(0, {20});
  std::vector<ReplayedUnroll> unrolls;
  const auto expect_nothing = [&](int64_t minimum_size) {
    ASSERT_TRUE(replay.Next({-1, 0}, {0, 3}, 0, minimum_size, &unrolls).ok());
    ASSERT_EQ(unrolls.size(), 2u);
    for (const ReplayedUnroll& unroll : unrolls) {
      EXPECT_TRUE(unroll.parts.empty());
      EXPECT_EQ(unroll.next_key, -1);
      EXPECT_EQ(unroll.next_step, 0);
      std::vector<char> frames((kReplayedLength + 1) * kFrameBytes, 1), earlier((kStack - 1) * kFrameBytes, 1);
      replay.Read(unroll, kFrame, frames.data(), kFrameBytes);
      replay.ReadEarlier(unroll, kFrame, earlier.data());
      EXPECT_EQ(frames, std::vector<char>(frames.size(), 0));
      EXPECT_EQ(earlier, std::vector<char>(earlier.size(), 0));
    }
  };
  expect_nothing(0);
  Insert(stream, &replay, 0, 19);  // The row with the last reward is missing.
  expect_nothing(1);
  EXPECT_EQ(replay.GetStatistics().rows, 20);
  Insert(stream, &replay, 1, 19);
  expect_nothing(21);
  EXPECT_EQ(replay.GetStatistics().replayed_unrolls, 0);
  ASSERT_TRUE(replay.Next({-1}, {0}, 0, 20, &unrolls).ok());
  EXPECT_EQ(Check(replay, unrolls[0], {stream}), "");
}

TEST(EpisodeReplayTest, ALongEpisodeInPlaceOfOthersDoesNotEndTheReplay) {
  EpisodeReplay replay(TestEpisodeOptions(100));
  const TestStream stream(0, {60, 45, 30});
  Insert(stream, &replay, 0, 105);  // The second episode replaces the first one, so 45 steps are left.
  EXPECT_EQ(replay.GetStatistics().steps, 45);
  std::vector<ReplayedUnroll> unrolls;
  ASSERT_TRUE(replay.Next({1, 0}, {3, 7}, 0, 50, &unrolls).ok());
  ASSERT_EQ(unrolls[0].parts.size(), 1u);
  EXPECT_EQ(unrolls[0].parts[0].episode->key, 1);
  EXPECT_EQ(unrolls[0].parts[0].first_step, 3);
  ASSERT_EQ(unrolls[1].parts.size(), 1u);
  EXPECT_EQ(unrolls[1].parts[0].first_step, 0);  // Its episode is gone.
}

TEST(EpisodeReplayTest, RefusesImpossiblePositions) {
  EpisodeReplay replay(TestEpisodeOptions(100));
  Insert(TestStream(1, {5}), &replay, 0, 10);
  std::vector<ReplayedUnroll> unrolls;
  EXPECT_EQ(replay.Next({0}, {-1}, 0, 1, &unrolls).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(unrolls.empty());
}

TEST(EpisodeReplayTest, WithoutMemoryTheSegmentIsDropped) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer ends the program when there is not enough memory";
#endif
  EpisodeReplayOptions options = TestEpisodeOptions(100);
  options.components.push_back({int64_t{1} << 57, 1, 1});  // A slab of such rows never fits.
  EpisodeReplay replay(options);
  const TestUnroll lived(TestStream(1, {5}), 0, 10);
  std::vector<StridedRows> rows = lived.rows();
  rows.push_back(rows[0]);
  for (int index : {0, 0, 1}) {
    const Status status = replay.Insert(1, index, 11, rows);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(status.message(), "there is not enough memory for the rows of another unroll");
  }
  EXPECT_EQ(replay.GetStatistics().gaps, 0);
  EXPECT_EQ(replay.GetStatistics().repeated_unrolls, 0);
  EXPECT_EQ(replay.GetStatistics().rows, 0);
}

TEST(EpisodeReplayTest, ForgetsStreamsThatHaveEnded) {
  EpisodeReplay replay(TestEpisodeOptions(100));
  Insert(TestStream(1, {50}), &replay, 0, 40);
  const TestStream stream(2, {1});
  const TestUnroll unroll(stream, 0, 1);
  for (int i = 0; i < 100'000; ++i) replay.Insert(2, 0, 2, unroll.rows());  // All but the first one are repeated.
  EXPECT_EQ(replay.GetStatistics().streams, 2);
  replay.Insert(2, 0, 2, unroll.rows());
  EXPECT_EQ(replay.GetStatistics().streams, 1);
  EXPECT_EQ(replay.GetStatistics().rows, 2);  // The rows of stream 1 are gone.
}

// ThreadSanitizer watches: everything at once, from many threads. Every row tells where it is from.
TEST(EpisodeReplayTest, ManyThreadsInsertReplayAndSave) {
  EpisodeReplay replay(TestEpisodeOptions(200));
  constexpr int kWriters = 3, kUnrolls = 600;
  const std::vector<TestStream> streams = {{0, {60}}, {1, {7, 1, 30, 13}}, {2, {8, 9, 12, 1}}, {3, {4}}};
  Insert(streams[3], &replay, 0, 20);
  std::atomic<int> writing{kWriters}, failures{0};
  std::vector<std::thread> threads;
  for (int writer = 0; writer < kWriters; ++writer) {
    threads.emplace_back([&, writer] {
      for (int index = 0; index < kUnrolls; ++index) {
        if (index % 37 == 36) continue;  // An unroll is lost.
        if (!Insert(streams[writer], &replay, index, kUnrollLength).ok()) ++failures;
      }
      --writing;
    });
  }
  for (int reader = 0; reader < 2; ++reader) {
    threads.emplace_back([&, reader] {
      std::vector<int64_t> keys(4, -1), steps(4);
      for (uint64_t seed = reader; writing > 0; seed += 2) {
        std::vector<ReplayedUnroll> unrolls;
        if (!replay.Next(keys, steps, seed, 1, &unrolls).ok()) ++failures;
        for (size_t i = 0; i < unrolls.size(); ++i) {
          const ReplayedUnroll& unroll = unrolls[i];
          if (!Check(replay, unroll, streams).empty()) ++failures;
          const ReplayedUnroll::Part& first = unroll.parts[0];
          const bool went_on = first.first_step == steps[i] && first.episode->key == keys[i];
          if (keys[i] >= 0 && first.first_step > 0 && !went_on) ++failures;
          keys[i] = unroll.next_key;
          steps[i] = unroll.next_step;
        }
      }
    });
  }
  threads.emplace_back([&] {
    const std::string path = testing::TempDir() + "episode_replay_test_" + std::to_string(getpid());
    while (writing > 0) {
      if (!replay.Save(path).ok()) ++failures;
      EpisodeReplay restored(TestEpisodeOptions(200));
      if (!restored.Restore(path).ok()) ++failures;
      if (!Check(restored, Next(&restored, -1, 0), streams).empty()) ++failures;
      if (replay.GetStatistics().steps > 200) ++failures;
    }
    remove(path.c_str());
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(replay.GetStatistics().gaps, kWriters * (kUnrolls / 37));
}

}  // namespace
}  // namespace scalable_agents
