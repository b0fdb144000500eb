#include "replay/cc/window_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace scalable_agents {
namespace {

bool operator==(const Window& a, const Window& b) { return a.first == b.first && a.begin == b.begin && a.end == b.end; }

std::vector<Window> PlanAll(const SequenceGeometry& geometry, const std::vector<bool>& starts, int64_t first_step = 0) {
  WindowPlanner planner(geometry, first_step);
  std::vector<Window> windows;
  for (bool start : starts) planner.Add(start, start, &windows);
  return windows;
}

std::vector<bool> StartsAt(int num_rows, const std::vector<int>& rows) {
  std::vector<bool> starts(num_rows);
  for (int row : rows) starts[row] = true;
  return starts;
}

void ExpectWindows(const std::vector<Window>& got, const std::vector<Window>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(got[i] == want[i]) << "window " << i << ": first " << got[i].first << ", begin " << got[i].begin
                                   << ", end " << got[i].end;
  }
}

SequenceGeometry RandomGeometry(std::mt19937* random) {
  SequenceGeometry geometry;
  geometry.burn_in = (*random)() % 8;
  geometry.length = 1 + (*random)() % 8;
  geometry.period = 1 + (*random)() % geometry.length;
  geometry.history = (*random)() % 4;
  return geometry;
}

constexpr SequenceGeometry kPaper{40, 80, 40, false, 3};

TEST(WindowPlannerTest, ThePapersSequencesOfALongEpisode) {
  // Every 40 rows from the episode's first; each is complete one row after its last one, which is row 80 of the first.
  ExpectWindows(PlanAll(kPaper, StartsAt(81, {0})), {});
  ExpectWindows(PlanAll(kPaper, StartsAt(82, {0})), {{-40, 0, 82}});
  ExpectWindows(PlanAll(kPaper, StartsAt(162, {0})), {{-40, 0, 82}, {0, 0, 122}, {40, 0, 162}});
}

TEST(WindowPlannerTest, TheEndOfAnEpisodePadsOneSequence) {
  // The episode has 100 steps, from row 0 to row 100. The second sequence trains steps 40 to 99. A third one would
  // train only steps that the second has.
  ExpectWindows(PlanAll(kPaper, StartsAt(101, {0, 100})), {{-40, 0, 82}, {0, 0, 101}});
  // All steps of an episode of 80 are in the first sequence, but not those of an episode of 81.
  ExpectWindows(PlanAll(kPaper, StartsAt(81, {0, 80})), {{-40, 0, 81}});
  ExpectWindows(PlanAll(kPaper, StartsAt(82, {0, 81})), {{-40, 0, 82}, {0, 0, 82}});
}

TEST(WindowPlannerTest, ShortEpisodesAreOneSequenceEach) {
  ExpectWindows(PlanAll(kPaper, StartsAt(20, {0, 1, 4, 13})), {{-40, 0, 2}, {-39, 1, 5}, {-36, 4, 14}});
}

TEST(WindowPlannerTest, ASegmentThatBeginsInAnEpisodeHasAWholeBurnIn) {
  // The first three rows only complete the stacks of frames. Row 3 is step 40 of its episode, where a sequence begins.
  // The next episode is like any other.
  ExpectWindows(PlanAll(kPaper, StartsAt(125, {}), 37), {{3, 3, 125}});
  ExpectWindows(PlanAll(kPaper, StartsAt(62, {50, 60}), 37), {{3, 3, 51}, {10, 50, 61}});
  ExpectWindows(PlanAll(kPaper, StartsAt(62, {43}), 37), {});
  // Row 39 is step 40 of its episode; row 3 is step 4.
  ExpectWindows(PlanAll(kPaper, StartsAt(161, {}), 1), {{39, 3, 161}});
}

TEST(WindowPlannerTest, AfterAGapSequencesBeginWhereTheyWouldHaveBegunWithoutIt) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 500; ++trial) {
    SequenceGeometry geometry = RandomGeometry(&random);
    geometry.cross_episodes = random() % 2;
    std::vector<bool> starts(80);
    starts[0] = true;
    for (size_t row = 1; row < starts.size(); ++row) starts[row] = random() % 15 == 0;
    const int gap = 1 + random() % 30;
    int64_t first_step = 0;
    for (int row = 1; row <= gap; ++row) first_step = starts[row] && !geometry.cross_episodes ? 0 : first_step + 1;
    const std::vector<bool> after_gap(starts.begin() + gap, starts.end());
    for (const Window& window : PlanAll(geometry, after_gap, first_step)) {
      int64_t origin = gap + window.begin;  // The row in which the episode started.
      while (!starts[origin]) --origin;
      const int64_t first = gap + window.first;
      ASSERT_EQ((geometry.cross_episodes ? first : first + geometry.burn_in - origin) % geometry.period, 0);
    }
  }
}

