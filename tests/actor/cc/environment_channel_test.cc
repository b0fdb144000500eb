#include "actor/cc/environment_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace scalable_agents {
namespace {

constexpr int kSlots = 3;
constexpr size_t kSlotBytes = 128;
constexpr size_t kBytes = EnvironmentChannel::kHeaderBytes + kSlots * kSlotBytes;

using Slots = std::vector<uint32_t>;

// Tests with a channel, and with the worker's side: the other end of the socket and the memory.
class EnvironmentChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    ours_ = ends[0];
    theirs_ = ends[1];
    memory_ = memfd_create("test", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(memory_, kBytes), 0);
  }

  void TearDown() override {
    channel_.reset();
    for (int descriptor : {ours_, theirs_, memory_}) {
      if (descriptor >= 0) close(descriptor);
    }
  }

  Status Open() { return EnvironmentChannel::Open(ours_, memory_, kSlots, kSlotBytes, &channel_); }

  // Opens the channel, and closes our end of the socket, so that only the channel has it.
  void OpenAlone() {
    const Status status = Open();
    ASSERT_TRUE(status.ok()) << status.message();
    close(ours_);
    ours_ = -1;
  }

  void CloseTheirs() {
    close(theirs_);
    theirs_ = -1;
  }

  Slots Read() {
    Slots slots(kSlots + 1);
    const ssize_t bytes = recv(theirs_, slots.data(), slots.size() * sizeof(uint32_t), MSG_DONTWAIT);
    slots.resize(bytes > 0 ? bytes / sizeof(uint32_t) : 0);
    return slots;
  }

  void Write(const void* data, size_t bytes) {
    ASSERT_EQ(send(theirs_, data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }
  void Write(const Slots& slots) { Write(slots.data(), slots.size() * sizeof(uint32_t)); }

  int ours_ = -1, theirs_ = -1, memory_ = -1;
  std::unique_ptr<EnvironmentChannel> channel_;
};

TEST_F(EnvironmentChannelTest, MessagesPassWholeInBothDirections) {
  OpenAlone();
  EXPECT_TRUE(channel_->Send({0, 2}).ok());
  EXPECT_TRUE(channel_->Send({1}).ok());
  EXPECT_EQ(Read(), Slots({0, 2}));
  EXPECT_EQ(Read(), Slots({1}));
  Write({1});
  Write({2, 1, 0});
  Slots slots;
  EXPECT_TRUE(channel_->Receive(&slots).ok());
  EXPECT_EQ(slots, Slots({1}));
  EXPECT_TRUE(channel_->Receive(&slots).ok());
  EXPECT_EQ(slots, Slots({2, 1, 0}));
}

TEST_F(EnvironmentChannelTest, ReceiveDoesNotWait) {
  OpenAlone();
  Slots slots({7});
  EXPECT_TRUE(channel_->Receive(&slots).ok());
  EXPECT_EQ(slots, Slots());
}

TEST_F(EnvironmentChannelTest, MemoryIsSharedSlotBySlot) {
  OpenAlone();
  auto* theirs = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0));
  ASSERT_NE(theirs, MAP_FAILED);
  for (int slot = 0; slot < kSlots; ++slot) {
    char* in_their_memory = theirs + 65536 + slot * kSlotBytes;  // As in actor/shared_memory.py.
    memset(in_their_memory, 'a' + slot, kSlotBytes);
    EXPECT_EQ(std::string(channel_->slot(slot), kSlotBytes), std::string(kSlotBytes, 'a' + slot));
    channel_->slot(slot)[kSlotBytes - 1] = 'z';
    EXPECT_EQ(in_their_memory[kSlotBytes - 1], 'z');
  }
  const int64_t nanoseconds = 123456789012345, long_work = 1;
  EXPECT_FALSE(channel_->at_long_work());
  memcpy(theirs, &nanoseconds, sizeof(nanoseconds));
  memcpy(theirs + 16, &long_work, sizeof(long_work));
  EXPECT_EQ(channel_->stepping_ns(), nanoseconds);
  EXPECT_TRUE(channel_->at_long_work());
  EXPECT_EQ(channel_->process_id(), 0);
  const int64_t process = 4321;
  memcpy(theirs + 32, &process, sizeof(process));
  EXPECT_EQ(channel_->process_id(), process);
  munmap(theirs, kBytes);
}

TEST_F(EnvironmentChannelTest, WorkThatHasNotEndedCounts) {
  OpenAlone();
  auto* numbers = static_cast<int64_t*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0));
  ASSERT_NE(numbers, MAP_FAILED);
  auto now = [] { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  const int64_t second = 1000000000, before = now();
  numbers[0] = second;
  numbers[1] = 2;                              // At work at slot 1,
  EXPECT_EQ(channel_->stepping_ns(), second);  // which is still being made.
  numbers[3] = before - 3 * second;            // Now it has been stepping for three seconds.
  const int64_t stepping = channel_->stepping_ns();
  EXPECT_GE(stepping, 4 * second);
  EXPECT_LE(stepping, 4 * second + now() - before);
  numbers[1] = 0;  // The work has ended, and the worker has not counted it yet.
  const int64_t ended = channel_->stepping_ns();
  EXPECT_GE(ended, stepping);
  EXPECT_LE(ended, 4 * second + now() - before);
  numbers[0] = 9 * second;
  EXPECT_EQ(channel_->stepping_ns(), 9 * second);
  munmap(numbers, kBytes);
}

