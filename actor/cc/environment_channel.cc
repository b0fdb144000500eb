#include "actor/cc/environment_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>

namespace scalable_agents {

Status EnvironmentChannel::Open(int socket, int memory, int slots, size_t slot_bytes,
                                std::unique_ptr<EnvironmentChannel>* channel) {
  std::unique_ptr<EnvironmentChannel> opened(new EnvironmentChannel);
  struct stat file;
  if (fstat(memory, &file) != 0) return InvalidArgument(std::string("shared memory: ") + strerror(errno));
  size_t bytes;
  if (__builtin_mul_overflow(static_cast<size_t>(slots), slot_bytes, &bytes) ||
      __builtin_add_overflow(bytes, kHeaderBytes, &bytes)) {
    return InvalidArgument("shared memory: " + std::to_string(slots) + " slots of " + std::to_string(slot_bytes) +
                           " bytes are too large");
  }
  if (static_cast<size_t>(file.st_size) < bytes) {
    return InvalidArgument("shared memory: want " + std::to_string(bytes) + " bytes for " + std::to_string(slots) +
                           " slots, got " + std::to_string(file.st_size));
  }
  opened->socket_ = fcntl(socket, F_DUPFD_CLOEXEC, 0);
  if (opened->socket_ < 0) return InvalidArgument(std::string("worker socket: ") + strerror(errno));
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (mapped == MAP_FAILED) return InvalidArgument(std::string("shared memory: ") + strerror(errno));
  opened->memory_ = static_cast<char*>(mapped);
  opened->memory_bytes_ = bytes;
  opened->slot_bytes_ = slot_bytes;
  opened->slots_ = slots;
  *channel = std::move(opened);
  return Status();
}

EnvironmentChannel::~EnvironmentChannel() {
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
  if (socket_ >= 0) close(socket_);
}

int64_t EnvironmentChannel::HeaderNumber(int place) const {
  return __atomic_load_n(reinterpret_cast<const int64_t*>(memory_) + place, __ATOMIC_ACQUIRE);
}

int64_t EnvironmentChannel::stepping_ns() {
  // The worker writes these numbers in the opposite order. So no time is counted twice.
  const int64_t finished = HeaderNumber(kSteppingNs);
  const bool is_at_work = HeaderNumber(kAtWork) != 0;
  const int64_t began = HeaderNumber(kRequestNs);
  int64_t unfinished = 0;
  if (is_at_work && began != 0) {  // Otherwise it is idle, or still making its environments.
    const int64_t now = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    unfinished = std::max<int64_t>(now - began, 0);
  }
  // Work that has just ended may be in neither number.
  stepping_ns_ = std::max(stepping_ns_, finished + unfinished);
  return stepping_ns_;
}

Status EnvironmentChannel::Send(const std::vector<uint32_t>& slots) {
  const size_t bytes = slots.size() * sizeof(uint32_t);
  if (send(socket_, slots.data(), bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes)) return Status();
  return Unavailable(std::string("cannot reach the worker: ") + strerror(errno));
}

Status EnvironmentChannel::Receive(std::vector<uint32_t>* slots) {
  slots->resize(slots_);
  const size_t room = slots->size() * sizeof(uint32_t);
  const ssize_t bytes = recv(socket_, slots->data(), room, MSG_DONTWAIT | MSG_TRUNC);
  const int error = errno;
  slots->resize(bytes > 0 ? std::min<size_t>(bytes, room) / sizeof(uint32_t) : 0);
  if (bytes < 0 && (error == EAGAIN || error == EWOULDBLOCK || error == EINTR)) return Status();
  // ECONNRESET: the worker closed the socket with unread messages. Python finds out whether its process has ended.
  if (bytes <= 0) return Unavailable("the worker closed its connection");
  if (static_cast<size_t>(bytes) > room || bytes % sizeof(uint32_t) != 0) {
    return Unavailable("the worker sent a packet of " + std::to_string(bytes) + " bytes");
  }
  for (uint32_t slot : *slots) {
    if (slot >= static_cast<uint32_t>(slots_)) {
      return Unavailable("the worker answered for slot " + std::to_string(slot) + ", want 0 to " +
                         std::to_string(slots_ - 1));
    }
  }
  return Status();
}

}  // namespace scalable_agents
