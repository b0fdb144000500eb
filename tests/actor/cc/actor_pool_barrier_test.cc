// Pools whose actors wait for each other, at each step or at the end of each unroll.
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "actor/cc/actor_pool.h"
#include "tests/actor/cc/fake_worker.h"
#include "tests/actor/cc/mailbox.h"
#include "tests/actor/cc/pool_testing.h"

namespace scalable_agents {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kShortWhile(30);  // Time in which an event must not happen.

TEST(ActorPoolBarrierTest, SynchronousActorsMoveInStepAndWaitForRelease) {
  FakeWorker odd(2, 1), even(2, 2);
  TestPool pool(4, 2, 1, Barrier::kStep);
  // The first worker has actors 2 and 3, the second one has 0 and 1.
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
    EXPECT_FALSE(pool.batches.Wait(kShortWhile).has_value());  // Actors also need a release.
    pool->Release();
    ASSERT_TRUE(pool.Complete(pool.batches.Wait()->batch).ok());
    step();
    EXPECT_EQ(pool.Act(), everybody);
    step();
  }
}

TEST(ActorPoolBarrierTest, ActorsDoNotRest) {
  TestPool pool(1, 1, 1, Barrier::kStep);
  EXPECT_EQ(pool->Retire(0).code(), StatusCode::kInvalidArgument);
}

TEST(ActorPoolBarrierTest, SynchronousReleasesAreCounted) {
  FakeWorker worker(2, 1);
  TestPool pool(2, 1, 1, Barrier::kStep);
  pool->Release();  // Before any actor waits, and even before there are actors.
  pool->Release();
  ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
  worker.Serve();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pool.Act().size(), 2);  // One unroll needs no release, the next two do.
  pool.AskForBatch();
  EXPECT_FALSE(pool.batches.Wait(kShortWhile).has_value());
  pool->Release();
  EXPECT_TRUE(pool.batches.Wait().has_value());
}

TEST(ActorPoolBarrierTest, SynchronousPoolSurvivesADeath) {
  FakeWorker first(1, 11), second(1, 12), other(1, 20);
  TestPool pool(2, 2, 1, Barrier::kStep);
  ASSERT_TRUE(pool.Attach(0, first, 0).ok());
  ASSERT_TRUE(pool.Attach(1, other, 1).ok());
  first.Serve();
  other.Serve();
  EXPECT_EQ(pool.Act(), std::vector<int>({0, 1}));
  first.Die();
  EXPECT_EQ(pool.AwaitFault().worker, 0);
  ASSERT_TRUE(pool.Attach(0, second, 0).ok());
  second.Serve();
  Checker checker(2);
  for (int unroll = 0; unroll < 3; ++unroll) {
    pool->Release();
    for (int i = 0; i < 2; ++i) pool.AskForUnroll();
    while (pool.unrolls.size() < 2) pool.Act();
    for (int i = 0; i < 2; ++i) checker.Check(*pool.unrolls.Wait());
  }
}

TEST(ActorPoolBarrierTest, SynchronousPoolForgetsARowWhoseWorkerDied) {
  FakeWorker first(1, 11), second(1, 12), other(1, 20);
  TestPool pool(2, 2, 1, Barrier::kStep);
  ASSERT_TRUE(pool.Attach(0, first, 0).ok());
  ASSERT_TRUE(pool.Attach(1, other, 1).ok());
  first.Answer(first.Await());  // The pool reads it before the worker's end.
  first.Die();
  EXPECT_EQ(pool.AwaitFault().worker, 0);
  ASSERT_TRUE(pool.Attach(0, second, 0).ok());
  second.Answer(second.Await());
  pool.AskForBatch();
  EXPECT_FALSE(pool.batches.Wait(kShortWhile).has_value());
  other.Answer(other.Await());
  const auto batch = pool.batches.Wait();
  ASSERT_TRUE(batch.has_value());
  ASSERT_EQ(batch->batch.items.size(), 2);
  EXPECT_TRUE(batch->batch.items[0]->alive);
}

