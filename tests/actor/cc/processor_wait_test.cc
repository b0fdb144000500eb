#include "actor/cc/processor_wait.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace scalable_agents {
namespace {

// The second number of the file is the time for which the main thread was ready to run, but did not.
int64_t SecondNumber() {
  std::ifstream file("/proc/self/schedstat");
  int64_t first, second = 0;
  file >> first >> second;
  return second;
}

TEST(ProcessorWaitTest, OfThisProcessAndOfNone) {
  const int64_t before = SecondNumber();
  const int64_t wait = ProcessorWaitNs(getpid());
  EXPECT_GE(wait, before);
  EXPECT_LE(wait, SecondNumber());
  EXPECT_EQ(ProcessorWaitNs(0), 0);  // There is no such process.
  EXPECT_EQ(ProcessorWaitNs(int64_t{1} << 40), 0);
}

}  // namespace
}  // namespace scalable_agents
