#include "actor/cc/worker_listener.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>

#include "tests/actor/cc/mailbox.h"

namespace scalable_agents {
namespace {

using Clock = WorkerListener::Clock;

class WorkerListenerTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_), 0);
    listener_ = std::make_unique<WorkerListener>(
        [this](int worker) {
          char byte;
          const bool is_message = recv(ends_[0], &byte, 1, MSG_DONTWAIT) == 1;
          if (!is_message) listener_->Remove(ends_[0]);
          readable_.Put(is_message ? worker : -1);
        },
        [this](Clock::time_point now) { ticks_.Put(now); });
  }

  void TearDown() override {
    listener_.reset();
    for (int end : ends_) close(end);
  }

  int ends_[2];
  Mailbox<int> readable_;  // Number of the worker for each message, -1 for an end.
  Mailbox<Clock::time_point> ticks_;
  std::unique_ptr<WorkerListener> listener_;
};

TEST_F(WorkerListenerTest, SaysWhoseMessageCameAndWhoIsGone) {
  ASSERT_TRUE(listener_->Add(3, ends_[0]).ok());
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(send(ends_[1], ".", 1, 0), 1);
    EXPECT_EQ(readable_.Wait(), 3);
  }
  shutdown(ends_[1], SHUT_RDWR);
  EXPECT_EQ(readable_.Wait(), -1);
  EXPECT_TRUE(ticks_.Wait().has_value());  // The worker is removed, and the thread goes on.
  EXPECT_EQ(readable_.size(), 0);
}

TEST_F(WorkerListenerTest, TicksAreATenthOfASecondApart) {
  Clock::time_point before = *ticks_.Wait();
  for (int i = 0; i < 3; ++i) {
    const Clock::time_point now = *ticks_.Wait();
    EXPECT_GE(now - before, std::chrono::milliseconds(100));
    before = now;
  }
}

TEST_F(WorkerListenerTest, StopEndsTheThread) {
  ASSERT_TRUE(listener_->Add(3, ends_[0]).ok());
  listener_->Stop();
  listener_->Stop();
  listener_.reset();  // Waits for the callback.
  ASSERT_EQ(send(ends_[1], ".", 1, 0), 1);
  EXPECT_EQ(readable_.size(), 0);
}

TEST_F(WorkerListenerTest, SocketThatCannotBeListenedToIsAnError) {
  const Status status = listener_->Add(3, -1);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "cannot listen to worker 3: Bad file descriptor");
}

TEST_F(WorkerListenerTest, TooManyOpenFilesAreAnErrorOfAdd) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  WorkerListener failed([](int) {}, [](Clock::time_point) {});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const Status status = failed.Add(3, ends_[0]);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "ActorPool cannot listen to workers: Too many open files");
}

}  // namespace
}  // namespace scalable_agents
