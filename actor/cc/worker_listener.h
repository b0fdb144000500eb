// The actor pool's thread: it waits for messages from workers, and calls back regularly for the check of timeouts.
#ifndef SCALABLE_AGENTS_ACTOR_CC_WORKER_LISTENER_H_
#define SCALABLE_AGENTS_ACTOR_CC_WORKER_LISTENER_H_

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "ops/cc/status.h"

namespace scalable_agents {

class WorkerListener {
 public:
  using Clock = std::chrono::steady_clock;
  // Called from the listener's thread if there is something to read from the worker, or if the worker is gone.
  using OnReadable = std::function<void(int worker)>;
  // Called from the listener's thread about every tenth of a second, between messages.
  using OnTick = std::function<void(Clock::time_point now)>;

  // Starts the thread. If the operating system does not allow it, Add() returns the error.
  WorkerListener(OnReadable on_readable, OnTick on_tick);
  // Waits for a running callback and ends the thread. Do not call this from a callback.
  ~WorkerListener();

  // Listens to the worker at the other end of `socket`. kUnavailable: the operating system does not allow it.
  Status Add(int worker, int socket);
  void Remove(int socket);

  // Ends the thread soon, and does not wait for it. Idempotent. Any thread may call this, also from a callback.
  void Stop();

 private:
  void Listen();

  const OnReadable on_readable_;
  const OnTick on_tick_;
  int epoll_ = -1;
  int wake_ = -1;            // An eventfd that ends the thread.
  std::string start_error_;  // The reason why there is no thread, such as too many open files. Empty if there is one.
  std::thread thread_;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_ACTOR_CC_WORKER_LISTENER_H_
