// Workers that die, fall silent, send invalid messages or cannot be attached.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actor/cc/actor_pool.h"
#include "tests/actor/cc/fake_worker.h"
#include "tests/actor/cc/mailbox.h"
#include "tests/actor/cc/pool_testing.h"

namespace scalable_agents {
namespace {

using std::chrono::milliseconds;
using Slots = std::vector<uint32_t>;

// Worker 0 with actors 0 and 1 dies. Worker 1 with actor 2 goes on.
class DeathTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(pool_.Attach(0, first_, 0).ok());
    ASSERT_TRUE(pool_.Attach(1, other_, 2).ok());
    first_.ClosePoolsSocket();
    first_.Answer(first_.Await());
    other_.Serve();
  }

  void ExpectFault() {
    const DeliveredFault fault = pool_.AwaitFault();
    EXPECT_EQ(fault.worker, 0);
    EXPECT_EQ(fault.reason, "the worker closed its connection");
  }

  // Attaches the second incarnation, and checks that the pool gives only rows of this incarnation from then on.
  void ExpectCleanStart() {
    ASSERT_TRUE(pool_.Attach(0, second_, 0).ok());
    second_.Serve();
    pool_.ActAllTheTime();
    Checker checker(4);
    std::set<std::pair<int, int>> seen;
    for (int i = 0; i < 60 || seen.size() < 3; ++i) {
      const DeliveredUnroll unroll = pool_.AwaitUnroll();
      checker.Check(unroll);
      if (HasFatalFailure()) return;
      seen.insert({unroll.Get<int32_t>(kActor), unroll.Get<int64_t>(kIncarnation)});
    }
    EXPECT_EQ(seen, (std::set<std::pair<int, int>>{{0, 12}, {1, 12}, {2, 20}}));
  }

  FakeWorker first_{2, 11}, second_{2, 12}, other_{1, 20};
  TestPool pool_{3, 4, 3};
};

TEST_F(DeathTest, InTheMidstOfAnUnroll) {
  std::set<int> acted;
  while (acted.size() < 3) {
    for (int actor : pool_.Act()) acted.insert(actor);
  }
  ASSERT_EQ(first_.Await().size(), 2);
  first_.Die();
  ExpectFault();
  ExpectCleanStart();
}

// Runs one environment for `steps` steps, with unrolls of two steps. Returns the indices of its unrolls.
std::vector<int64_t> LiveFor(int steps, FakeWorker* worker, TestPool* pool, std::set<int64_t>* stream_ids) {
  EXPECT_TRUE(pool->Attach(0, *worker, 5).ok());
  worker->ClosePoolsSocket();
  worker->Answer(worker->Await());
  std::vector<int64_t> indices;
  for (int step = 1; step <= steps; ++step) {
    EXPECT_EQ(pool->Act(), std::vector<int>({5}));
    worker->Answer(worker->Await());
    if (step % 2 != 0) continue;
    const DeliveredUnroll unroll = pool->AwaitUnroll();
    EXPECT_EQ(unroll.Get<uint8_t>(kDone), indices.empty() || IsDone(step - 2));
    indices.push_back(unroll.Get<int64_t>(kIndex));
    stream_ids->insert(unroll.Get<int64_t>(kStreamId));
  }
  EXPECT_EQ(pool->Act(), std::vector<int>({5}));  // It dies during a step, not while it waits for inference.
  EXPECT_EQ(worker->Await(), Slots({0}));
  worker->Die();
  EXPECT_EQ(pool->AwaitFault().worker, 0);
  return indices;
}

TEST(ActorPoolFaultsTest, EveryIncarnationCountsItsUnrollsFromZero) {
  TestPool pool(1, 2);
  std::set<int64_t> stream_ids;
  FakeWorker first(1, 11), second(1, 12), third(1, 13);
  using Indices = std::vector<int64_t>;
  EXPECT_EQ(LiveFor(6, &first, &pool, &stream_ids), Indices({0, 1, 2}));
  EXPECT_EQ(LiveFor(1, &second, &pool, &stream_ids), Indices());  // Its partial unroll is dropped.
  EXPECT_EQ(LiveFor(5, &third, &pool, &stream_ids), Indices({0, 1}));
  EXPECT_EQ(stream_ids, (std::set<int64_t>{0, 2}));
}

TEST_F(DeathTest, WhileInferenceActsForIt) {
  Delivered delivered;
  bool includes_the_dead = false;
  while (!includes_the_dead) {
    delivered = pool_.AwaitBatch();
    for (const auto& actor : delivered.batch.items) includes_the_dead |= actor->worker == 0;
    if (!includes_the_dead) {
      ASSERT_TRUE(pool_.Complete(delivered.batch).ok());
    }
  }
  first_.Die();
  ExpectFault();
  EXPECT_TRUE(pool_.Complete(delivered.batch).ok());
  ExpectCleanStart();
}

