#include "actor/cc/batcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "tests/actor/cc/mailbox.h"

namespace scalable_agents {
namespace {

using std::chrono::milliseconds;
using IntBatcher = Batcher<int>;

struct Delivered {
  Status status;
  IntBatcher::Batch batch;
};

BatcherOptions Options(int64_t minimum, int64_t maximum, int64_t timeout_ms) { return {minimum, maximum, timeout_ms}; }

IntBatcher::OnBatch Into(Mailbox<Delivered>* mailbox) {
  return [mailbox](const Status& status, const IntBatcher::Batch& batch) { mailbox->Put({status, batch}); };
}

using Items = std::vector<int>;  // Tests declare mailboxes before batchers, whose destructors still call back.

TEST(BatcherTest, WaitsForTheMinimum) {
  Mailbox<Delivered> batches;
  IntBatcher batcher(Options(3, 8, -1));
  batcher.Next(Into(&batches));
  EXPECT_TRUE(batcher.Submit({1}).ok());
  EXPECT_TRUE(batcher.Submit({2}).ok());
  EXPECT_EQ(batches.Wait(milliseconds(20)), std::nullopt);  // There is no timeout.
  EXPECT_TRUE(batcher.Submit({3}).ok());
  EXPECT_EQ(batches.size(), 1);  // The submitting thread has delivered it.
  const Delivered delivered = *batches.Wait();
  EXPECT_TRUE(delivered.status.ok());
  EXPECT_EQ(delivered.batch.items, Items({1, 2, 3}));
}

TEST(BatcherTest, SplitsAtTheMaximumInOrder) {
  Mailbox<Delivered> batches;
  IntBatcher batcher(Options(1, 2, -1));
  EXPECT_TRUE(batcher.Submit({1, 2, 3}).ok());
  EXPECT_TRUE(batcher.Submit({4, 5}).ok());
  for (int i = 0; i < 4; ++i) batcher.Next(Into(&batches));
  EXPECT_EQ(batches.size(), 3);  // The fourth item waits.
  EXPECT_EQ(batches.Wait()->batch.items, Items({1, 2}));
  EXPECT_EQ(batches.Wait()->batch.items, Items({3, 4}));
  EXPECT_EQ(batches.Wait()->batch.items, Items({5}));
}

TEST(BatcherTest, OneSubmissionServesSeveralConsumersInTheirOrder) {
  Mailbox<Delivered> first, second;
  IntBatcher batcher(Options(2, 2, -1));
  batcher.Next(Into(&first));
  batcher.Next(Into(&second));
  EXPECT_TRUE(batcher.Submit({1, 2, 3, 4}).ok());
  EXPECT_EQ(first.Wait()->batch.items, Items({1, 2}));
  EXPECT_EQ(second.Wait()->batch.items, Items({3, 4}));
}

TEST(BatcherTest, NegativeTimeoutNeverGivesLessThanTheMinimum) {
  Mailbox<Delivered> batches;
  IntBatcher batcher(Options(2, 8, -1));
  EXPECT_TRUE(batcher.Submit({1}).ok());
  batcher.Next(Into(&batches));
  EXPECT_EQ(batches.Wait(milliseconds(20)), std::nullopt);
}

TEST(BatcherTest, TimeoutGivesWhatIsThere) {
  Mailbox<Delivered> batches;
  IntBatcher batcher(Options(10, 10, 30));
  const auto asked = std::chrono::steady_clock::now();
  batcher.Next(Into(&batches));
  EXPECT_TRUE(batcher.Submit({1, 2}).ok());
  EXPECT_EQ(batches.Wait()->batch.items, Items({1, 2}));
  EXPECT_GE(std::chrono::steady_clock::now() - asked, milliseconds(30));
}

TEST(BatcherTest, TimeoutWithoutItemsStartsAnother) {
  Mailbox<Delivered> batches;
  IntBatcher batcher(Options(10, 10, 2));
  batcher.Next(Into(&batches));
  batcher.Next(Into(&batches));
  EXPECT_EQ(batches.Wait(milliseconds(30)), std::nullopt);  // Longer than many timeouts.
  EXPECT_TRUE(batcher.Submit({1}).ok());
  EXPECT_EQ(batches.Wait()->batch.items, Items({1}));
  EXPECT_TRUE(batcher.Submit({2}).ok());
  EXPECT_EQ(batches.Wait()->batch.items, Items({2}));
}

TEST(BatcherTest, TimeoutZeroTakesWhateverIsThere) {
  Mailbox<Delivered> batches;
  IntBatcher batcher(Options(10, 10, 0));
  batcher.Next(Into(&batches));
  EXPECT_EQ(batches.size(), 0);
  EXPECT_TRUE(batcher.Submit({1}).ok());
  EXPECT_EQ(batches.size(), 1);
  EXPECT_TRUE(batcher.Submit({2, 3}).ok());
  batcher.Next(Into(&batches));
  EXPECT_EQ(batches.size(), 2);
  EXPECT_EQ(batches.Wait()->batch.items, Items({1}));
  EXPECT_EQ(batches.Wait()->batch.items, Items({2, 3}));
}

TEST(BatcherTest, BatchesEndInAnyOrderAndOnce) {
  Mailbox<Delivered> batches;
  IntBatcher batcher(Options(1, 2, -1));
  EXPECT_TRUE(batcher.Submit({1, 2, 3, 4, 5}).ok());
  for (int64_t id = 0; id < 3; ++id) {
    batcher.Next(Into(&batches));
    EXPECT_EQ(batches.Wait()->batch.id, id);
  }
  EXPECT_EQ(batcher.Size(0), 2);
  EXPECT_EQ(batcher.Size(2), 1);
  EXPECT_EQ(batcher.Take(1), Items({3, 4}));
  EXPECT_EQ(batcher.Take(2), Items({5}));
  EXPECT_EQ(batcher.Take(0), Items({1, 2}));
  for (int64_t id : {-1, 0, 1, 2, 3}) {
    EXPECT_EQ(batcher.Take(id), Items());
    EXPECT_EQ(batcher.Size(id), -1);
  }
}

TEST(BatcherTest, CloseReturnsWhatNoBatchWillBringBack) {
  Mailbox<Delivered> batches;
  IntBatcher batcher(Options(1, 2, -1));
  EXPECT_TRUE(batcher.Submit({1, 2, 3, 4, 5}).ok());
  batcher.Next(Into(&batches));
  batcher.Next(Into(&batches));
  EXPECT_EQ(batcher.Take(0), Items({1, 2}));
  Items orphans = batcher.Close("the end");
  std::sort(orphans.begin(), orphans.end());
  EXPECT_EQ(orphans, Items({3, 4, 5}));  // A batch in flight and an item in the queue.
  EXPECT_EQ(batcher.Close("again"), Items());
  EXPECT_EQ(batcher.Size(1), -1);
}

TEST(BatcherTest, CloseEndsWaitsAndRefusesTheRest) {
  Mailbox<Delivered> batches;
  IntBatcher batcher(Options(1, 2, 5));
  batcher.Next(Into(&batches));
  batcher.Next(Into(&batches));
  batcher.Close("the end");
  batcher.Close("again");
  batcher.Next(Into(&batches));
  ASSERT_EQ(batches.size(), 3);
  for (int i = 0; i < 3; ++i) {
    const Delivered delivered = *batches.Wait();
    EXPECT_EQ(delivered.status.code(), StatusCode::kCancelled);
    EXPECT_EQ(delivered.status.message(), "Batcher is closed: the end");
    EXPECT_EQ(delivered.batch.items, Items());
  }
  const Status status = batcher.Submit({1});
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_EQ(status.message(), "Batcher is closed: the end");
}

TEST(BatcherTest, DestructionEndsWaits) {
  Mailbox<Delivered> batches;
  {
    IntBatcher batcher(Options(2, 2, 1));
    batcher.Next(Into(&batches));
  }
  ASSERT_EQ(batches.size(), 1);
  EXPECT_EQ(batches.Wait()->status.message(), "Batcher is closed");
}

TEST(BatcherTest, CallbacksMayCallBack) {
  Mailbox<Delivered> batches;
  IntBatcher batcher(Options(1, 1, -1));
  std::vector<int64_t> sizes;
  IntBatcher::OnBatch again = [&](const Status& status, const IntBatcher::Batch& batch) {
    batches.Put({status, batch});
    if (!status.ok()) return;
    sizes.push_back(batcher.Size(batch.id));
    if (batch.items == Items({3})) {
      batcher.Close("from a callback");
    } else {
      EXPECT_TRUE(batcher.Submit({batch.items[0] + 1}).ok());
      batcher.Next(again);
    }
  };
  batcher.Next(again);
  EXPECT_TRUE(batcher.Submit({1}).ok());
  EXPECT_EQ(sizes, std::vector<int64_t>({1, 1, 1}));
  EXPECT_EQ(batches.size(), 3);
}

TEST(BatcherTest, WaitingTimeGrowsWhileConsumersWait) {
  Mailbox<Delivered> batches;
  IntBatcher batcher(Options(1, 1, -1));
  EXPECT_EQ(batcher.waiting_ns(), 0);
  batcher.Next(Into(&batches));
  EXPECT_EQ(batches.Wait(milliseconds(5)), std::nullopt);
  int64_t waited = batcher.waiting_ns();  // Includes a wait that has not ended.
  EXPECT_GE(waited, 5000000);
  EXPECT_TRUE(batcher.Submit({1}).ok());
  EXPECT_GE(batcher.waiting_ns(), waited);
  EXPECT_TRUE(batches.Wait());
  batcher.Next(Into(&batches));
  EXPECT_EQ(batches.Wait(milliseconds(5)), std::nullopt);
  waited = batcher.waiting_ns();
  EXPECT_GE(waited, 10000000);
  batcher.Close("");
  EXPECT_GE(batcher.waiting_ns(), waited);
}

constexpr size_t kCrowdMaximum = 16;

// Producers submit different items, in groups of 1 to 4. Consumers take batches until the batcher is closed.
class Crowd {
 public:
  Crowd(IntBatcher* batcher, int producers, int consumers, int items_each)
      : batcher_(batcher), fates_(producers * items_each), items_each_(items_each) {
    for (int i = 0; i < consumers; ++i) threads_.emplace_back([this] { Consume(); });
    for (int i = 0; i < producers; ++i) threads_.emplace_back([this, i] { Produce(i); });
  }