TEST_F(EnvironmentChannelTest, TheCallerMayCloseItsDescriptors) {
  OpenAlone();
  close(memory_);
  memory_ = -1;
  channel_->slot(kSlots - 1)[kSlotBytes - 1] = 1;
  EXPECT_TRUE(channel_->Send({0}).ok());
  EXPECT_EQ(Read(), Slots({0}));
}

TEST_F(EnvironmentChannelTest, DescriptorsDoNotReachChildProcesses) {
  OpenAlone();
  EXPECT_TRUE(fcntl(channel_->socket(), F_GETFD) & FD_CLOEXEC);
}

TEST_F(EnvironmentChannelTest, DestructionHangsUp) {
  OpenAlone();
  channel_.reset();
  char byte;
  EXPECT_EQ(recv(theirs_, &byte, 1, MSG_DONTWAIT), 0);  // End of stream. An open socket gives EAGAIN.
}

TEST_F(EnvironmentChannelTest, WorkerThatIsGone) {
  OpenAlone();
  Write({1});
  CloseTheirs();
  EXPECT_EQ(channel_->Send({0}).code(), StatusCode::kUnavailable);
  Slots slots;
  EXPECT_TRUE(channel_->Receive(&slots).ok());  // Earlier messages still arrive.
  EXPECT_EQ(slots, Slots({1}));
  const Status status = channel_->Receive(&slots);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "the worker closed its connection");
  EXPECT_EQ(slots, Slots());
}

TEST_F(EnvironmentChannelTest, WorkerThatIsGoneWithAMessageUnread) {
  OpenAlone();
  EXPECT_TRUE(channel_->Send({0}).ok());
  CloseTheirs();
  Slots slots;
  Status status = channel_->Receive(&slots);  // Gets ECONNRESET, not the end of the stream.
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "the worker closed its connection");
}

TEST_F(EnvironmentChannelTest, WorkerThatDoesNotRead) {
  OpenAlone();
  Status status;
  for (int i = 0; i < 1000000 && status.ok(); ++i) status = channel_->Send({0, 1, 2});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
}

TEST_F(EnvironmentChannelTest, Nonsense) {
  OpenAlone();
  Slots slots;
  Write({0, kSlots});
  Status status = channel_->Receive(&slots);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "the worker answered for slot 3, want 0 to 2");
  Write({~0u});
  EXPECT_EQ(channel_->Receive(&slots).code(), StatusCode::kUnavailable);
  Write("abcdef", 6);
  EXPECT_EQ(channel_->Receive(&slots).message(), "the worker sent a packet of 6 bytes");
  Write({0, 1, 2, 0});  // More numbers than slots.
  EXPECT_EQ(channel_->Receive(&slots).message(), "the worker sent a packet of 16 bytes");
}

TEST_F(EnvironmentChannelTest, BadDescriptors) {
  EXPECT_EQ(EnvironmentChannel::Open(-1, memory_, kSlots, kSlotBytes, &channel_).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(EnvironmentChannel::Open(ours_, -1, kSlots, kSlotBytes, &channel_).code(), StatusCode::kInvalidArgument);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(EnvironmentChannel::Open(ours_, ends[0], 0, 0, &channel_).code(), StatusCode::kInvalidArgument);
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(channel_, nullptr);
}

TEST_F(EnvironmentChannelTest, TooLittleMemory) {
  ASSERT_EQ(ftruncate(memory_, kBytes - 1), 0);
  const Status status = Open();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "shared memory: want 65920 bytes for 3 slots, got 65919");
}

TEST_F(EnvironmentChannelTest, MoreMemoryThanThereCanBe) {
  for (const size_t slot_bytes : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX - 4096}) {
    const Status status = EnvironmentChannel::Open(ours_, memory_, 2, slot_bytes, &channel_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(EnvironmentChannelTest, MemoryThatCannotBeMapped) {
  const int write_only = open("/dev/null", O_WRONLY);
  const int file = open("/proc/self/exe", O_RDONLY);  // Large enough, but not writable.
  EXPECT_EQ(EnvironmentChannel::Open(ours_, file, kSlots, kSlotBytes, &channel_).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(EnvironmentChannel::Open(ours_, write_only, kSlots, kSlotBytes, &channel_).code(),
            StatusCode::kInvalidArgument);
  close(write_only);
  close(file);
}

}  // namespace
}  // namespace scalable_agents
