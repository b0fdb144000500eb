#include "environments/cc/pixel_pass.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

namespace scalable_agents {
namespace {

std::vector<Instructions> All() {
  std::vector<Instructions> all;
  for (int i = 0; i <= static_cast<int>(BestInstructions()); ++i) all.push_back(static_cast<Instructions>(i));
  return all;
}

TEST(AreaCoversTest, SharesAreLengths) {
  const std::vector<Cover> smaller = AreaCovers(5, 2), larger = AreaCovers(2, 3), same = AreaCovers(7, 7);
  EXPECT_EQ(smaller[0].first, 0);
  EXPECT_EQ(smaller[0].shares, (std::vector<int>{2, 2, 1}));
  EXPECT_EQ(smaller[1].first, 2);
  EXPECT_EQ(smaller[1].shares, (std::vector<int>{1, 2, 2}));
  EXPECT_EQ(larger[1].first, 0);
  EXPECT_EQ(larger[1].shares, (std::vector<int>{1, 1}));
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(same[i].first, i);
    EXPECT_EQ(same[i].shares, std::vector<int>{1});
  }
}

TEST(AreaCoversTest, EveryPixelIsCoveredOnce) {
  for (int from = 1; from < 40; ++from) {
    for (int to = 1; to < 40; ++to) {
      std::vector<int> covered(from);
      for (const Cover& cover : AreaCovers(from, to)) {
        EXPECT_EQ(std::accumulate(cover.shares.begin(), cover.shares.end(), 0), from / std::gcd(from, to));
        for (size_t j = 0; j < cover.shares.size(); ++j) covered[cover.first + j] += cover.shares[j];
      }
      EXPECT_EQ(covered, std::vector<int>(from, to / std::gcd(from, to)));
    }
  }
}

// Every array has its exact size, so that AddressSanitizer sees what is read beyond it.
TEST(PixelPassTest, AllInstructionsGiveTheSame) {
  std::mt19937 random;
  for (const auto& [screen, observation, stack] : std::vector<std::tuple<Size, Size, int>>{
           {{210, 160}, {84, 84}, 4}, {{210, 160}, {84, 84}, 2}, {{250, 160}, {84, 84}, 4}, {{3, 7}, {5, 2}, 1}}) {
    const int num_pixels = screen.height * screen.width;
    std::vector<uint8_t> indices(num_pixels), gray(num_pixels), grays(256);
    for (uint8_t& one : grays) one = random();
    std::vector<std::vector<uint8_t>> expected;  // Of each observation.
    for (Instructions instructions : All()) {
      random.seed(1);
      PixelPass pass(screen, observation, stack, instructions);
      std::vector<uint8_t> pooled(num_pixels), observed(observation.height * observation.width * stack);
      for (int number = 0; number < 6; ++number) {
        for (int i = 0; i < num_pixels; ++i) {
          indices[i] = random() % (40 * number + 1);
          gray[i] = grays[indices[i]];
        }
        for (bool is_first : {true, false}) {
          if (!pass.Add(indices.data(), is_first, pooled.data())) {
            pass.AddGray(indices.data(), gray.data(), is_first, pooled.data());
          }
          for (int i = 0; i < num_pixels; ++i) gray[i] = grays[indices[i] = 255 - indices[i]];
        }
        pass.Observe(pooled.data(), observed.data());
        if (instructions == Instructions::kPlain) {
          expected.push_back(observed);
        } else {
          ASSERT_EQ(observed, expected[number]) << static_cast<int>(instructions);
        }
      }
    }
  }
}

TEST(PixelPassTest, AScreenOfTwoGraysByHand) {
  for (Instructions instructions : All()) {
    PixelPass pass({5, 1}, {2, 1}, 2, instructions);
    const std::vector<uint8_t> indices = {0, 2, 2, 0, 0}, gray = {10, 20, 20, 10, 10}, brighter = {30, 20, 20, 30, 30};
    std::vector<uint8_t> pooled(5), observed(4);
    EXPECT_FALSE(pass.Add(indices.data(), true, pooled.data()));
    pass.AddGray(indices.data(), gray.data(), true, pooled.data());
    EXPECT_TRUE(pass.Add(indices.data(), false, pooled.data()));
    pass.Observe(pooled.data(), observed.data());
    EXPECT_EQ(observed, (std::vector<uint8_t>{0, 16, 0, 12}));  // (2 10 + 2 20 + 20) / 5 and (20 + 2 10 + 2 10) / 5.
    pass.AddGray(indices.data(), brighter.data(), false, pooled.data());
    pass.Observe(pooled.data(), observed.data());
    EXPECT_EQ(observed, (std::vector<uint8_t>{16, 24, 12, 28}));
  }
}

}  // namespace
}  // namespace scalable_agents
