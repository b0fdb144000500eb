#include "replay/cc/stream_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "ops/cc/mutex.h"

namespace scalable_agents {
namespace {

struct Segment {
  int num_unrolls = 0;
};

using Table = StreamTable<Segment>;

// Admits an unroll and makes the segment if it is the first one.
Continuation Admit(Table* table, int64_t stream_id, int64_t index, int64_t now = 0) {
  const std::shared_ptr<Table::Stream> stream = table->Find(stream_id, now);
  MutexLock lock(stream->mutex);
  const Continuation continuation = table->Admit(index, stream.get());
  if (continuation == Continuation::kFirst) {
    EXPECT_EQ(stream->segment, nullptr);
    stream->segment = std::make_unique<Segment>();
  }
  if (continuation != Continuation::kRepeated) ++stream->segment->num_unrolls;
  return continuation;
}

TEST(StreamTableTest, FindsTheSameStreamAgain) {
  Table table;
  const auto one = table.Find(1, 0);
  EXPECT_EQ(one->id, 1);
  EXPECT_EQ(one->segment, nullptr);
  EXPECT_NE(table.Find(2, 0), one);
  EXPECT_EQ(table.Find(1, 0), one);
  EXPECT_EQ(table.statistics().streams, 2);
}

TEST(StreamTableTest, SaysHowUnrollsContinueTheSegment) {
  Table table;
  EXPECT_EQ(Admit(&table, 1, 3), Continuation::kFirst);
  EXPECT_EQ(Admit(&table, 1, 4), Continuation::kNext);
  EXPECT_EQ(Admit(&table, 1, 4), Continuation::kRepeated);
  EXPECT_EQ(Admit(&table, 1, 0), Continuation::kRepeated);
  EXPECT_EQ(Admit(&table, 2, 0), Continuation::kFirst);  // Another stream.
  EXPECT_EQ(Admit(&table, 1, 5), Continuation::kNext);
  EXPECT_EQ(Admit(&table, 1, 7), Continuation::kFirst);  // After a gap.
  EXPECT_EQ(Admit(&table, 1, 6), Continuation::kRepeated);
  EXPECT_EQ(Admit(&table, 1, 8), Continuation::kNext);
  EXPECT_EQ(table.Find(1, 0)->segment->num_unrolls, 2);
  EXPECT_EQ(table.statistics().gaps, 1);
  EXPECT_EQ(table.statistics().repeated_unrolls, 3);
}

TEST(StreamTableTest, ASegmentThatWasDroppedLeavesNoGap) {
  Table table;
  Admit(&table, 1, 0);
  table.Find(1, 0)->segment.reset();
  EXPECT_EQ(Admit(&table, 1, 5), Continuation::kFirst);
  EXPECT_EQ(Admit(&table, 1, 6), Continuation::kNext);
  EXPECT_EQ(table.statistics().gaps, 0);
}

TEST(StreamTableTest, ForgetsTheStreamsThatWereNotHeardOfForLong) {
  Table table;
  for (int64_t stream = 0; stream < 10; ++stream) Admit(&table, stream, 0, stream);
  Admit(&table, 2, 1, 10);
  const auto forgotten = table.Forget(5);
  std::vector<int64_t> ids;
  for (const auto& stream : forgotten) ids.push_back(stream->id);
  EXPECT_EQ(ids, (std::vector<int64_t>{0, 1, 3, 4}));
  EXPECT_EQ(table.statistics().streams, 6);
  EXPECT_EQ(Admit(&table, 2, 2, 11), Continuation::kNext);
  EXPECT_EQ(Admit(&table, 3, 1, 11), Continuation::kFirst);  // A new stream with the same id.
  EXPECT_TRUE(table.Forget(5).empty());
}

// ThreadSanitizer watches.
TEST(StreamTableTest, ManyThreadsAdmitAndForget) {
  Table table;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int index = 0; index < 500; ++index) {
        Admit(&table, thread, index, index);
        Admit(&table, 4, index, index);  // All threads have this stream.
        Admit(&table, 100 + index, 0, index);
        table.Forget(index - 10);
        table.statistics();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(table.statistics().streams, 10);
}

}  // namespace
}  // namespace scalable_agents
