#include "actor/cc/processor_wait.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace scalable_agents {
namespace {

TEST(ProcessorWaitTest, OfThisProcessAndOfNone) {
  EXPECT_GE(ProcessorWaitNs(getpid()), 0);
  EXPECT_EQ(ProcessorWaitNs(0), 0);  // There is no such process.
  EXPECT_EQ(ProcessorWaitNs(int64_t{1} << 40), 0);
}

}  // namespace
}  // namespace scalable_agents