TEST(ActorPoolBarrierTest, ActorsMeetOnlyAtTheEndsOfUnrolls) {
  FakeWorker fast(1, 1), slow(1, 2);
  TestPool pool(2, 2, 1, Barrier::kUnroll);
  ASSERT_TRUE(pool.Attach(0, fast, 0).ok());
  ASSERT_TRUE(pool.Attach(1, slow, 1).ok());
  Checker checker(2);
  fast.Answer(fast.Await());
  for (int i = 0; i < 2; ++i) {  // The first one plays its whole unroll before the second one has begun.
    EXPECT_EQ(pool.Act(), std::vector<int>({0}));
    fast.Answer(fast.Await());
  }
  checker.Check(pool.AwaitUnroll());
  pool->Release();
  pool.AskForBatch();
  EXPECT_FALSE(pool.batches.Wait(kShortWhile).has_value());  // It waits for the second one in spite of the release.
  slow.Answer(slow.Await());
  for (int i = 0; i < 2; ++i) {
    const auto batch = pool.batches.Wait();
    ASSERT_TRUE(batch.has_value());
    ASSERT_EQ(batch->batch.items.size(), 1);
    EXPECT_EQ(batch->batch.items[0]->tag.actor_id, 1);
    ASSERT_TRUE(pool.Complete(batch->batch).ok());
    if (i == 0) pool.AskForBatch();
    slow.Answer(slow.Await());
  }
  checker.Check(pool.AwaitUnroll());
  EXPECT_EQ(pool.Act(), std::vector<int>({0, 1}));  // Both go on.
}

TEST(ActorPoolBarrierTest, OneActorIsReleasedAlone) {
  FakeWorker worker(3, 1);
  TestPool pool(3, 1, 3, Barrier::kUnroll);
  ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
  pool->ReleaseOne(1);  // It does not wait, so nothing happens.
  worker.Answer(worker.Await());
  EXPECT_EQ(pool.Act(), std::vector<int>({0, 1, 2}));
  worker.Answer(worker.Await());
  Checker checker(1);
  for (int i = 0; i < 3; ++i) checker.Check(pool.AwaitUnroll());
  pool.AskForBatch();
  EXPECT_FALSE(pool.batches.Wait(kShortWhile).has_value());
  pool->ReleaseOne(7);  // There is none.
  pool->ReleaseOne(1);
  const auto batch = pool.batches.Wait();
  ASSERT_TRUE(batch.has_value());
  ASSERT_EQ(batch->batch.items.size(), 1);
  EXPECT_EQ(batch->batch.items[0]->tag.actor_id, 1);
  ASSERT_TRUE(pool.Complete(batch->batch).ok());
  worker.Answer(worker.Await());
  const DeliveredUnroll unroll = pool.AwaitUnroll();
  checker.Check(unroll);
  EXPECT_GT(pool->GetStatistics().blocked_ns, 0);
  for (int actor : {2, 0, 1}) {
    pool->ReleaseOne(actor);
    EXPECT_EQ(pool.Act(), std::vector<int>({actor}));
  }
}

TEST(ActorPoolBarrierTest, AnActorWhoseWorkerIsReplacedWhileItWaitsGoesOnWaiting) {
  for (Barrier barrier : {Barrier::kUnroll, Barrier::kStep}) {
    FakeWorker lasting(1, 1), dying(1, 2), successor(1, 3);
    TestPool pool(2, 1, 4, barrier);
    ASSERT_TRUE(pool.Attach(0, lasting, 0).ok());
    ASSERT_TRUE(pool.Attach(1, dying, 1).ok());
    lasting.Answer(lasting.Await());
    dying.Answer(dying.Await());
    for (size_t acted = 0; acted < 2;) acted += pool.Act().size();
    lasting.Answer(lasting.Await());
    dying.Answer(dying.Await());
    for (int i = 0; i < 2; ++i) pool.AwaitUnroll();
    dying.Die();  // It waits with a full unroll.
    EXPECT_EQ(pool.AwaitFault().worker, 1);
    ASSERT_TRUE(pool.Attach(1, successor, 1).ok());
    successor.Answer(successor.Await());
    pool.AskForBatch();
    EXPECT_FALSE(pool.batches.Wait(kShortWhile).has_value());  // Its unroll of this round exists.
    ASSERT_TRUE(pool->Release().ok());
    const auto batch = pool.batches.Wait();
    ASSERT_TRUE(batch.has_value());
    EXPECT_EQ(batch->batch.items.size(), 2);
  }
}

