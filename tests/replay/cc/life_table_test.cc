#include "replay/cc/life_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "ops/cc/mutex.h"

namespace scalable_agents {
namespace {

struct Stream {
  int num_unrolls = 0;
};

using Table = LifeTable<Stream>;

// Admits an unroll and makes the stream if it is the first one.
Continuation Admit(Table* table, int64_t life_id, int64_t index, int64_t now = 0) {
  const std::shared_ptr<Table::Life> life = table->Find(life_id, now);
  MutexLock lock(life->mutex);
  const Continuation continuation = table->Admit(index, life.get());
  if (continuation == Continuation::kFirst) {
    EXPECT_EQ(life->stream, nullptr);
    life->stream = std::make_unique<Stream>();
  }
  if (continuation != Continuation::kRepeated) ++life->stream->num_unrolls;
  return continuation;
}

TEST(LifeTableTest, FindsTheSameLifeAgain) {
  Table table;
  const auto one = table.Find(1, 0);
  EXPECT_EQ(one->id, 1);
  EXPECT_EQ(one->stream, nullptr);
  EXPECT_NE(table.Find(2, 0), one);
  EXPECT_EQ(table.Find(1, 0), one);
  EXPECT_EQ(table.counts().lives, 2);
}

TEST(LifeTableTest, SaysHowUnrollsContinueTheStream) {
  Table table;
  EXPECT_EQ(Admit(&table, 1, 3), Continuation::kFirst);
  EXPECT_EQ(Admit(&table, 1, 4), Continuation::kNext);
  EXPECT_EQ(Admit(&table, 1, 4), Continuation::kRepeated);
  EXPECT_EQ(Admit(&table, 1, 0), Continuation::kRepeated);
  EXPECT_EQ(Admit(&table, 2, 0), Continuation::kFirst);  // Another life.
  EXPECT_EQ(Admit(&table, 1, 5), Continuation::kNext);
  EXPECT_EQ(Admit(&table, 1, 7), Continuation::kFirst);  // After a gap.
  EXPECT_EQ(Admit(&table, 1, 6), Continuation::kRepeated);
  EXPECT_EQ(Admit(&table, 1, 8), Continuation::kNext);
  EXPECT_EQ(table.Find(1, 0)->stream->num_unrolls, 2);
  EXPECT_EQ(table.counts().gaps, 1);
  EXPECT_EQ(table.counts().repeated_unrolls, 3);
}

TEST(LifeTableTest, AStreamThatWasDroppedLeavesNoGap) {
  Table table;
  Admit(&table, 1, 0);
  table.Find(1, 0)->stream.reset();
  EXPECT_EQ(Admit(&table, 1, 5), Continuation::kFirst);
  EXPECT_EQ(Admit(&table, 1, 6), Continuation::kNext);
  EXPECT_EQ(table.counts().gaps, 0);
}

TEST(LifeTableTest, ForgetsTheLivesThatWereNotHeardOfForLong) {
  Table table;
  for (int64_t life = 0; life < 10; ++life) Admit(&table, life, 0, life);
  Admit(&table, 2, 1, 10);
  const auto forgotten = table.Forget(5);
  std::vector<int64_t> ids;
  for (const auto& life : forgotten) ids.push_back(life->id);
  EXPECT_EQ(ids, (std::vector<int64_t>{0, 1, 3, 4}));
  EXPECT_EQ(table.counts().lives, 6);
  EXPECT_EQ(Admit(&table, 2, 2, 11), Continuation::kNext);
  EXPECT_EQ(Admit(&table, 3, 1, 11), Continuation::kFirst);  // A new life with the same id.
  EXPECT_TRUE(table.Forget(5).empty());
}

// ThreadSanitizer watches.
TEST(LifeTableTest, ManyThreadsAdmitAndForget) {
  Table table;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int index = 0; index < 500; ++index) {
        Admit(&table, thread, index, index);
        Admit(&table, 4, index, index);  // All threads have this life.
        Admit(&table, 100 + index, 0, index);
        table.Forget(index - 10);
        table.counts();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(table.counts().lives, 10);
}

}  // namespace
}  // namespace scalable_agents