  void Join() {
    for (std::thread& thread : threads_) thread.join();
  }

  void Fail(const Items& orphans) {
    for (int item : orphans) ++fates_[item];
  }

  // The number of times that each item was taken, returned by Close() or refused.
  int ended() const { return std::accumulate(fates_.begin(), fates_.end(), 0); }
  bool every_item_ended_once() const {
    return std::all_of(fates_.begin(), fates_.end(), [](const std::atomic<int>& fate) { return fate == 1; });
  }
  bool in_order() const { return in_order_; }
  bool too_large() const { return too_large_; }

 private:
  void Produce(int producer) {
    for (int i = 0; i < items_each_;) {
      Items group;
      for (int size = 1 + i % 4; size > 0 && i < items_each_; --size) group.push_back(producer * items_each_ + i++);
      if (!batcher_->Submit(group).ok()) Fail(group);
    }
  }

  void Consume() {
    while (true) {
      Mailbox<Delivered> mailbox;
      batcher_->Next(Into(&mailbox));
      const std::optional<Delivered> delivered = mailbox.Wait();
      if (!delivered || !delivered->status.ok()) return;
      const Items& items = delivered->batch.items;
      for (size_t i = 1; i < items.size(); ++i) {
        const bool same_producer = items[i] / items_each_ == items[i - 1] / items_each_;
        if (same_producer && items[i] < items[i - 1]) in_order_ = false;
      }
      if (items.size() > kCrowdMaximum) too_large_ = true;
      Fail(batcher_->Take(delivered->batch.id));  // Returns nothing if Close() came first.
    }
  }