TEST_F(DeathTest, WhileInferenceActsForItsSuccessorsPredecessor) {
  // The batch of the first incarnation completes after the second one has begun, and must not affect it.
  Delivered delivered = pool_.AwaitBatch();
  while (delivered.batch.items[0]->worker != 0) {
    ASSERT_TRUE(pool_.Complete(delivered.batch).ok());
    delivered = pool_.AwaitBatch();
  }
  first_.Die();
  ExpectFault();
  ASSERT_TRUE(pool_.Attach(0, second_, 0).ok());
  EXPECT_EQ(second_.Await(), Slots({0, 1}));
  EXPECT_TRUE(pool_.Complete(delivered.batch).ok());
  EXPECT_FALSE(second_.IsAsked());
}

TEST_F(DeathTest, WhileItsActorsWaitForRoom) {
  auto everyone_has_stepped = [&] {
    if (first_.IsAsked()) first_.Answer(first_.Await());
    const auto statistics = pool_->GetStatistics();
    return statistics.steps == 3 + statistics.rows;
  };
  while (true) {
    ASSERT_TRUE(Eventually(everyone_has_stepped));
    pool_.AskForBatch();
    const auto delivered = pool_.batches.Wait(milliseconds(200));
    if (!delivered) break;  // All actors wait.
    ASSERT_TRUE(pool_.Complete(delivered->batch).ok());
  }
  first_.Die();
  ExpectFault();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(pool_.AwaitUnroll().status.ok());  // Full unrolls are kept.
}

TEST(ActorPoolFaultsTest, FaultsWaitForSomebodyToAsk) {
  FakeWorker one(1, 1), two(1, 2);
  TestPool pool(2, 1);
  ASSERT_TRUE(pool.Attach(0, one, 0).ok());
  ASSERT_TRUE(pool.Attach(7, two, 1).ok());
  one.Die();
  two.Die();
  std::set<int> workers;
  for (int i = 0; i < 2; ++i) workers.insert(pool.AwaitFault().worker);
  EXPECT_EQ(workers, std::set<int>({0, 7}));
}

TEST(ActorPoolFaultsTest, SilentWorkerIsAtFaultAndIdleOneIsNot) {
  FakeWorker silent(2, 1), idle(1, 2);
  TestPool pool(3, 1, 1, Barrier::kNone, 40);
  ASSERT_TRUE(pool.Attach(0, silent, 0, 2).ok());
  idle.Answer({0});  // It answers before it is asked, so it is never late. Then it waits for an action.
  ASSERT_TRUE(pool.Attach(1, idle, 2).ok());
  silent.Answer(silent.Await());  // It answers for one of its two groups.
  const DeliveredFault fault = pool.AwaitFault();
  EXPECT_EQ(fault.worker, 0);
  EXPECT_EQ(fault.reason, "no answer for 0.04 s (--environment_timeout_seconds)");
  pool.AskForFault();
  EXPECT_FALSE(pool.faults.Wait(milliseconds(150)).has_value());
}

TEST(ActorPoolFaultsTest, LongWorkHasMoreTime) {
  FakeWorker worker(1, 1);
  worker.SetLongWork(true);
  TestPool pool(1, 1, 1, Barrier::kNone, 40, 1000000);
  ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
  pool.AskForFault();
  EXPECT_FALSE(pool.faults.Wait(milliseconds(300)).has_value());
  // The time restarts when the long work ends.
  pool.waited_ns = -1'000'000'000'000;  // As if the long work had lasted for 1,000 s more.
  pool.starved_ticks = 1'000'000;       // From now on, no time counts.
  worker.SetLongWork(false);
  const int ticks = pool.starved_ticks;
  ASSERT_TRUE(Eventually([&] { return pool.starved_ticks <= ticks - 4; }));
  EXPECT_EQ(pool.faults.size(), 0u);
  pool.starved_ticks = 0;
  pool.waited_ns = -2'000'000'000'000;  // As if it had not answered for 1,000 s since then.
  EXPECT_EQ(pool.faults.Wait().value().reason, "no answer for 0.04 s (--environment_timeout_seconds)");
}

TEST(ActorPoolFaultsTest, LongWorkHasAnEnd) {
  FakeWorker worker(1, 1);
  worker.SetLongWork(true);
  TestPool pool(1, 1, 1, Barrier::kNone, 40, 3);
  ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
  EXPECT_EQ(pool.AwaitFault().reason, "no answer for 0.12 s (long work, 3 times --environment_timeout_seconds)");
}

TEST(ActorPoolFaultsTest, TheTimeWithoutAProcessorDoesNotCount) {
  FakeWorker worker(1, 1);
  TestPool pool(1, 1, 1, Barrier::kNone, 40);
  pool.starved_ticks = 5;
  ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
  pool.AskForFault();
  ASSERT_TRUE(Eventually([&] { return pool.starved_ticks == 0; }));
  EXPECT_EQ(pool.faults.size(), 0u);
  pool.waited_ns = 0;  // As if it had not waited.
  EXPECT_EQ(pool.faults.Wait().value().reason, "no answer for 0.04 s (--environment_timeout_seconds)");
}

