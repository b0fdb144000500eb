// The training process's channel to a worker process: shared memory for data, and a socket for messages.
//
// The memory begins with a header, whose layout is in actor/shared_memory.py. Then follow `slots` records of
// `slot_bytes`, one for each environment of the worker. A message is one packet: the uint32 numbers of some slots. A
// message to the worker means that their actions are ready, so it must step. A message from the worker means that their
// results are ready. The two sides never use a slot at the same time, so its data needs no lock.
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
  // The places of the header's int64 numbers. actor/shared_memory.py has the same and says what they are.
  enum { kSteppingNs, kAtWork, kLongWork, kRequestNs, kProcessId };

  // Duplicates the socket and maps the memory, so the caller may close both descriptors. `socket` has the type
  // SOCK_SEQPACKET. kInvalidArgument: a descriptor is invalid, or the memory is smaller than `slots` records.
  static Status Open(int socket, int memory, int slots, size_t slot_bytes,
                     std::unique_ptr<EnvironmentChannel>* channel);
  ~EnvironmentChannel();
  EnvironmentChannel(const EnvironmentChannel&) = delete;
  EnvironmentChannel& operator=(const EnvironmentChannel&) = delete;

  int socket() const { return socket_; }
  char* slot(int number) { return memory_ + kHeaderBytes + number * slot_bytes_; }
  // The nanoseconds that the worker has spent in its environments, including the work in progress. Never falls. Calls
  // must not overlap.
  int64_t stepping_ns();
  // Whether the worker is at work that may take many minutes, such as compiling a map.
  bool at_long_work() const { return HeaderNumber(kLongWork) != 0; }
  // The worker's process id. 0 if the worker has not written it.
  int64_t process_id() const { return HeaderNumber(kProcessId); }

  // Tells the worker to step these slots. Does not block. kUnavailable: the worker is gone or does not read.
  Status Send(const std::vector<uint32_t>& slots);

  // Takes one waiting message; `slots` is empty if there is none. kUnavailable: the worker is gone, or the message is
  // invalid.
  Status Receive(std::vector<uint32_t>* slots);

 private:
  EnvironmentChannel() = default;
  int64_t HeaderNumber(int place) const;

  int socket_ = -1;
  char* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  size_t slot_bytes_ = 0;
  int slots_ = 0;
  int64_t stepping_ns_ = 0;  // The last result of stepping_ns().
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_ACTOR_CC_ENVIRONMENT_CHANNEL_H_