TEST(WindowPlannerTest, ALostLifeAfterAGapLeavesTheStacksToBeCompleted) {
  // The segment begins with a lost life, which starts an episode for the learner only: the frames before it are
  // missing.
  WindowPlanner planner(kPaper, 0);
  std::vector<Window> windows;
  for (int row = 0; row < 122; ++row) planner.Add(row == 0 || row == 1 || row == 120, false, &windows);
  ExpectWindows(windows, {{41, 3, 121}});
  // Later, when all frames are there, it is the start of sequences like any other.
  for (int row = 122; row < 130; ++row) planner.Add(row == 129, false, &windows);
  ASSERT_EQ(windows.size(), 2u);
  EXPECT_EQ(windows[1].begin, 120);
  EXPECT_EQ(windows[1].first, 80);
}

TEST(WindowPlannerTest, CrossEpisodesIgnoresTheirEnds) {
  SequenceGeometry geometry = kPaper;
  geometry.cross_episodes = true;
  ExpectWindows(PlanAll(geometry, StartsAt(162, {0, 5, 90, 130})), {{0, 0, 122}, {40, 0, 162}});
  ExpectWindows(PlanAll(geometry, StartsAt(125, {50}), 37), {{3, 3, 125}});
}

// For many random segments: what must hold for the steps of each episode, whatever the geometry.
TEST(WindowPlannerTest, TrainsEveryStepOfEveryCompleteEpisode) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 500; ++trial) {
    const SequenceGeometry geometry = RandomGeometry(&random);
    std::vector<bool> starts(1 + random() % 60);
    starts[0] = true;
    std::vector<int> episode_starts = {0};
    for (size_t row = 1; row < starts.size(); ++row) {
      starts[row] = random() % 10 == 0;
      if (starts[row]) episode_starts.push_back(row);
    }
    const int complete_rows = episode_starts.back();
    std::vector<int> times_trained(starts.size());
    for (const Window& window : PlanAll(geometry, starts)) {
      const int64_t trained = window.first + geometry.burn_in;
      ASSERT_TRUE(std::count(episode_starts.begin(), episode_starts.end(), window.begin));
      ASSERT_EQ((trained - window.begin) % geometry.period, 0);
      int num_trained = 0;
      for (int64_t step = trained; step < trained + geometry.length && step + 1 < window.end; ++step) {
        ++times_trained[step];
        ++num_trained;
        ASSERT_TRUE(step == window.begin || !starts[step]) << "a sequence goes on across an episode's end";
      }
      ASSERT_GT(num_trained, 0);
      ASSERT_LE(window.end, static_cast<int64_t>(starts.size()));
    }
    for (int step = 0; step < complete_rows; ++step) {
      ASSERT_GE(times_trained[step], 1) << "trial " << trial << ", step " << step;
      ASSERT_LE(times_trained[step], (geometry.length + geometry.period - 1) / geometry.period);
    }
  }
}

TEST(WindowPlannerTest, WantsTheStatesOfItsFutureWindowsOnly) {
  WindowPlanner planner({4, 8, 4, false, 0}, 0);
  std::vector<Window> windows;
  std::vector<int> wanted;
  for (int row = 0; row < 24; ++row) {
    planner.Add(row == 0 || row == 18, row == 0 || row == 18, &windows);
    if (planner.WantsState(row, {0, 4, 11})) wanted.push_back(row);
  }
  // Windows begin at -4, 0, 4, 8, ...: offset 0 gives rows 0, 4, 8, 12, 16; offset 4 the same rows; offset 11 gives 7,
  // 11, 15. From row 18 on the next episode: 18, 22 and so on.
  EXPECT_EQ(wanted, (std::vector<int>{0, 4, 7, 8, 11, 12, 15, 16, 18, 22}));
}

}  // namespace
}  // namespace scalable_agents
