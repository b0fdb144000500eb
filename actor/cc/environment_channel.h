// The training process's end of a worker process: a block of shared memory for data, a socket to ring at.
//
// The memory begins with a header (its layout is that of actor/shared_memory.py), then come `slots` records of
// `slot_bytes`, one per environment of the worker. A message in either direction is one packet: the uint32 numbers of
// the slots whose turn it is. Towards the worker it means "the action is there, step"; back, "the result is there".
// A slot is never touched by both sides at once, so its data needs no lock.
#ifndef SCALABLE_AGENTS_ACTOR_CC_ENVIRONMENT_CHANNEL_H_
#define SCALABLE_AGENTS_ACTOR_CC_ENVIRONMENT_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/cc/status.h"

namespace scalable_agents {

class EnvironmentChannel {
 public:
  static constexpr size_t kHeaderBytes = 1 << 16;

  // Takes duplicates of both descriptors. `socket` is of type SOCK_SEQPACKET. kInvalidArgument if a descriptor is
  // bad or the memory is smaller than `slots` records.
  static Status Open(int socket, int memory, int slots, size_t slot_bytes,
                     std::unique_ptr<EnvironmentChannel>* channel);
  ~EnvironmentChannel();
  EnvironmentChannel(const EnvironmentChannel&) = delete;
  EnvironmentChannel& operator=(const EnvironmentChannel&) = delete;

  int socket() const { return socket_; }
  int slots() const { return slots_; }
  char* slot(int number) { return memory_ + kHeaderBytes + number * slot_bytes_; }
  // The worker's nanoseconds spent stepping.
  int64_t stepping_ns() const { return HeaderNumber(0); }
  // Whether the worker is at work that may take many minutes, such as compiling a map.
  bool at_long_work() const { return HeaderNumber(2) != 0; }

  // Tells the worker to step these slots. Does not block; kUnavailable if the worker is gone or does not read.
  Status Send(const std::vector<uint32_t>& slots);

  // Takes one waiting message; empty if there is none. kUnavailable if the worker is gone or sent nonsense.
  Status Receive(std::vector<uint32_t>* slots);

 private:
  EnvironmentChannel() = default;
  int64_t HeaderNumber(int place) const;

  int socket_ = -1;
  char* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  size_t slot_bytes_ = 0;
  int slots_ = 0;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_ACTOR_CC_ENVIRONMENT_CHANNEL_H_