  IntBatcher* const batcher_;
  std::vector<std::atomic<int>> fates_;
  const int items_each_;
  std::atomic<bool> in_order_{true};
  std::atomic<bool> too_large_{false};
  std::vector<std::thread> threads_;
};

TEST(BatcherTest, ManyThreadsGetEveryItemOnce) {
  for (int64_t timeout_ms : {0, 1}) {
    IntBatcher batcher(Options(5, kCrowdMaximum, timeout_ms));
    Crowd crowd(&batcher, 4, 3, 1000);
    EXPECT_TRUE(Eventually([&] { return crowd.ended() == 4000; }));
    EXPECT_EQ(batcher.Close(""), Items());
    crowd.Join();
    EXPECT_TRUE(crowd.every_item_ended_once());
    EXPECT_TRUE(crowd.in_order());
    EXPECT_FALSE(crowd.too_large());
  }
}

TEST(BatcherTest, CloseWhileEverybodyIsBusyLosesNoItem) {
  for (int round = 0; round < 20; ++round) {
    IntBatcher batcher(Options(3, kCrowdMaximum, 1));
    Crowd crowd(&batcher, 3, 2, 500);
    EXPECT_TRUE(Eventually([&] { return crowd.ended() >= 50 * round; }));
    std::thread other([&] { crowd.Fail(batcher.Close("one of two")); });
    crowd.Fail(batcher.Close("two of two"));
    other.join();
    crowd.Join();
    EXPECT_TRUE(crowd.every_item_ended_once());
  }
}

}  // namespace
}  // namespace scalable_agents
