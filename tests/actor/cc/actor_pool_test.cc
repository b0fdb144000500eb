#include "actor/cc/actor_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/actor/cc/fake_worker.h"
#include "tests/actor/cc/mailbox.h"
#include "tests/actor/cc/pool_testing.h"

namespace scalable_agents {
namespace {

using std::chrono::milliseconds;
using Slots = std::vector<uint32_t>;
constexpr milliseconds kShortWhile(30);  // For what must not happen.

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
  // Whoever else waits for a processor, all actors come by.
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
  for (int i = 0; i < 2; ++i) {  // Then one pair of unrolls has been accepted, the next one waits with its actors.
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
  EXPECT_FALSE(pool.batches.Wait(kShortWhile).has_value());  // One of the pair still fills the capacity.
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
  for (const bool parked : {false, true}) {  // It is started when a full one is accepted, at once or once it is taken.
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
  options.num_environments = options.unroll_length = 1;
  options.slot_bytes = sizeof(Row);
  options.agent_output_bytes = {4};
  for (const std::vector<int64_t>& bytes : {std::vector<int64_t>{INT64_MAX, 1}, {INT64_MAX, INT64_MAX, 2}}) {
    options.agent_state_bytes = bytes;
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

// Worker 0 with actors 0 and 1 dies, worker 1 with actor 2 lives.
class DeathTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(pool_.Attach(0, first_life_, 0).ok());
    ASSERT_TRUE(pool_.Attach(1, other_, 2).ok());
    first_life_.ClosePoolsSocket();
    first_life_.Answer(first_life_.Await());
    other_.Serve();
  }

  void ExpectFault() {
    const DeliveredFault fault = pool_.AwaitFault();
    EXPECT_EQ(fault.worker, 0);
    EXPECT_EQ(fault.reason, "the worker closed its connection");
  }

  // Attaches the second life and checks that only it is heard of from now on.
  void ExpectCleanStart() {
    ASSERT_TRUE(pool_.Attach(0, second_life_, 0).ok());
    second_life_.Serve();
    pool_.ActAllTheTime();
    Checker checker(4);
    std::set<std::pair<int, int>> seen;
    for (int i = 0; i < 60 || seen.size() < 3; ++i) {
      const DeliveredUnroll unroll = pool_.AwaitUnroll();
      checker.Check(unroll);
      if (HasFatalFailure()) return;
      seen.insert({unroll.Get<int32_t>(kActor), unroll.Get<int64_t>(kLife)});
    }
    EXPECT_EQ(seen, (std::set<std::pair<int, int>>{{0, 12}, {1, 12}, {2, 20}}));
  }

  FakeWorker first_life_{2, 11}, second_life_{2, 12}, other_{1, 20};
  TestPool pool_{3, 4, 3};
};

TEST_F(DeathTest, InTheMidstOfAnUnroll) {
  std::set<int> acted;
  while (acted.size() < 3) {
    for (int actor : pool_.Act()) acted.insert(actor);
  }
  ASSERT_EQ(first_life_.Await().size(), 2);
  first_life_.Die();
  ExpectFault();
  ExpectCleanStart();
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
  first_life_.Die();
  ExpectFault();
  EXPECT_TRUE(pool_.Complete(delivered.batch).ok());
  ExpectCleanStart();
}

TEST_F(DeathTest, WhileInferenceActsForItsSuccessorsPredecessor) {
  // The batch of the first life ends only when the second one is there, and must not touch it.
  Delivered delivered = pool_.AwaitBatch();
  while (delivered.batch.items[0]->worker != 0) {
    ASSERT_TRUE(pool_.Complete(delivered.batch).ok());
    delivered = pool_.AwaitBatch();
  }
  first_life_.Die();
  ExpectFault();
  ASSERT_TRUE(pool_.Attach(0, second_life_, 0).ok());
  EXPECT_EQ(second_life_.Await(), Slots({0, 1}));
  EXPECT_TRUE(pool_.Complete(delivered.batch).ok());
  EXPECT_FALSE(second_life_.IsAsked());
}

TEST_F(DeathTest, WhileItsActorsWaitForRoom) {
  auto everyone_has_stepped = [&] {
    if (first_life_.IsAsked()) first_life_.Answer(first_life_.Await());
    const auto statistics = pool_->GetStatistics();
    return statistics.steps == 3 + statistics.rows;
  };
  while (true) {
    ASSERT_TRUE(Eventually(everyone_has_stepped));
    pool_.AskForBatch();
    const auto delivered = pool_.batches.Wait(milliseconds(200));
    if (!delivered) break;  // All wait.
    ASSERT_TRUE(pool_.Complete(delivered->batch).ok());
  }
  first_life_.Die();
  ExpectFault();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(pool_.AwaitUnroll().status.ok());  // Full ones are kept.
}

TEST(ActorPoolTest, FaultsWaitForSomebodyToAsk) {
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

TEST(ActorPoolTest, SilentWorkerIsAtFaultAndIdleOneIsNot) {
  FakeWorker silent(2, 1), idle(1, 2);
  TestPool pool(3, 1, 1, false, 40);
  ASSERT_TRUE(pool.Attach(0, silent, 0, 2).ok());
  idle.Answer({0});  // Before it is asked, so that it never is late: it waits for an action from the beginning.
  ASSERT_TRUE(pool.Attach(1, idle, 2).ok());
  silent.Answer(silent.Await());  // One of two groups.
  const DeliveredFault fault = pool.AwaitFault();
  EXPECT_EQ(fault.worker, 0);
  EXPECT_EQ(fault.reason, "no answer for 0.04 s (--environment_timeout_seconds)");
  pool.AskForFault();
  EXPECT_FALSE(pool.faults.Wait(milliseconds(150)).has_value());
}

TEST(ActorPoolTest, LongWorkHasMoreTime) {
  FakeWorker worker(1, 1);
  worker.SetLongWork(true);
  TestPool pool(1, 1, 1, false, 40, 1000000);
  ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
  pool.AskForFault();
  EXPECT_FALSE(pool.faults.Wait(milliseconds(300)).has_value());
  worker.SetLongWork(false);
  EXPECT_EQ(pool.faults.Wait().value().reason, "no answer for 0.04 s (--environment_timeout_seconds)");
}

TEST(ActorPoolTest, LongWorkHasAnEnd) {
  FakeWorker worker(1, 1);
  worker.SetLongWork(true);
  TestPool pool(1, 1, 1, false, 40, 3);
  ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
  EXPECT_EQ(pool.AwaitFault().reason, "no answer for 0.12 s (long work, 3 times --environment_timeout_seconds)");
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

INSTANTIATE_TEST_SUITE_P(, NonsenseTest, testing::Values(
    std::make_pair(Slots({0, 3}), "the worker named slot 3 of 3"),
    std::make_pair(Slots({0, 0}), "the worker answered for slot 0, which was not asked"),
    std::make_pair(Slots({1}), "the worker answered for slot 1, which was not asked")));

TEST(ActorPoolTest, AttachChecksItsArguments) {
  FakeWorker worker(2, 1);
  TestPool pool(2, 1);
  EXPECT_EQ(pool.Attach(-1, worker, 0).message(), "worker: want a number >= 0, got -1");
  EXPECT_EQ(pool->Attach(0, worker.pools_socket(), worker.memory(), {{0, 0, 0}, {1, 0, 0}, {2, 0, 0}}).code(),
            StatusCode::kInvalidArgument);  // Memory for two.
  EXPECT_TRUE(pool.Attach(0, worker, 0).ok());
  const Status again = pool.Attach(0, worker, 0);
  EXPECT_EQ(again.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(again.message(), "worker 0 is attached already");
  pool->Close("the end");
  const Status late = pool.Attach(1, worker, 0);
  EXPECT_EQ(late.code(), StatusCode::kCancelled);
  EXPECT_EQ(late.message(), "ActorPool is closed: the end");
}

TEST(ActorPoolTest, RegressionTooManyOpenFilesAreAnError) {
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
  EXPECT_TRUE(pool.AwaitBatch().status.ok());  // Stays in flight.
  for (int i = 0; i < 2; ++i) {
    pool.AskForBatch();
    pool.AskForUnroll();
    pool.AskForFault();
    pool->Close(i == 0 ? "the end" : "again");  // The second round asks a closed pool.
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

TEST(ActorPoolTest, WorkersDieWhileEverybodyIsBusy) {
  constexpr int kLives = 10;
  std::vector<std::unique_ptr<FakeWorker>> lives;
  FakeWorker other(2, 1000);
  TestPool pool(4, 3, 2);
  ASSERT_TRUE(pool.Attach(1, other, 2, 2).ok());
  other.Serve();
  pool.ActAllTheTime();
  Checker checker(3);
  std::set<int64_t> seen;
  for (int life = 1; life <= kLives; ++life) {
    lives.push_back(std::make_unique<FakeWorker>(2, life));
    ASSERT_TRUE(pool.Attach(0, *lives.back(), 0, 2).ok());
    lives.back()->Serve();
    while (seen.count(life) == 0) {
      const DeliveredUnroll unroll = pool.AwaitUnroll();
      checker.Check(unroll);
      if (HasFatalFailure()) return;
      seen.insert(unroll.Get<int64_t>(kLife));
    }
    lives.back()->Die();
    EXPECT_EQ(pool.AwaitFault().worker, 0);
  }
}

TEST(ActorPoolTest, SynchronousActorsMoveInStepAndWaitForRelease) {
  FakeWorker odd(2, 1), even(2, 2);
  TestPool pool(4, 2, 1, true);
  // Actors 2 and 3 on the first worker, 0 and 1 on the second.
  ASSERT_TRUE(pool.Attach(0, odd, 2, 2).ok());
  ASSERT_TRUE(pool.Attach(1, even, 0).ok());
  const std::vector<int> everybody = {0, 1, 2, 3};
  auto step = [&] {
    odd.Answer(odd.Await());
    odd.Answer(odd.Await());
    EXPECT_EQ(pool.batches.size(), 0);
    even.Answer(even.Await());
  };
  Checker checker(2);
  step();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(pool.Act(), everybody);
    step();
  }
  for (int unroll = 0; unroll < 3; ++unroll) {
    pool.AskForBatch();
    for (int actor : everybody) {
      const DeliveredUnroll delivered = pool.AwaitUnroll();
      checker.Check(delivered);
      EXPECT_EQ(delivered.Get<int32_t>(kActor), actor);
    }
    EXPECT_FALSE(pool.batches.Wait(kShortWhile).has_value());  // Taking the unrolls is not enough.
    pool->Release();
    ASSERT_TRUE(pool.Complete(pool.batches.Wait()->batch).ok());
    step();
    EXPECT_EQ(pool.Act(), everybody);
    step();
  }
}

TEST(ActorPoolTest, RetiredActorsRestAndTheOthersGoOn) {
  FakeWorker first_life(2, 1), second_life(2, 2), other(1, 3);
  TestPool pool(3, 2);
  ASSERT_TRUE(pool.Attach(0, first_life, 0).ok());
  ASSERT_TRUE(pool.Attach(1, other, 2).ok());
  first_life.Answer(first_life.Await());
  EXPECT_EQ(pool.Act(), std::vector<int>({0, 1}));
  EXPECT_TRUE(pool->Retire(1).ok());
  first_life.Answer(first_life.Await());  // The step that it was taking.
  EXPECT_EQ(pool.Act(), std::vector<int>({0}));
  EXPECT_EQ(first_life.Await(), Slots({0}));
  EXPECT_TRUE(pool->Retire(0).ok());
  first_life.Answer({0});
  other.Serve();
  pool.ActAllTheTime();
  Checker checker(2);
  for (int i = 0; i < 20; ++i) {
    const DeliveredUnroll unroll = pool.AwaitUnroll();
    checker.Check(unroll);
    EXPECT_EQ(unroll.Get<int32_t>(kActor), 2);
  }
  EXPECT_FALSE(first_life.IsAsked());
  first_life.ClosePoolsSocket();
  first_life.Die();
  EXPECT_EQ(pool.AwaitFault().worker, 0);
  ASSERT_TRUE(pool.Attach(0, second_life, 0).ok());
  second_life.Answer(second_life.Await());  // First observations, which nobody wants.
  for (int i = 0; i < 20; ++i) EXPECT_EQ(pool.AwaitUnroll().Get<int32_t>(kActor), 2);
  EXPECT_FALSE(second_life.IsAsked());
}

TEST(ActorPoolTest, SynchronousActorsDoNotRest) {
  TestPool pool(1, 1, 1, true);
  EXPECT_EQ(pool->Retire(0).code(), StatusCode::kInvalidArgument);
}

TEST(ActorPoolTest, SynchronousReleasesAreCounted) {
  FakeWorker worker(2, 1);
  TestPool pool(2, 1, 1, true);
  pool->Release();  // Before anybody waits, even before there is anybody.
  pool->Release();
  ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
  worker.Serve();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pool.Act().size(), 2);  // One unroll without, two after a release.
  pool.AskForBatch();
  EXPECT_FALSE(pool.batches.Wait(kShortWhile).has_value());
  pool->Release();
  EXPECT_TRUE(pool.batches.Wait().has_value());
}

TEST(ActorPoolTest, SynchronousPoolSurvivesADeath) {
  FakeWorker first_life(1, 11), second_life(1, 12), other(1, 20);
  TestPool pool(2, 2, 1, true);
  ASSERT_TRUE(pool.Attach(0, first_life, 0).ok());
  ASSERT_TRUE(pool.Attach(1, other, 1).ok());
  first_life.Serve();
  other.Serve();
  EXPECT_EQ(pool.Act(), std::vector<int>({0, 1}));
  first_life.Die();
  EXPECT_EQ(pool.AwaitFault().worker, 0);
  ASSERT_TRUE(pool.Attach(0, second_life, 0).ok());
  second_life.Serve();
  Checker checker(2);
  for (int unroll = 0; unroll < 3; ++unroll) {
    pool->Release();
    for (int i = 0; i < 2; ++i) pool.AskForUnroll();
    while (pool.unrolls.size() < 2) pool.Act();
    for (int i = 0; i < 2; ++i) checker.Check(*pool.unrolls.Wait());
  }
}

TEST(ActorPoolTest, SynchronousPoolForgetsARowWhoseWorkerDied) {
  FakeWorker first_life(1, 11), second_life(1, 12), other(1, 20);
  TestPool pool(2, 2, 1, true);
  ASSERT_TRUE(pool.Attach(0, first_life, 0).ok());
  ASSERT_TRUE(pool.Attach(1, other, 1).ok());
  first_life.Answer(first_life.Await());  // Is heard of before the end of the worker.
  first_life.Die();
  EXPECT_EQ(pool.AwaitFault().worker, 0);
  ASSERT_TRUE(pool.Attach(0, second_life, 0).ok());
  second_life.Answer(second_life.Await());
  pool.AskForBatch();
  EXPECT_FALSE(pool.batches.Wait(kShortWhile).has_value());
  other.Answer(other.Await());
  const auto batch = pool.batches.Wait();
  ASSERT_TRUE(batch.has_value());
  ASSERT_EQ(batch->batch.items.size(), 2);
  EXPECT_TRUE(batch->batch.items[0]->alive);
}

TEST(ActorPoolTest, StatisticsCountAndNeverFall) {
  FakeWorker first_life(2, 1), second_life(2, 2);
  TestPool pool(2, 2, 1);
  std::vector<ActorPool::Statistics> seen;
  auto look = [&] { seen.push_back(pool->GetStatistics()); };
  look();
  ASSERT_TRUE(pool.Attach(0, first_life, 0).ok());
  first_life.Answer(first_life.Await());
  for (int i = 0; i < 4; ++i) {  // Until the actors wait for room.
    pool.Act();
    look();
    first_life.Answer(first_life.Await());
  }
  ASSERT_TRUE(Eventually([&] { return pool->GetStatistics().blocked_ns > 0; }));
  look();
  EXPECT_EQ(seen.back().steps, 2 * 5);
  EXPECT_EQ(seen.back().batches, 4);
  EXPECT_EQ(seen.back().rows, 2 * 4);
  EXPECT_EQ(seen.back().stepping_ns, 2 * 5);  // A fake worker's step takes a nanosecond.
  first_life.Die();
  pool.AwaitFault();
  look();
  ASSERT_TRUE(pool.Attach(0, second_life, 0).ok());
  look();
  second_life.Serve();
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
