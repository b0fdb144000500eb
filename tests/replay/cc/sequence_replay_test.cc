#include "replay/cc/sequence_replay.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "replay/cc/split_mix.h"
#include "tests/replay/cc/replay_testing.h"

namespace scalable_agents {
namespace {

constexpr SequenceGeometry kGeometry{4, 8, 4, false, 0};  // The history follows from the components.
constexpr int kUnrollLength = 5;

using Inserted = std::vector<std::shared_ptr<const Sequence>>;

void SetAll(SequenceReplay* replay, const Inserted& sequences, double priority) {
  for (const auto& sequence : sequences) ASSERT_TRUE(replay->Update({sequence->key}, {priority}).ok());
}

TEST(SequenceReplayTest, SequencesHaveTheRowsStacksAndStatesOfTheirStreams) {
  SequenceReplay replay(TestOptions(kGeometry, 1000));
  const std::vector<SequenceStream> streams = {{1, {1000}}, {2, {7, 1, 30, 13}}, {3, {1}}, {4, {8, 9, 12, 13}}};
  std::map<int64_t, int> num_checked;
  for (int index = 0; index < 40; ++index) {
    for (const SequenceStream& stream : streams) {
      for (const auto& sequence : stream.Insert(&replay, index, kUnrollLength)) {
        EXPECT_EQ(stream.Check(replay, *sequence), "");
        ++num_checked[sequence->stream_id];
      }
      EXPECT_TRUE(stream.status().ok());
    }
  }
  // TestStream 1: a sequence every four rows, from 9 rows before the last one on. TestStream 3: one per episode.
  EXPECT_EQ(num_checked[1], (200 - 9) / 4 + 1);
  EXPECT_EQ(num_checked[3], 200);
  EXPECT_EQ(replay.GetStatistics().inserted, num_checked[1] + num_checked[2] + num_checked[3] + num_checked[4]);
}

TEST(SequenceReplayTest, SaysWhichStepsAreTrained) {
  SequenceReplay replay(TestOptions(kGeometry, 10));
  const Inserted sequences = SequenceStream(1, {3, 1000}).Insert(&replay, 0, kUnrollLength);
  ASSERT_EQ(sequences.size(), 1u);
  for (int step = 0; step < kGeometry.length; ++step) EXPECT_EQ(sequences[0]->Trains(kGeometry, step), step < 3);
}

TEST(SequenceReplayTest, AGapEndsTheSegment) {
  SequenceReplay replay(TestOptions(kGeometry, 1000));
  const SequenceStream stream(1, {1000});
  for (int index = 0; index < 4; ++index) stream.Insert(&replay, index, kUnrollLength);
  Inserted after;
  for (int index = 6; index < 11; ++index) {
    for (const auto& sequence : stream.Insert(&replay, index, kUnrollLength)) after.push_back(sequence);
  }
  EXPECT_EQ(replay.GetStatistics().gaps, 1);
  // Rows 30 to 55 came after the gap. The first three of them only complete stacks. Sequences begin at multiples of 4,
  // as they would have without the gap.
  ASSERT_EQ(after.size(), 2u);
  EXPECT_EQ(after[0]->stream_row, 36);
  EXPECT_EQ(after[1]->stream_row, 40);
  for (const auto& sequence : after) EXPECT_EQ(stream.Check(replay, *sequence, 30), "");
  // Older unrolls, and one that came twice, change nothing.
  EXPECT_TRUE(stream.Insert(&replay, 5, kUnrollLength).empty());
  stream.Insert(&replay, 10, kUnrollLength);
  EXPECT_EQ(replay.GetStatistics().inserted, 5);
  EXPECT_EQ(replay.GetStatistics().repeated_unrolls, 2);
  EXPECT_EQ(stream.Check(replay, *stream.Insert(&replay, 11, kUnrollLength).at(0), 30), "");
}

TEST(SequenceReplayTest, WithoutMemoryTheSegmentIsDropped) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer ends the program when there is not enough memory";
#endif
  ReplayOptions options = TestOptions(kGeometry, 100);
  options.components.push_back({int64_t{1} << 57, 1, 1});  // A slab of such rows never fits.
  SequenceReplay replay(options);
  const SequenceStream stream(1, {1000});
  for (int index : {0, 0, 1}) {
    EXPECT_TRUE(stream.Insert(&replay, index, kUnrollLength).empty());
    EXPECT_EQ(stream.status().code(), StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(replay.GetStatistics().gaps, 0);
  EXPECT_EQ(replay.GetStatistics().repeated_unrolls, 0);
}

TEST(SequenceReplayTest, RegressionTheFirstSequenceOfASegmentMayBeginLongAfterItsFirstUnroll) {
  const SequenceGeometry geometry{5, 60, 40, false, 0};
  for (int length : {3, 10, 20, 40}) {
    for (int first = 1; first <= 40; ++first) {  // The segment begins in the middle of the episode.
      SequenceReplay replay(TestOptions(geometry, 100));
      const SequenceStream stream(1, {100'000});
      Inserted sequences;
      for (int index = first; index <= first + 200 / length; ++index) {
        for (const auto& sequence : stream.Insert(&replay, index, length)) sequences.push_back(sequence);
      }
      ASSERT_GE(sequences.size(), 2u);
      for (const auto& sequence : sequences) EXPECT_EQ(stream.Check(replay, *sequence, first * length), "");
    }
  }
}

TEST(SequenceReplayTest, RegressionALifeLostAfterAGapHasTheFramesBeforeIt) {
  const SequenceGeometry geometry{5, 40, 40, false, 0};
  constexpr int kLength = RowLayout::kRowsPerSlab;  // Each unroll fills a slab, which could be dropped at once.
  constexpr int kFirst = 5 * kLength;               // The next sequence would begin 35 rows later.
  for (int lost = 1; lost <= 2 * kLength; ++lost) {
    SequenceReplay replay(TestOptions(geometry, 100));
    const SequenceStream stream(1, {100'000});
    Inserted sequences;
    for (int index = 5; index < 11; ++index) {
      const Inserted its = stream.Insert(&replay, index, kLength, kFirst + lost);
      sequences.insert(sequences.end(), its.begin(), its.end());
    }
    ASSERT_FALSE(sequences.empty());
    for (const auto& sequence : sequences) {
      EXPECT_EQ(stream.Check(replay, *sequence, kFirst), "") << "a life is lost after " << lost << " rows";
    }
  }
}

TEST(SequenceReplayTest, RegressionALifeLostAtOnceHasNoFramesOfTheEpisodeBefore) {
  constexpr int kEpisode = 10;
  for (int lost = kEpisode + 1; lost <= kEpisode + kStack + 1; ++lost) {
    SequenceReplay replay(TestOptions({4, 8, 4, false, 0}, 100));
    const SequenceStream stream(1, {kEpisode, 100'000});
    const Inserted sequences = stream.Insert(&replay, 0, 40, lost);
    ASSERT_FALSE(sequences.empty());
    for (const auto& sequence : sequences) {
      EXPECT_EQ(stream.Check(replay, *sequence), "") << "a life is lost in row " << lost;
    }
  }
}

TEST(SequenceReplayTest, TheLastUnrollOfAStreamGivesItsSequencesAgain) {
  SequenceReplay replay(TestOptions(kGeometry, 8));
  const SequenceStream stream(1, {1000});
  const Inserted first = stream.Insert(&replay, 0, 20), second = stream.Insert(&replay, 1, 20);
  ASSERT_EQ(second.size(), 5u);
  EXPECT_EQ(stream.Insert(&replay, 1, 20), second);
  EXPECT_EQ(stream.Insert(&replay, 1, 20), second);
  EXPECT_TRUE(stream.Insert(&replay, 0, 20).empty());
  EXPECT_EQ(replay.GetStatistics().inserted, static_cast<int64_t>(first.size() + second.size()));
  // Sequences that have left and that nobody reads are gone.
  ASSERT_EQ(stream.Insert(&replay, 2, 60).size(), 15u);
  const Inserted again = stream.Insert(&replay, 2, 60);
  ASSERT_EQ(again.size(), 8u);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(again[i]->key, replay.GetStatistics().inserted - 8 + i);
}

TEST(SequenceReplayTest, KeepsTheNewestSequencesAndOnlyTheirRows) {
  constexpr int64_t kCapacity = 10;
  SequenceReplay replay(TestOptions(kGeometry, kCapacity));
  const SequenceStream stream(1, {1000});
  for (int index = 0; index < 200; ++index) SetAll(&replay, stream.Insert(&replay, index, kUnrollLength), 1);
  const ReplayStatistics statistics = replay.GetStatistics();
  EXPECT_EQ(statistics.size, kCapacity);
  // Ten sequences of 13 rows that begin every 4 rows, what the next ones need, and at most a slab at each end.
  EXPECT_LE(statistics.rows, 10 * 4 + 9 + 3 + 5 + 9 + 2 * RowLayout::kRowsPerSlab);
  std::vector<Sampled> sampled;
  ASSERT_TRUE(replay.Sample(1000, 1, &sampled).ok());
  std::set<int64_t> keys;
  for (const Sampled& one : sampled) {
    keys.insert(one.sequence->key);
    ASSERT_EQ(stream.Check(replay, *one.sequence), "");
  }
  EXPECT_EQ(keys.size(), static_cast<size_t>(kCapacity));
  EXPECT_EQ(*keys.begin(), statistics.inserted - kCapacity);
}

TEST(SequenceReplayTest, AReadSequenceOutlivesItsPlaceInTheReplay) {
  SequenceReplay replay(TestOptions(kGeometry, 2));
  const SequenceStream stream(1, {1000});
  Inserted old;
  for (int index = 0; index < 100; ++index) {
    const Inserted sequences = stream.Insert(&replay, index, kUnrollLength);
    if (index == 3) old = sequences;
  }
  ASSERT_FALSE(old.empty());
  EXPECT_EQ(stream.Check(replay, *old[0]), "");
}

TEST(SequenceReplayTest, DrawsInProportionToPowersOfThePriorities) {
  constexpr int kDraws = 200'000;
  SequenceReplay replay(TestOptions(kGeometry, 100, 0.9));
  const SequenceStream stream(1, {4});
  Inserted sequences = stream.Insert(&replay, 0, 20);
  ASSERT_EQ(sequences.size(), 5u);
  const std::vector<double> priorities = {1, 2, 0.5, 8, 0};  // The last one counts as 1e-6.
  double total = 0;
  for (int i = 0; i < 5; ++i) {
    SetAll(&replay, {sequences[i]}, priorities[i]);
    total += std::pow(std::max(priorities[i], 1e-6), 0.9);
  }
  std::vector<Sampled> sampled;
  ASSERT_TRUE(replay.Sample(kDraws, 1, &sampled).ok());
  std::map<int64_t, int> counts;
  for (const Sampled& one : sampled) {
    ++counts[one.sequence->key];
    const double expected = std::pow(priorities[one.sequence->key], 0.9) / total;
    ASSERT_NEAR(one.probability, expected, 1e-9);
  }
  double chi_squared = 0;
  for (int i = 0; i < 4; ++i) {
    const double expected = kDraws * std::pow(priorities[i], 0.9) / total;
    chi_squared += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_squared, 16.27);  // Exceeded with probability 0.001 at 3 degrees of freedom.
}

TEST(SequenceReplayTest, PowersOfLargePrioritiesDoNotOverflow) {
  SequenceReplay replay(TestOptions(kGeometry, 100, 10));
  const Inserted sequences = SequenceStream(1, {4}).Insert(&replay, 0, 20);
  SetAll(&replay, sequences, 1e38);
  std::vector<Sampled> sampled;
  ASSERT_TRUE(replay.Sample(1000, 1, &sampled).ok());
  std::set<int64_t> keys;
  for (const Sampled& one : sampled) {
    EXPECT_NEAR(one.probability, 0.2, 1e-9);
    keys.insert(one.sequence->key);
  }
  EXPECT_EQ(keys.size(), 5u);
}

TEST(SequenceReplayTest, PowersOfSmallPrioritiesAreNotZero) {
  SequenceReplay replay(TestOptions(kGeometry, 100, 1000));
  SetAll(&replay, SequenceStream(1, {4}).Insert(&replay, 0, 20), 0);
  std::vector<Sampled> sampled;
  ASSERT_TRUE(replay.Sample(1, 1, &sampled).ok());
  EXPECT_NEAR(sampled[0].probability, 0.2, 1e-9);
}

TEST(SequenceReplayTest, WithoutPrioritiesAllAreEquallyLikely) {
  SequenceReplay replay(TestOptions(kGeometry, 100, 0));
  SequenceStream(1, {4}).Insert(&replay, 0, 20);
  ASSERT_TRUE(replay.Update({0, 1}, {100, 0}).ok());  // Makes no difference.
  std::vector<Sampled> sampled;
  ASSERT_TRUE(replay.Sample(100, 1, &sampled).ok());
  for (const Sampled& one : sampled) EXPECT_DOUBLE_EQ(one.probability, 0.2);
}

TEST(SequenceReplayTest, OnlySequencesWithAPriorityAreSampled) {
  SequenceReplay replay(TestOptions(kGeometry, 100));
  std::vector<Sampled> sampled;
  EXPECT_EQ(replay.Sample(1, 1, &sampled).code(), StatusCode::kUnavailable);
  const Inserted sequences = SequenceStream(1, {4}).Insert(&replay, 0, 20);
  EXPECT_EQ(replay.Sample(1, 1, &sampled).code(), StatusCode::kUnavailable);
  SetAll(&replay, {sequences[3]}, 1);
  ASSERT_TRUE(replay.Sample(10, 1, &sampled).ok());
  for (const Sampled& one : sampled) EXPECT_EQ(one.sequence->key, 3);
}

TEST(SequenceReplayTest, TheSeedDeterminesTheSample) {
  SequenceReplay replay(TestOptions(kGeometry, 100));
  SetAll(&replay, SequenceStream(1, {1}).Insert(&replay, 0, 50), 1);
  const auto keys = [&](uint64_t seed) {
    std::vector<Sampled> sampled;
    EXPECT_TRUE(replay.Sample(20, seed, &sampled).ok());
    std::vector<int64_t> keys;
    for (const Sampled& one : sampled) keys.push_back(one.sequence->key);
    return keys;
  };
  EXPECT_EQ(keys(5), keys(5));
  EXPECT_NE(keys(5), keys(6));
}

TEST(SequenceReplayTest, AgeCountsTheBatchesSinceInsertion) {
  SequenceReplay replay(TestOptions(kGeometry, 100));
  const SequenceStream stream(1, {20});
  SetAll(&replay, stream.Insert(&replay, 0, 20), 1);
  std::vector<Sampled> sampled;
  for (int batch = 0; batch < 3; ++batch) {
    sampled.clear();
    ASSERT_TRUE(replay.Sample(2, batch, &sampled).ok());
    EXPECT_EQ(sampled[0].age, batch);
  }
  for (const auto& sequence : stream.Insert(&replay, 1, 20)) {
    ASSERT_TRUE(replay.Update({sequence->key}, {1e12}).ok());
  }
  sampled.clear();
  ASSERT_TRUE(replay.Sample(1, 0, &sampled).ok());
  EXPECT_EQ(sampled[0].age, 0);
}

TEST(SequenceReplayTest, StaleKeysAreCountedAndIgnored) {
  SequenceReplay replay(TestOptions(kGeometry, 3));
  SetAll(&replay, SequenceStream(1, {4}).Insert(&replay, 0, 20), 1);  // Keys 0 to 4, of which 0 and 1 came too late.
  EXPECT_EQ(replay.GetStatistics().stale_updates, 2);
  ASSERT_TRUE(replay.Update({0, 1, 2, 5, -1}, {9, 9, 9, 9, 9}).ok());
  EXPECT_EQ(replay.GetStatistics().stale_updates, 6);
  std::vector<Sampled> sampled;
  ASSERT_TRUE(replay.Sample(200, 1, &sampled).ok());
  for (const Sampled& one : sampled) {
    EXPECT_GE(one.sequence->key, 2);
    EXPECT_NEAR(one.probability, one.sequence->key == 2 ? 9. / 11 : 1. / 11, 1e-12);
  }
}

TEST(SequenceReplayTest, ASequenceLeavesWhenItWasDrawnOftenEnough) {
  ReplayOptions options = TestOptions(kGeometry, 6, 0);
  options.max_times_sampled = 3;
  SequenceReplay replay(options);
  const SequenceStream stream(1, {4});
  stream.Insert(&replay, 0, 20);  // Keys 0 to 4.
  std::map<int64_t, int> counts;
  std::vector<Sampled> sampled;
  ASSERT_TRUE(replay.Sample(7, 1, &sampled).ok());
  ASSERT_TRUE(replay.Sample(7, 2, &sampled).ok());
  for (const Sampled& one : sampled) {
    ++counts[one.sequence->key];
    EXPECT_EQ(stream.Check(replay, *one.sequence), "");  // Also of those that have left.
  }
  int64_t left = 0;
  for (const auto& [key, count] : counts) {
    EXPECT_LE(count, 3);
    if (count == 3) {
      ++left;
      const int64_t stale = replay.GetStatistics().stale_updates;
      ASSERT_TRUE(replay.Update({key}, {1}).ok());
      EXPECT_EQ(replay.GetStatistics().stale_updates, stale + 1);
    }
  }
  EXPECT_EQ(replay.GetStatistics().size, 5 - left);
  // One more draw is possible. A batch of two changes nothing.
  EXPECT_EQ(replay.Sample(2, 3, &sampled).code(), StatusCode::kUnavailable);
  EXPECT_EQ(replay.GetStatistics().sampled, 14);
  ASSERT_TRUE(replay.Sample(1, 4, &sampled).ok());
  ++counts[sampled.back().sequence->key];
  for (int64_t key = 0; key < 5; ++key) EXPECT_EQ(counts[key], 3);
  EXPECT_EQ(replay.GetStatistics().size, 0);
  EXPECT_EQ(replay.Sample(1, 5, &sampled).code(), StatusCode::kUnavailable);
  // New sequences take the places of those that have left, and can be drawn as often.
  stream.Insert(&replay, 1, 20);
  EXPECT_EQ(replay.GetStatistics().size, 5);
  ASSERT_TRUE(replay.Sample(15, 6, &sampled).ok());
  EXPECT_EQ(replay.GetStatistics().size, 0);
}

TEST(SequenceReplayTest, TheRateLimitHoldsBackWhoeverIsAhead) {
  ReplayOptions options = TestOptions(kGeometry, 100, 0);
  options.rate_limit = {2, 8, 5};  // Two samples per sequence, eight of tolerance, at least five sequences.
  SequenceReplay replay(options);
  const SequenceStream stream(1, {4});
  std::vector<Sampled> sampled;
  const auto sample = [&](int64_t n) { return replay.Sample(n, 1, &sampled).code(); };
  stream.Insert(&replay, 0, 16);  // Four sequences.
  EXPECT_EQ(sample(1), StatusCode::kUnavailable);
  stream.Insert(&replay, 1, 16);  // Eight: six samples ahead.
  EXPECT_TRUE(replay.MayInsert().ok());
  stream.Insert(&replay, 2, 16);  // Twelve: fourteen samples ahead.
  EXPECT_EQ(replay.MayInsert().code(), StatusCode::kUnavailable);
  ASSERT_EQ(sample(5), StatusCode::kOk);
  EXPECT_FALSE(replay.MayInsert().ok());
  ASSERT_EQ(sample(1), StatusCode::kOk);
  EXPECT_TRUE(replay.MayInsert().ok());    // Eight ahead.
  ASSERT_EQ(sample(16), StatusCode::kOk);  // Sampling is eight ahead.
  EXPECT_EQ(sample(1), StatusCode::kUnavailable);
  EXPECT_EQ(sample(17), StatusCode::kInvalidArgument);
  EXPECT_EQ(replay.GetStatistics().sampled, 22);
}

// Inserts sequences whenever that may go on, and else samples a batch of n. Checks that inserting is ahead by at most
// the tolerance and one insert, until the first sequence is overwritten. Returns the inserts per batch, after the first
// batches.
double GreedyInsertsPerBatch(const ReplayOptions& options, int64_t n, int batches) {
  SequenceReplay replay(options);
  const SequenceStream stream(1, {1});
  const RateLimit& limit = options.rate_limit;
  EXPECT_EQ(replay.MaySample(n).code(), StatusCode::kUnavailable);
  std::vector<Sampled> sampled;
  int64_t index = 0, before = 0;
  for (int batch = 0; batch < 2 * batches; ++batch) {
    for (int64_t inserts = 0; replay.MayInsert().ok(); ++inserts) {
      // As many as it takes until the ring is full and the rate limit allows the batch.
      const bool may = inserts <= 2 * options.capacity + 4 * n;
      EXPECT_TRUE(may) << "batch " << batch << " after " << index;
      if (!may) return 0;
      stream.Insert(&replay, index++, 1);
      if (index <= options.capacity) {
        EXPECT_LE(limit.Lead(index, n * batch), limit.tolerance + limit.samples_per_insert);
      }
    }
    EXPECT_TRUE(replay.Sample(n, batch, &sampled).ok());
    sampled.clear();
    if (batch + 1 == batches) before = index;
  }
  return static_cast<double>(index - before) / batches;
}

TEST(SequenceReplayTest, TheRateLimitIsKeptIfSequencesMayBeSampledOftenEnough) {
  const SequenceGeometry geometry{0, 1, 1, false, 0};
  ReplayOptions options = TestOptions(geometry, 2000, 0);
  options.max_times_sampled = 1;
  options.rate_limit = {1, 256, 1};
  EXPECT_NEAR(GreedyInsertsPerBatch(options, 8, 300), 8, 0.5);
  options.capacity = 100;
  options.rate_limit = {1, 50, 1};
  EXPECT_NEAR(GreedyInsertsPerBatch(options, 8, 500), 8, 0.5);
  // The minimum size counts what was ever inserted: a full replay lacks the size as soon as a sequence has left.
  options.capacity = 1000;
  options.max_times_sampled = 4;
  options.rate_limit = {4, 256, 1000};
  EXPECT_NEAR(GreedyInsertsPerBatch(options, 8, 500), 2, 0.2);
  options.max_times_sampled = 2;
  options.rate_limit = {2, 26, 1};
  EXPECT_NEAR(GreedyInsertsPerBatch(options, 8, 500), 4, 0.1);
}

TEST(SequenceReplayTest, NobodyWaitsForDrawsThatOverwrittenSequencesLack) {
  const SequenceGeometry geometry{0, 1, 1, false, 0};
  ReplayOptions options = TestOptions(geometry, 100, 0);
  options.max_times_sampled = 1;
  options.rate_limit = {1, 26, 100};
  const double inserts = GreedyInsertsPerBatch(options, 8, 500);
  EXPECT_GE(inserts, 8);
  EXPECT_LE(inserts, 10);
}

TEST(SequenceReplayTest, InsertingAndSamplingNeverWaitForEachOther) {
  const SequenceGeometry geometry{0, 1, 1, false, 0};
  uint64_t seed = 1;
  const auto draw = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(NextUniform(&seed) * static_cast<double>(most - least + 1));
  };
  for (int trial = 0; trial < 300; ++trial) {
    ReplayOptions options = TestOptions(geometry, draw(1, 20), draw(0, 1));
    options.max_times_sampled = draw(0, 4);
    RateLimit& limit = options.rate_limit;
    limit.samples_per_insert = 0.1 * draw(0, 10) * (options.max_times_sampled > 0 ? options.max_times_sampled : 4);
    limit.tolerance = limit.samples_per_insert * 0.1 * draw(10, 200);
    limit.minimum_size = draw(1, options.capacity);
    const bool is_limited = limit.samples_per_insert > 0 || options.max_times_sampled > 0;
    int64_t largest = is_limited ? 1000 : 30;
    if (limit.samples_per_insert > 0) largest = std::min(largest, static_cast<int64_t>(2 * limit.tolerance));
    if (options.max_times_sampled > 0) largest = std::min(largest, options.capacity * options.max_times_sampled);
    if (largest == 0) continue;
    const int64_t most = draw(1, largest);  // The largest batch that is asked for.
    SequenceReplay replay(options);
    std::vector<Sampled> sampled;
    for (int64_t index = 0; index < 200;) {
      for (int64_t n = 1; n <= most; ++n) {
        ASSERT_TRUE(replay.MaySample(n).ok() || replay.MayInsert().ok()) << "trial " << trial << ", batch of " << n;
      }
      const int64_t n = draw(1, most);
      if (draw(0, 1) == 0 && replay.MaySample(n).ok()) {
        sampled.clear();
        ASSERT_TRUE(replay.Sample(n, index, &sampled).ok());
      } else if (replay.MayInsert().ok()) {
        for (const auto& sequence : SequenceStream(1, {1}).Insert(&replay, index, draw(1, 3))) {
          if (draw(0, 3) == 0) continue;  // It never gets a priority.
          ASSERT_TRUE(replay.Update({sequence->key}, {1}).ok());
        }
        ++index;
      }
    }
    EXPECT_EQ(replay.MaySample(largest + 1).code() == StatusCode::kInvalidArgument, is_limited);
  }
}

TEST(SequenceReplayTest, SavesHowOftenSequencesWereDrawn) {
  ReplayOptions options = TestOptions(kGeometry, 100, 0);
  options.max_times_sampled = 2;
  SequenceReplay replay(options), restored(options), other(TestOptions(kGeometry, 100, 0));
  SequenceStream(1, {4}).Insert(&replay, 0, 20);
  std::vector<Sampled> sampled;
  ASSERT_TRUE(replay.Sample(7, 1, &sampled).ok());
  const std::string path = testing::TempDir() + "sequence_replay_test_drawn_" + std::to_string(getpid());
  ASSERT_TRUE(replay.Save(path).ok());
  ASSERT_TRUE(restored.Restore(path).ok());
  EXPECT_EQ(other.Restore(path).code(), StatusCode::kInvalidArgument);
  remove(path.c_str());
  EXPECT_EQ(restored.GetStatistics().size, replay.GetStatistics().size);
  ASSERT_TRUE(restored.Sample(3, 2, &sampled).ok());  // All that are left.
  EXPECT_EQ(restored.GetStatistics().size, 0);
  std::map<int64_t, int> counts;
  for (const Sampled& one : sampled) ++counts[one.sequence->key];
  for (int64_t key = 0; key < 5; ++key) EXPECT_EQ(counts[key], 2);
}

TEST(SequenceReplayTest, KnowsWhetherOptionsAreItsOwn) {
  const ReplayOptions options = TestOptions(kGeometry, 100);
  SequenceReplay replay(options);
  EXPECT_TRUE(replay.CheckSame(options).ok());
  EXPECT_EQ(replay.CheckSame(TestOptions(kGeometry, 101)).code(), StatusCode::kInvalidArgument);
  ReplayOptions limited = options;
  limited.rate_limit.minimum_size = 2;
  EXPECT_EQ(replay.CheckSame(limited).code(), StatusCode::kInvalidArgument);
}

TEST(SequenceReplayTest, RefusesImpossiblePriorities) {
  SequenceReplay replay(TestOptions(kGeometry, 3));
  for (double priority : {-1., std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(replay.Update({0}, {priority}).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(replay.Update({0, 1}, {1}).code(), StatusCode::kInvalidArgument);
}

TEST(SequenceReplayTest, ForgetsStreamsThatHaveEnded) {
  SequenceReplay replay(TestOptions(kGeometry, 20));
  SequenceStream(1, {1000}).Insert(&replay, 0, 20);
  const SequenceStream stream(2, {1});
  for (int i = 0; i < 100'000; ++i) stream.Insert(&replay, 0, 1);  // All but the first one are repeated.
  EXPECT_EQ(replay.GetStatistics().streams, 2);
  stream.Insert(&replay, 0, 1);
  EXPECT_EQ(replay.GetStatistics().streams, 1);
  // One that is heard of again and again is not forgotten, even if many others make more than the replay can hold.
  SequenceReplay small(TestOptions(kGeometry, 4));
  for (int index = 0; index < 30; ++index) {
    for (int stream = 0; stream < 12; ++stream) SequenceStream(stream, {1000}).Insert(&small, index, 20);
  }
  EXPECT_EQ(small.GetStatistics().inserted, 12 * ((30 * 20 - 9) / 4 + 1));
}

// If all streams together made more than 10,000 sequences between two unrolls of a stream, the stream was forgotten,
// and its episode from one unroll to the next was lost.
TEST(SequenceReplayTest, RegressionStreamsOfManyActorsAreNotForgotten) {
  SequenceReplay replay(TestOptions(kGeometry, 20));
  constexpr int kStreams = 3'000, kUnrolls = 2, kSteps = 18;  // Unrolls of four and a half episodes.
  for (int index = 0; index < kUnrolls; ++index) {
    for (int stream = 0; stream < kStreams; ++stream) SequenceStream(stream, {4}).Insert(&replay, index, kSteps);
  }
  EXPECT_EQ(replay.GetStatistics().inserted, kStreams * kUnrolls * kSteps / 4);
}

// ThreadSanitizer watches: everything at once, from many threads.
TEST(SequenceReplayTest, ManyThreadsInsertSampleUpdateAndSave) {
  SequenceReplay replay(TestOptions(kGeometry, 50));
  constexpr int kWriters = 3, kUnrolls = 120;
  const std::vector<SequenceStream> streams = {{0, {1000}}, {1, {7, 1, 30, 13}}, {2, {8, 9, 12, 13}}};
  SetAll(&replay, SequenceStream(3, {4}).Insert(&replay, 0, 20), 1);
  std::vector<std::thread> threads;
  std::atomic<int> writing{kWriters};
  std::atomic<int> failures{0};
  for (int writer = 0; writer < kWriters; ++writer) {
    threads.emplace_back([&, writer] {
      const SequenceStream stream = streams[writer];
      for (int index = 0; index < kUnrolls; ++index) {
        for (const auto& sequence : stream.Insert(&replay, index, kUnrollLength)) {
          if (!replay.Update({sequence->key}, {1. + index}).ok()) ++failures;
        }
      }
      --writing;
    });
  }
  for (int reader = 0; reader < 2; ++reader) {
    threads.emplace_back([&, reader] {
      for (uint64_t seed = reader; writing > 0; seed += 2) {
        std::vector<Sampled> sampled;
        if (!replay.Sample(4, seed, &sampled).ok()) ++failures;
        for (const Sampled& one : sampled) {
          const int64_t stream = one.sequence->stream_id;
          if (stream < kWriters && !streams[stream].Check(replay, *one.sequence).empty()) ++failures;
          replay.Update({one.sequence->key}, {static_cast<double>(seed % 7)});
        }
      }
    });
  }
  threads.emplace_back([&] {
    const std::string path = testing::TempDir() + "sequence_replay_test_" + std::to_string(getpid());
    while (writing > 0) {
      if (!replay.Save(path).ok()) ++failures;
      replay.GetStatistics();
    }
    remove(path.c_str());
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace scalable_agents
