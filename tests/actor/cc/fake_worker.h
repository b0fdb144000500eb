// A fake worker process for the actor pool. The test calls it for each message, or a thread of its own answers.
#ifndef SCALABLE_AGENTS_TESTS_ACTOR_CC_FAKE_WORKER_H_
#define SCALABLE_AGENTS_TESTS_ACTOR_CC_FAKE_WORKER_H_

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "actor/cc/environment_channel.h"
#include "tests/actor/cc/mailbox.h"

namespace scalable_agents {

// A slot. All fields but `action` are the environment's output, which identifies the worker's incarnation and the step.
struct Row {
  int32_t action;
  int32_t acted;  // The action that led to this row, -1 in the first row.
  int64_t incarnation;
  int64_t step;  // 0 in the first row.
  float reward;
  uint8_t done;
};

constexpr int kEpisodeSteps = 7;

inline bool IsDone(int64_t step) { return step % kEpisodeSteps == 0; }  // True for an incarnation's first row.
inline float RewardOf(int64_t incarnation, int64_t step) { return 1000 * incarnation + step; }

class FakeWorker {
 public:
  FakeWorker(int slots, int64_t incarnation) : slots_(slots), incarnation_(incarnation), steps_(slots, -1) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    pools_ = ends[0];
    ours_ = ends[1];
    memory_ = memfd_create("fake worker", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(memory_, bytes()), 0);
    mapped_ = static_cast<char*>(mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0));
  }

  ~FakeWorker() {
    Die();
    munmap(mapped_, bytes());
    close(memory_);
  }

  // The descriptors for the pool, which duplicates them.
  int pools_socket() const { return pools_; }
  int memory() const { return memory_; }
  int slots() const { return slots_; }
  void ClosePoolsSocket() {
    if (pools_ >= 0) close(pools_);
    pools_ = -1;
  }

  // Waits for a message. Returns nothing if the connection ends or no message comes in time.
  std::vector<uint32_t> Await() {
    pollfd event = {ours_, POLLIN, 0};
    std::vector<uint32_t> slots(slots_);
    const int patience_ms = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience).count();
    if (poll(&event, 1, patience_ms) != 1) return {};
    const ssize_t bytes = recv(ours_, slots.data(), slots.size() * sizeof(uint32_t), 0);
    slots.resize(bytes > 0 ? bytes / sizeof(uint32_t) : 0);
    return slots;
  }

  // Returns whether a message is waiting.
  bool IsAsked() const {
    pollfd event = {ours_, POLLIN, 0};
    return poll(&event, 1, 0) == 1;
  }

  // Marks the beginning or the end of long work.
  void SetLongWork(bool under_way) {
    __atomic_store_n(Number(EnvironmentChannel::kLongWork), under_way, __ATOMIC_RELAXED);
  }

  void Send(const std::vector<uint32_t>& slots) {
    (void)!send(ours_, slots.data(), slots.size() * sizeof(uint32_t), MSG_NOSIGNAL);
  }

  // Steps these environments and sends the answer.
  void Answer(const std::vector<uint32_t>& slots) {
    for (uint32_t slot : slots) {
      Row* row = reinterpret_cast<Row*>(mapped_ + EnvironmentChannel::kHeaderBytes + slot * sizeof(Row));
      const int64_t step = ++steps_[slot];
      row->acted = step == 0 ? -1 : row->action;
      row->incarnation = incarnation_;
      row->step = step;
      row->reward = step == 0 ? 0 : RewardOf(incarnation_, step);
      row->done = IsDone(step);
    }
    int64_t* stepping_ns = Number(EnvironmentChannel::kSteppingNs);
    __atomic_store_n(stepping_ns, *stepping_ns + static_cast<int64_t>(slots.size()), __ATOMIC_RELAXED);
    Send(slots);
  }

  // Starts a thread that answers all messages until the pool closes the connection or Die() is called.
  void Serve() {
    ClosePoolsSocket();
    thread_ = std::thread([this] {
      for (auto slots = Await(); !slots.empty(); slots = Await()) Answer(slots);
    });
  }

  // Closes the connection, as the end of a process would.
  void Die() {
    if (ours_ < 0) return;
    shutdown(ours_, SHUT_RDWR);  // Wakes the thread.
    if (thread_.joinable()) thread_.join();
    close(ours_);
    ours_ = -1;
    ClosePoolsSocket();
  }

  // Waits until the pool closes the connection.
  bool SeesTheEnd() {
    ClosePoolsSocket();
    while (!Await().empty()) {
    }
    char byte;
    return recv(ours_, &byte, 1, MSG_DONTWAIT) == 0;
  }

 private:
  size_t bytes() const { return EnvironmentChannel::kHeaderBytes + slots_ * sizeof(Row); }

  int64_t* Number(int place) { return reinterpret_cast<int64_t*>(mapped_) + place; }

  const int slots_;
  const int64_t incarnation_;
  std::vector<int64_t> steps_;  // The step of each slot, -1 before the first message.
  int pools_ = -1, ours_ = -1, memory_ = -1;
  char* mapped_ = nullptr;
  std::thread thread_;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_TESTS_ACTOR_CC_FAKE_WORKER_H_
