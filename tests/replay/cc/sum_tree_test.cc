#include "replay/cc/sum_tree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace scalable_agents {
namespace {

// Finds the slot by adding up the weights one by one.
int64_t FindSlowly(const std::vector<double>& weights, double mass) {
  double sum = 0;
  for (size_t slot = 0; slot < weights.size(); ++slot) {
    sum += weights[slot];
    if (mass < sum) return slot;
  }
  return -1;
}

TEST(SumTreeTest, AgreesWithASlowSearchAfterEveryChange) {
  std::mt19937 random(1);
  for (int64_t capacity : {1, 2, 3, 7, 64, 100}) {
    SumTree tree(capacity);
    std::vector<double> weights(capacity);
    for (int change = 0; change < 300; ++change) {
      const int64_t slot = random() % capacity;
      // Whole numbers, so that sums are exact in any order of addition. A third of the weights is 0.
      weights[slot] = random() % 3 == 0 ? 0 : random() % 1000;
      tree.Set(slot, weights[slot]);
      double total = 0;
      for (double weight : weights) total += weight;
      ASSERT_EQ(tree.total(), total);
      ASSERT_EQ(tree.Get(slot), weights[slot]);
      if (total == 0) continue;
      for (int draw = 0; draw < 10; ++draw) {
        const double mass = random() % static_cast<int64_t>(total) + 0.5 * (random() % 2);
        ASSERT_EQ(tree.Find(mass), FindSlowly(weights, mass)) << "capacity " << capacity << ", mass " << mass;
      }
    }
  }
}

TEST(SumTreeTest, DrawsInProportionToTheWeights) {
  constexpr int kSlots = 37, kDraws = 1'000'000;
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> uniform;
  SumTree tree(kSlots);
  for (int slot = 0; slot < kSlots; ++slot) tree.Set(slot, slot % 5 == 0 ? 0 : uniform(random));
  std::vector<int> counts(kSlots);
  for (int draw = 0; draw < kDraws; ++draw) ++counts[tree.Find(uniform(random) * tree.total())];
  double chi_squared = 0;
  int degrees_of_freedom = -1;
  for (int slot = 0; slot < kSlots; ++slot) {
    const double expected = kDraws * tree.Get(slot) / tree.total();
    if (expected == 0) {
      EXPECT_EQ(counts[slot], 0);
      continue;
    }
    chi_squared += (counts[slot] - expected) * (counts[slot] - expected) / expected;
    ++degrees_of_freedom;
  }
  ASSERT_EQ(degrees_of_freedom, 28);
  EXPECT_LT(chi_squared, 56.9);  // Exceeded with probability 0.001.
}

TEST(SumTreeTest, NeverFindsASlotOfWeightZeroWhereRoundingWouldReachOne) {
  SumTree tree(4);
  tree.Set(0, 0.1);
  tree.Set(1, 0.2);
  EXPECT_EQ(tree.Find(tree.total()), 1);  // Not in [0, total()), but a rounded product may be.
  EXPECT_EQ(tree.Find(std::nextafter(tree.total(), 0)), 1);
  tree.Set(0, 0);
  EXPECT_EQ(tree.Find(0), 1);
}

TEST(SumTreeTest, SumsDoNotDriftInManyChanges) {
  constexpr int kSlots = 1000;
  std::mt19937_64 random(3);
  SumTree tree(kSlots);
  // Weights of very different sizes: if differences were added to the sums, the small ones would be lost.
  for (int change = 0; change < 100'000; ++change) {
    tree.Set(random() % kSlots, std::ldexp(1 + random() % 1024, static_cast<int>(random() % 60) - 30));
  }
  for (int slot = 1; slot < kSlots; ++slot) tree.Set(slot, 0);
  EXPECT_EQ(tree.total(), tree.Get(0));
  tree.Set(0, 0);
  EXPECT_EQ(tree.total(), 0);
}

}  // namespace
}  // namespace scalable_agents
