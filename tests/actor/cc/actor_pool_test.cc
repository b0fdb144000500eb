// The pool's unrolls, back-pressure, stopped environments and the end. actor_pool_faults_test.cc tests faults of
// workers, and actor_pool_barrier_test.cc tests pools with a barrier.
#include "actor/cc/actor_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tests/actor/cc/fake_worker.h"
#include "tests/actor/cc/mailbox.h"
#include "tests/actor/cc/pool_testing.h"

namespace scalable_agents {
namespace {

using std::chrono::milliseconds;
using Slots = std::vector<uint32_t>;
constexpr milliseconds kShortWhile(30);  // Time in which an event must not happen.

TEST(ActorPoolTest, UnrollsFollowTheContract) {
  constexpr int kWorkers = 3, kSlots = 4, kUnrolls = 400;
  std::vector<std::unique_ptr<FakeWorker>> workers;
  TestPool pool(kWorkers * kSlots, 5, 2);
  for (int i = 0; i < kWorkers; ++i) {
    workers.push_back(std::make_unique<FakeWorker>(kSlots, 10 + i));
    ASSERT_TRUE(pool.Attach(i, *workers[i], kSlots * i, 2).ok());
    workers[i]->Serve();
  }
  pool.ActAllTheTime();
  pool.ActAllTheTime();
  Checker checker(5);
  // On a busy machine an actor may be slow, so go on until each has made two unrolls.
  for (int i = 0; i < kUnrolls || checker.actors() < kWorkers * kSlots || checker.fewest_unrolls() < 2; ++i) {
    checker.Check(pool.AwaitUnroll());
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(checker.actors(), kWorkers * kSlots);
}

TEST(ActorPoolTest, FirstUnrollRowByRow) {
  FakeWorker worker(1, 3);
  TestPool pool(1, 2);
  ASSERT_TRUE(pool.Attach(0, worker, 5).ok());
  pool.AskForUnroll();
  worker.Answer(worker.Await());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(pool.unrolls.size(), 0);
    EXPECT_EQ(pool.Act(), std::vector<int>({5}));
    worker.Answer(worker.Await());
  }
  const DeliveredUnroll unroll = *pool.unrolls.Wait();
  Checker(2).Check(unroll);
  for (int t = 0; t <= 2; ++t) {
    EXPECT_EQ(unroll.Get<int64_t>(kStep, t), t);
    EXPECT_EQ(unroll.Get<int64_t>(kVersion, t), t);
    EXPECT_EQ(unroll.Get<uint8_t>(kDone, t), t == 0);
  }
}

TEST(ActorPoolTest, ActorsWaitWhileUnrollsAreNotTaken) {
  FakeWorker worker(2, 3);
  TestPool pool(2, 1, 1);
  ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
  worker.Answer(worker.Await());
  for (int i = 0; i < 2; ++i) {  // One pair of unrolls is accepted. The next one waits with its actors.
    EXPECT_EQ(pool.Act(), std::vector<int>({0, 1}));
    worker.Answer(worker.Await());
  }
  ASSERT_TRUE(Eventually([&] { return pool->GetStatistics().blocked_ns > 0; }));
  pool.AskForBatch();
  EXPECT_FALSE(pool.batches.Wait(kShortWhile).has_value());
  EXPECT_FALSE(worker.IsAsked());
  const int64_t blocked = pool->GetStatistics().blocked_ns;
  EXPECT_GE(blocked, 1000000 * (kShortWhile.count() - 1));
  Checker checker(1);
  checker.Check(pool.AwaitUnroll());
  EXPECT_FALSE(pool.batches.Wait(kShortWhile).has_value());  // The other unroll of the pair fills the capacity.
  checker.Check(pool.AwaitUnroll());
  const auto batch = pool.batches.Wait();
  ASSERT_TRUE(batch.has_value());
  EXPECT_EQ(batch->batch.items.size(), 2);  // The group has stayed together.
  const int64_t blocked_in_all = pool->GetStatistics().blocked_ns;
  EXPECT_GT(blocked_in_all, blocked);
  EXPECT_EQ(pool->GetStatistics().blocked_ns, blocked_in_all);
  for (int i = 0; i < 2; ++i) checker.Check(pool.AwaitUnroll());
}

void ExpectOutOfMemory(const Status& status) {
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "there is not enough memory for another unroll of 1 steps");
}

TEST(ActorPoolTest, FirstUnrollForWhichThereIsNoMemoryEndsThePool) {
  FakeWorker worker(2, 3);
  TestPool pool(2, 1);
  pool.out_of_memory = true;
  ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
  pool.AskForUnroll();
  pool.AskForFault();
  pool.AskForBatch();
  worker.Answer(worker.Await());
  ExpectOutOfMemory(pool.unrolls.Wait()->status);
  ExpectOutOfMemory(pool.faults.Wait()->status);
  EXPECT_EQ(pool.batches.Wait()->status.code(), StatusCode::kCancelled);
  ExpectOutOfMemory(pool.AwaitUnroll().status);
}

TEST(ActorPoolTest, NextUnrollForWhichThereIsNoMemoryEndsThePool) {
  // The next unroll starts when the full one is accepted: at once, or, if parked, when another unroll is taken.
  for (const bool parked : {false, true}) {
    FakeWorker worker(1, 3);
    TestPool pool(1, 1);
    ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
    worker.Answer(worker.Await());
    for (int i = 0; i < parked; ++i) {
      pool.Act();
      worker.Answer(worker.Await());
    }
    pool.Act();
    if (!parked) pool.out_of_memory = true;
    worker.Answer(worker.Await());
    if (parked) {
      ASSERT_TRUE(Eventually([&] { return pool->GetStatistics().blocked_ns > 0; }));
      pool.out_of_memory = true;
      EXPECT_TRUE(pool.AwaitUnroll().status.ok());
    }
    ExpectOutOfMemory(pool.AwaitUnroll().status);
  }
}

TEST(ActorPoolTest, StatesForWhichThereCanBeNoMemoryAreRefused) {
  FakeWorker worker(1, 3);
  ActorPool::Options options;
  options.num_environments = options.layout.unroll_length = 1;
  options.slot_bytes = sizeof(Row);
  options.layout.agent_output_bytes = {4};
  for (const std::vector<int64_t>& bytes : {std::vector<int64_t>{INT64_MAX, 1}, {INT64_MAX, INT64_MAX, 2}}) {
    options.layout.agent_state_bytes = bytes;
    ActorPool pool(options, [](int) { return Buffer(); });
    const Status status = pool.Attach(0, worker.pools_socket(), worker.memory(), {{0, 0, 0}});
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.message();
  }
}

TEST(ActorPoolTest, ConsumerThatWaitsIsServedBeforeActorsWait) {
  FakeWorker worker(1, 3);
  TestPool pool(1, 1, 1);
  ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
  worker.Serve();
  for (int i = 0; i < 20; ++i) pool.AskForUnroll();
  for (int i = 0; i < 21; ++i) pool.Act();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(pool.unrolls.Wait().has_value());
  EXPECT_EQ(pool->GetStatistics().blocked_ns, 0);
}

TEST(ActorPoolTest, UnknownBatch) {
  TestPool pool(1, 1);
  EXPECT_EQ(pool->BatchSize(3), -1);
  const Status status = pool->CompleteBatch(3, 0, {nullptr, nullptr}, {nullptr, nullptr});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "Invalid computation id. Id: 3");
}