TEST(ActorPoolBarrierTest, ASuccessorThatDiesWaitingIsWaitedForToo) {
  for (Barrier barrier : {Barrier::kUnroll, Barrier::kStep}) {
    FakeWorker first(1, 11), second(1, 12), third(1, 13), other(1, 20);
    TestPool pool(2, 1, 1, barrier);
    ASSERT_TRUE(pool.Attach(0, first, 0).ok());
    ASSERT_TRUE(pool.Attach(1, other, 1).ok());
    first.Serve();
    other.Serve();
    for (size_t acted = 0; acted < 2;) acted += pool.Act().size();
    Checker checker(1);
    for (int i = 0; i < 2; ++i) checker.Check(pool.AwaitUnroll());
    first.Die();
    EXPECT_EQ(pool.AwaitFault().worker, 0);
    ASSERT_TRUE(pool.Attach(0, second, 0).ok());
    second.Answer(second.Await());
    pool.AskForBatch();
    EXPECT_FALSE(pool.batches.Wait(kShortWhile).has_value());
    second.Die();
    EXPECT_EQ(pool.AwaitFault().worker, 0);
    ASSERT_TRUE(pool->Release().ok());
    ASSERT_TRUE(pool.Attach(0, third, 0).ok());
    EXPECT_FALSE(pool.batches.Wait(kShortWhile).has_value());  // The release needs its first row.
    third.Serve();
    const auto batch = pool.batches.Wait();
    ASSERT_TRUE(batch.has_value());
    ASSERT_EQ(batch->batch.items.size(), 2);
    ASSERT_TRUE(pool.Complete(batch->batch).ok());
    for (int i = 0; i < 2; ++i) checker.Check(pool.AwaitUnroll());
    EXPECT_EQ(checker.fewest_unrolls(), 2);  // No surplus unroll of either actor.
    pool.AskForBatch();
    EXPECT_FALSE(pool.batches.Wait(kShortWhile).has_value());
  }
}

TEST(ActorPoolBarrierTest, OneActorIsReleasedWhileItsWorkerIsReplaced) {
  FakeWorker dying(1, 1), successor(1, 2);
  TestPool pool(1, 1, 4, Barrier::kUnroll);
  ASSERT_TRUE(pool.Attach(0, dying, 0).ok());
  dying.Answer(dying.Await());
  EXPECT_EQ(pool.Act(), std::vector<int>({0}));
  dying.Answer(dying.Await());
  pool.AwaitUnroll();
  dying.Die();
  EXPECT_EQ(pool.AwaitFault().worker, 0);
  ASSERT_TRUE(pool->ReleaseOne(0).ok());
  ASSERT_TRUE(pool.Attach(0, successor, 0).ok());
  successor.Answer(successor.Await());
  EXPECT_EQ(pool.Act(), std::vector<int>({0}));
}

TEST(ActorPoolBarrierTest, OnlyActorsThatWaitCanBeReleased) {
  TestPool none(1, 1), step(1, 1, 1, Barrier::kStep);
  EXPECT_EQ(none->Release().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(none->ReleaseOne(0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(step->ReleaseOne(0).code(), StatusCode::kInvalidArgument);
}

TEST(ActorPoolBarrierTest, WithoutDynamicBatchingEachActorIsAlone) {
  FakeWorker worker(3, 1);
  TestPool pool(3, 2, 1, Barrier::kUnroll, 60000, 1, false);
  ASSERT_TRUE(pool.Attach(0, worker, 0).ok());
  worker.Answer(worker.Await());
  for (int actor = 0; actor < 3; ++actor) EXPECT_EQ(pool.Act(), std::vector<int>({actor}));
}

}  // namespace
}  // namespace scalable_agents
