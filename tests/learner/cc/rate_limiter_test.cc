#include "learner/cc/rate_limiter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace scalable_agents {
namespace {

// Calls that have come back, by name, with the code of their status.
struct Log {
  RateLimiter::Callback Named(const std::string& name) {
    return [this, name](const Status& status) { entries.push_back(name + (status.ok() ? "" : " failed")); };
  }
  std::vector<std::string> entries;
};

using Entries = std::vector<std::string>;

TEST(RateLimiterTest, SamplingWaitsForTheMinimumSize) {
  RateLimiter limiter({0, 3, 0});
  Log log;
  limiter.AwaitSample(8, log.Named("sample"));
  limiter.Inserted(2);
  EXPECT_EQ(log.entries, Entries{});
  limiter.Inserted(1);
  EXPECT_EQ(log.entries, Entries{"sample"});
  // Without a ratio nothing waits any more.
  for (int i = 0; i < 100; ++i) limiter.AwaitSample(8, log.Named("sample"));
  for (int i = 0; i < 100; ++i) limiter.AwaitInsert(log.Named("insert"));
  EXPECT_EQ(log.entries.size(), 201u);
}

TEST(RateLimiterTest, WhoeverIsAheadWaits) {
  RateLimiter limiter({2, 10, 4});  // Two samples per insert.
  Log log;
  limiter.Inserted(10);
  limiter.AwaitSample(4, log.Named("1"));  // The credit is 0, then -4.
  limiter.AwaitSample(4, log.Named("2"));
  EXPECT_EQ(log.entries, Entries{"1"});
  limiter.Inserted(1);  // -2; 2 would reach -6.
  EXPECT_EQ(log.entries, Entries{"1"});
  limiter.Inserted(1);  // 0, then -4.
  EXPECT_EQ(log.entries, (Entries{"1", "2"}));
  limiter.Inserted(5);  // 6, more than the tolerance.
  limiter.AwaitInsert(log.Named("3"));
  EXPECT_EQ(log.entries.size(), 2u);
  limiter.AwaitSample(1, log.Named("4"));  // 5.
  EXPECT_EQ(log.entries, (Entries{"1", "2", "4"}));
  limiter.AwaitSample(1, log.Named("5"));  // 4, which ends the insert's wait.
  EXPECT_EQ(log.entries, (Entries{"1", "2", "4", "5", "3"}));
  EXPECT_EQ(limiter.counts().inserted, 17);
  EXPECT_EQ(limiter.counts().sampled, 10);
}

TEST(RateLimiterTest, TheRatioIsKept) {
  RateLimiter limiter({0.77, 5, 64});
  int64_t inserted = 0, sampled = 0;
  for (int round = 0; round < 10'000; ++round) {
    int64_t id = limiter.AwaitInsert([&](const Status&) {});
    if (id < 0) limiter.Inserted(3), inserted += 3;
    limiter.Cancel(id);
    id = limiter.AwaitSample(64, [&](const Status&) { sampled += 64; });
    limiter.Cancel(id);
  }
  EXPECT_NEAR(sampled, 0.77 * (inserted - 5), 64 + 3 * 0.77);
  EXPECT_GT(sampled, 10'000);
}

TEST(RateLimiterTest, ABatchTooLargeForTheToleranceIsRefused) {
  RateLimiter limiter({1, 1, 4});
  Status refused;
  limiter.AwaitSample(9, [&](const Status& status) { refused = status; });
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("twice the tolerance"), std::string::npos);
}

TEST(RateLimiterTest, CancelledWaitsAreNotCounted) {
  RateLimiter limiter({1, 1, 4});
  Log log;
  limiter.Cancel(limiter.AwaitSample(4, log.Named("cancelled")));
  limiter.Inserted(1);
  EXPECT_EQ(log.entries, Entries{});
  EXPECT_EQ(limiter.counts().sampled, 0);
}

TEST(RateLimiterTest, RestoredCountsEndWaits) {
  RateLimiter limiter({1, 10, 4});
  Log log;
  limiter.AwaitSample(4, log.Named("sample"));
  limiter.Restore({12, 0});
  EXPECT_EQ(log.entries, Entries{"sample"});
}

TEST(RateLimiterTest, CloseEndsEveryWait) {
  RateLimiter limiter({1, 10, 4});
  Log log;
  limiter.AwaitSample(4, log.Named("sample"));
  limiter.Inserted(20);  // Ends that wait; the credit is then 6.
  limiter.AwaitInsert(log.Named("insert"));
  EXPECT_EQ(log.entries, Entries{"sample"});
  limiter.Close("the test is over");
  limiter.Close("again");
  std::string message;
  limiter.AwaitSample(4, [&](const Status& status) { message = status.message(); });
  EXPECT_EQ(log.entries, (Entries{"sample", "insert failed"}));
  EXPECT_EQ(message, "The replay is closed: the test is over");
}

TEST(RateLimiterTest, ManyThreadsNeverAllWait) {
  RateLimiter limiter({1.5, 4, 8});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 800; ++i) {
        std::atomic<bool> done{false};
        limiter.AwaitInsert([&](const Status&) { done = true; });
        while (!done) std::this_thread::yield();
        limiter.Inserted(2);
      }
    });
    threads.emplace_back([&] {
      for (int i = 0; i < 600; ++i) {
        std::atomic<bool> done{false};
        limiter.AwaitSample(4, [&](const Status&) { done = true; });
        while (!done) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(limiter.counts().inserted, 4800);
  EXPECT_EQ(limiter.counts().sampled, 7200);
}

}  // namespace
}  // namespace scalable_agents
