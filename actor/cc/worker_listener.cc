#include "actor/cc/worker_listener.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <system_error>
#include <utility>
#include <vector>

namespace scalable_agents {
namespace {

constexpr uint64_t kWake = ~uint64_t{0};  // The eventfd's key. A worker's key is its number.
constexpr int kTickMs = 100;
constexpr int kMaximumEvents = 1024;  // There are fewer workers.

}  // namespace

WorkerListener::WorkerListener(OnReadable on_readable, OnTick on_tick)
    : on_readable_(std::move(on_readable)),
      on_tick_(std::move(on_tick)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kWake;
  if (epoll_ < 0 || wake_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) != 0) {
    start_error_ = std::string("ActorPool cannot listen to workers: ") + strerror(errno);
    return;
  }
  try {
    thread_ = std::thread([this] { Listen(); });
  } catch (const std::system_error& error) {
    start_error_ = std::string("ActorPool cannot start a thread: ") + error.what();
  }
}

WorkerListener::~WorkerListener() {
  Stop();
  if (thread_.joinable()) thread_.join();
  if (wake_ >= 0) close(wake_);
  if (epoll_ >= 0) close(epoll_);
}

Status WorkerListener::Add(int worker, int socket) {
  if (!start_error_.empty()) return Unavailable(start_error_);
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = worker;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) == 0) return Status();
  return Unavailable("cannot listen to worker " + std::to_string(worker) + ": " + strerror(errno));
}

void WorkerListener::Remove(int socket) { epoll_ctl(epoll_, EPOLL_CTL_DEL, socket, nullptr); }

void WorkerListener::Stop() {
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
}

void WorkerListener::Listen() {
  std::vector<epoll_event> events(kMaximumEvents);
  auto read_messages = [&](int wait_ms) {
    const int count = epoll_wait(epoll_, events.data(), events.size(), wait_ms);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kWake) return false;
      on_readable_(static_cast<int>(events[i].data.u64));
    }
    return true;
  };
  Clock::time_point next_tick = Clock::now();
  while (read_messages(kTickMs)) {
    const Clock::time_point now = Clock::now();
    if (now < next_tick) continue;
    next_tick = now + std::chrono::milliseconds(kTickMs);
    // This process may have been stopped (Ctrl-Z, then fg). Messages that arrived meanwhile come before timeouts.
    if (!read_messages(0)) return;
    on_tick_(now);
  }
}

}  // namespace scalable_agents