class NonsenseTest : public testing::TestWithParam<std::pair<Slots, std::string>> {};

TEST_P(NonsenseTest, IsAFault) {
  FakeWorker worker(3, 1);
  TestPool pool(3, 1);
  ASSERT_TRUE(pool.Attach(0, worker, 0, 2).ok());
  EXPECT_EQ(worker.Await(), Slots({0, 2}));
  EXPECT_EQ(worker.Await(), Slots({1}));
  worker.Answer({1});
  EXPECT_EQ(pool.AwaitBatch().batch.items.size(), 1);
  worker.Send(GetParam().first);
  EXPECT_EQ(pool.AwaitFault().reason, GetParam().second);
}

INSTANTIATE_TEST_SUITE_P(
    , NonsenseTest,
    testing::Values(std::make_pair(Slots({0, 3}), "the worker answered for slot 3, want 0 to 2"),
                    std::make_pair(Slots({0, 0}), "the worker answered for slot 0 without a request"),
                    std::make_pair(Slots({1}), "the worker answered for slot 1 without a request")));

TEST(ActorPoolFaultsTest, AttachChecksItsArguments) {
  FakeWorker worker(2, 1);
  TestPool pool(2, 1);
  EXPECT_EQ(pool.Attach(-1, worker, 0).message(), "worker: want a number >= 0, got -1");
  EXPECT_EQ(pool->Attach(0, worker.pools_socket(), worker.memory(), {{0, 0, 0}, {1, 0, 0}, {2, 0, 0}}).code(),
            StatusCode::kInvalidArgument);  // It has memory for two slots.
  EXPECT_TRUE(pool.Attach(0, worker, 0).ok());
  const Status again = pool.Attach(0, worker, 0);
  EXPECT_EQ(again.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(again.message(), "worker 0 is attached already");
  pool->Close("the end");
  const Status late = pool.Attach(1, worker, 0);
  EXPECT_EQ(late.code(), StatusCode::kCancelled);
  EXPECT_EQ(late.message(), "ActorPool is closed: the end");
}

TEST(ActorPoolFaultsTest, RegressionTooManyOpenFilesAreAnError) {
  FakeWorker worker(2, 1);
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  TestPool pool(2, 1);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const Status status = pool.Attach(0, worker, 0);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "ActorPool cannot listen to workers: Too many open files");
}

TEST(ActorPoolFaultsTest, RegressionAFullSocketLosesNoAction) {
  constexpr int kSlots = 64;
  FakeWorker worker(kSlots, 1);
  const int least = 0;  // The operating system rounds it up. The socket then has room for a few messages.
  ASSERT_EQ(setsockopt(worker.pools_socket(), SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)), 0);
  TestPool pool(kSlots, 5, 1, Barrier::kNone, 60000, 1, false);
  ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
  worker.Answer(worker.Await());
  for (int actor = 0; actor < kSlots; ++actor) EXPECT_EQ(pool.Act(), std::vector<int>({actor}));
  std::vector<uint32_t> all;
  int messages = 0;
  for (; all.size() < kSlots; ++messages) {
    const std::vector<uint32_t> slots = worker.Await();
    ASSERT_FALSE(slots.empty());
    all.insert(all.end(), slots.begin(), slots.end());
    worker.Answer(slots);
  }
  EXPECT_LT(messages, kSlots);
  std::sort(all.begin(), all.end());
  for (uint32_t slot = 0; slot < kSlots; ++slot) EXPECT_EQ(all[slot], slot);
}

TEST(ActorPoolFaultsTest, WorkersDieWhileEverybodyIsBusy) {
  constexpr int kIncarnations = 10;
  std::vector<std::unique_ptr<FakeWorker>> incarnations;
  FakeWorker other(2, 1000);
  TestPool pool(4, 3, 2);
  ASSERT_TRUE(pool.Attach(1, other, 2, 2).ok());
  other.Serve();
  pool.ActAllTheTime();
  Checker checker(3);
  std::set<int64_t> seen;
  for (int incarnation = 1; incarnation <= kIncarnations; ++incarnation) {
    incarnations.push_back(std::make_unique<FakeWorker>(2, incarnation));
    ASSERT_TRUE(pool.Attach(0, *incarnations.back(), 0, 2).ok());
    incarnations.back()->Serve();
    while (seen.count(incarnation) == 0) {
      const DeliveredUnroll unroll = pool.AwaitUnroll();
      checker.Check(unroll);
      if (HasFatalFailure()) return;
      seen.insert(unroll.Get<int64_t>(kIncarnation));
    }
    incarnations.back()->Die();
    EXPECT_EQ(pool.AwaitFault().worker, 0);
  }
}

}  // namespace
}  // namespace scalable_agents
