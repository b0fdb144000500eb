// The actor pool's thread: it waits for messages from workers, and says now and then that time has passed.
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
  // Called from the listener's thread: there is something to read from the worker, or it is gone.
  using OnReadable = std::function<void(int worker)>;
  // Called from the listener's thread every tenth of a second, when no message is waiting.
  using OnTick = std::function<void(Clock::time_point now)>;

  // Starts the thread. Where the operating system does not allow it, Add() says so.
  WorkerListener(OnReadable on_readable, OnTick on_tick);
  // Ends the thread, which may be in a callback until then. Not to be called from a callback.
  ~WorkerListener();

  // Listens to the worker at the other end of `socket`. kUnavailable: the operating system does not let it listen.
  Status Add(int worker, int socket);
  void Remove(int socket);

  // Ends the thread soon, without waiting for it. Idempotent; from any thread, also from a callback.
  void Stop();

 private:
  void Listen();

  const OnReadable on_readable_;
  const OnTick on_tick_;
  int epoll_ = -1;
  int wake_ = -1;     // An eventfd that ends the thread.
  std::string deaf_;  // Why there is no thread, if there is none: too many open files, say.
  std::thread thread_;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_ACTOR_CC_WORKER_LISTENER_H_