TEST(ActorPoolTest, CloseEndsEveryWait) {
  FakeWorker worker(1, 1);
  TestPool pool(1, 5);
  ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
  worker.Answer(worker.Await());
  EXPECT_TRUE(pool.AwaitBatch().status.ok());  // The batch stays in flight.
  for (int i = 0; i < 2; ++i) {
    pool.AskForBatch();
    pool.AskForUnroll();
    pool.AskForFault();
    pool->Close(i == 0 ? "the end" : "again");  // In the second round the pool is closed already.
  }
  ASSERT_EQ(pool.batches.size(), 2);
  ASSERT_EQ(pool.unrolls.size(), 2);
  ASSERT_EQ(pool.faults.size(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(pool.batches.Wait()->status.message(), "Batcher is closed: the end");
    EXPECT_EQ(pool.unrolls.Wait()->status.message(), "ActorPool is closed: the end");
    const DeliveredFault fault = *pool.faults.Wait();
    EXPECT_EQ(fault.status.code(), StatusCode::kCancelled);
    EXPECT_EQ(fault.status.message(), "ActorPool is closed: the end");
  }
  EXPECT_TRUE(worker.SeesTheEnd());
}

TEST(ActorPoolTest, RegressionBatchInFlightWhenThePoolIsClosedIsCancelled) {
  FakeWorker worker(1, 1);
  TestPool pool(1, 5);
  ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
  worker.Answer(worker.Await());
  const Delivered in_flight = pool.AwaitBatch();
  pool->Close("the end");
  const Status status = pool.Complete(in_flight.batch);
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_EQ(status.message(), "ActorPool is closed: the end");
}

TEST(ActorPoolTest, RegressionCloseWhileEverybodyIsBusy) {
  for (int round = 0; round < 30; ++round) {
    FakeWorker one(3, 1), two(2, 2);
    TestPool pool(5, 2, 1);
    ASSERT_TRUE(pool.Attach(0, one, 0, 2).ok());
    ASSERT_TRUE(pool.Attach(1, two, 3, 1).ok());
    one.Serve();
    two.Serve();
    pool.ActAllTheTime();
    pool.ActAllTheTime();
    Checker checker(2);
    for (int i = 0; i < round; ++i) checker.Check(pool.AwaitUnroll());
    std::thread other([&] { pool->Close("one of two"); });
    pool->Close("two of two");
    other.join();
    EXPECT_EQ(pool.AwaitUnroll().status.code(), StatusCode::kCancelled);
  }
}

TEST(ActorPoolTest, RetiredActorsRestAndTheOthersGoOn) {
  FakeWorker first(2, 1), second(2, 2), other(1, 3);
  TestPool pool(3, 2);
  ASSERT_TRUE(pool.Attach(0, first, 0).ok());
  ASSERT_TRUE(pool.Attach(1, other, 2).ok());
  first.Answer(first.Await());
  EXPECT_EQ(pool.Act(), std::vector<int>({0, 1}));
  EXPECT_TRUE(pool->Retire(1).ok());
  first.Answer(first.Await());  // The answer for its current step.
  EXPECT_EQ(pool.Act(), std::vector<int>({0}));
  EXPECT_EQ(first.Await(), Slots({0}));
  EXPECT_TRUE(pool->Retire(0).ok());
  first.Answer({0});
  other.Serve();
  pool.ActAllTheTime();
  Checker checker(2);
  for (int i = 0; i < 20; ++i) {
    const DeliveredUnroll unroll = pool.AwaitUnroll();
    checker.Check(unroll);
    EXPECT_EQ(unroll.Get<int32_t>(kActor), 2);
  }
  EXPECT_FALSE(first.IsAsked());
  first.ClosePoolsSocket();
  first.Die();
  EXPECT_EQ(pool.AwaitFault().worker, 0);
  ASSERT_TRUE(pool.Attach(0, second, 0).ok());
  second.Answer(second.Await());  // First observations, which the pool ignores.
  for (int i = 0; i < 20; ++i) EXPECT_EQ(pool.AwaitUnroll().Get<int32_t>(kActor), 2);
  EXPECT_FALSE(second.IsAsked());
}

TEST(ActorPoolTest, StatisticsCountAndNeverFall) {
  FakeWorker first(2, 1), second(2, 2);
  TestPool pool(2, 2, 1);
  std::vector<ActorPool::Statistics> seen;
  auto look = [&] { seen.push_back(pool->GetStatistics()); };
  look();
  ASSERT_TRUE(pool.Attach(0, first, 0).ok());
  first.Answer(first.Await());
  for (int i = 0; i < 4; ++i) {  // Now the actors wait for room.
    pool.Act();
    look();
    first.Answer(first.Await());
  }
  ASSERT_TRUE(Eventually([&] { return pool->GetStatistics().blocked_ns > 0; }));
  look();
  EXPECT_EQ(seen.back().steps, 2 * 5);
  EXPECT_EQ(seen.back().batches, 4);
  EXPECT_EQ(seen.back().rows, 2 * 4);
  EXPECT_EQ(seen.back().stepping_ns, 2 * 5);  // A fake worker counts a nanosecond per step.
  first.Die();
  pool.AwaitFault();
  look();
  ASSERT_TRUE(pool.Attach(0, second, 0).ok());
  look();
  second.Serve();
  for (int i = 0; i < 4; ++i) {
    if (i < 2) pool.AwaitUnroll();
    pool.Act();
    look();
  }
  pool.AskForBatch();
  ASSERT_FALSE(pool.batches.Wait(kShortWhile).has_value());
  look();
  pool->Close("");
  look();
  for (size_t i = 1; i < seen.size(); ++i) {
    EXPECT_GE(seen[i].steps, seen[i - 1].steps) << i;
    EXPECT_GE(seen[i].batches, seen[i - 1].batches) << i;
    EXPECT_GE(seen[i].rows, seen[i - 1].rows) << i;
    EXPECT_GE(seen[i].inference_waiting_ns, seen[i - 1].inference_waiting_ns) << i;
    EXPECT_GE(seen[i].stepping_ns, seen[i - 1].stepping_ns) << i;
    EXPECT_GE(seen[i].blocked_ns, seen[i - 1].blocked_ns) << i;
  }
  EXPECT_GT(seen.back().inference_waiting_ns, 0);
}

}  // namespace
}  // namespace scalable_agents
