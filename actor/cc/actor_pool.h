// The actors of one process. The pool builds unrolls from the environments' outputs and the policy's decisions.
//
// Every environment has one actor. One thread listens to the worker processes. When a worker reports that some of its
// environments have stepped, the pool appends their rows to their actors' unrolls, and queues the actors for inference.
// When a batch of inference completes, the pool sends the actions to the workers. Full unrolls wait for a consumer.
// While too many of them wait, the actors that made them wait too (back-pressure). The rows follow actor/unroll.py.
//
// The environments that a worker steps in one message form a group. A group stays together through inference. So a
// worker with two groups steps one of them during the other one's inference, and batches stay large.
#ifndef SCALABLE_AGENTS_ACTOR_CC_ACTOR_POOL_H_
#define SCALABLE_AGENTS_ACTOR_CC_ACTOR_POOL_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actor/cc/batcher.h"
#include "actor/cc/environment_channel.h"
#include "actor/cc/processor_wait.h"
#include "actor/cc/unroll_builder.h"
#include "actor/cc/worker_listener.h"
#include "ops/cc/mutex.h"
#include "ops/cc/status.h"

namespace scalable_agents {

// What actors wait for. In a pool with a barrier, an actor with a full unroll waits for Release(). With kStep,
// environments and inference also take turns: once every environment has stepped, the pool takes the rows in the order
// of actor ids. This makes a run repeatable.
enum class Barrier { kNone, kUnroll, kStep };

// The actor of an environment, from the start to the end of its worker process. Only the pool changes it. The consumer
// of a batch may read it until CompleteBatch().
struct Actor {
  Actor(const UnrollLayout* layout, const UnrollBuilder::Allocate* allocate)
      : unroll(layout, allocate), decision(*layout) {}

  StreamTag tag;
  int worker = 0;
  int slot = 0;
  int group = 0;
  std::shared_ptr<EnvironmentChannel> channel;
  bool alive = true;
  bool stepping = true;  // The pool has asked its worker for a row.
  UnrollBuilder unroll;
  Decision decision;
};

class ActorPool {
 public:
  struct Options {
    int num_environments = 0;
    UnrollLayout layout;
    int64_t slot_bytes = 0;                  // Of a worker's slot, which begins with the int32 action.
    int completed_capacity = 1;              // Full unrolls that may wait before actors must wait.
    int64_t environment_timeout_ms = 60000;  // A worker that takes longer to answer is at fault.
    int64_t long_work_factor = 1;            // During long work the timeout is this many times as long.
    // Gets a process id, see processor_wait.h. On a busy machine, this time does not count towards the timeout.
    std::function<int64_t(int64_t)> processor_wait_ns = ProcessorWaitNs;
    Barrier barrier = Barrier::kNone;
    bool dynamic_batching = true;  // Otherwise each batch of inference has one actor.
  };
  struct Environment {
    int32_t actor_id;
    int32_t level_id;
    int32_t group;
  };
  struct Statistics {
    int64_t steps = 0;                 // Agent steps of all environments.
    int64_t batches = 0;               // Completed batches of inference.
    int64_t rows = 0;                  // Rows of these batches.
    int64_t inference_waiting_ns = 0;  // Time that consumers waited for batches, summed over consumers.
    int64_t stepping_ns = 0;           // Time that workers spent in their environments, summed over workers.
    int64_t blocked_ns = 0;            // Time during which at least one actor waited for its unroll to be taken.
  };
  using ActorBatch = Batcher<std::shared_ptr<Actor>>::Batch;
  using OnBatch = Batcher<std::shared_ptr<Actor>>::OnBatch;
  using OnUnroll = std::function<void(const Status&, Unroll*)>;
  // Gets the number of a worker and the reason why it is at fault.
  using OnFault = std::function<void(const Status&, int, const std::string&)>;

  // `allocate` allocates the memory of a component of an unroll.
  ActorPool(const Options& options, UnrollBuilder::Allocate allocate);
  ~ActorPool();

  // Starts the environments of a worker process: slot i is environments[i]. The first messages ask for each group's
  // first observations. After a fault, the new process of the worker is attached under the same number.
  // Each environment begins a stream. No two streams of a pool have the same id.
  // kUnavailable: the operating system does not let the pool listen to the worker. kResourceExhausted: no memory.
  Status Attach(int worker, int socket, int memory, const std::vector<Environment>& environments);

  // Asks for the next batch of actors that need an action; see Batcher::Next. It may be read until CompleteBatch().
  void NextBatch(OnBatch on_batch) { batcher_.Next(std::move(on_batch)); }
  int64_t BatchSize(int64_t id) const { return batcher_.Size(id); }

  // Takes the policy's decisions for batch `id`: `outputs[i]` and `states[i]` are [batch size, bytes of field i].
  // `version` is that of the parameters. Sends the actions to the workers. Skips actors whose worker is gone.
  Status CompleteBatch(int64_t id, int64_t version, const std::vector<const char*>& outputs,
                       const std::vector<const char*>& states);

  // Asks for the next full unroll, oldest first. If there is no memory for another one, the pool closes. Then every
  // wait for an unroll or a fault ends with kResourceExhausted.
  void NextUnroll(OnUnroll on_unroll);

  // Asks for the next worker at fault: it has ended, was silent for too long, or sent invalid messages. By then the
  // pool has dropped its partial unrolls and no longer listens to it.
  void NextFault(OnFault on_fault);

  // Lets all actors begin another unroll, once all of them wait with a full one. An actor whose worker is replaced
  // while it waits goes on waiting before its first step. kInvalidArgument: the pool has no barrier.
  Status Release();

  // Lets one actor begin another unroll, if it waits with a full one, or if its worker is replaced while it waits.
  // kInvalidArgument: the pool does not have Barrier::kUnroll.
  Status ReleaseOne(int32_t actor_id);

  // Stops an environment after its current step, if any. It stays stopped, even if its worker is replaced.
  // kInvalidArgument: the pool has a barrier, for which its environments wait together.
  Status Retire(int32_t actor_id);

  Statistics GetStatistics() const;

  // Ends every wait with kCancelled, and ends the listening thread. Idempotent.
  void Close(const std::string& cause);

 private:
  using Clock = WorkerListener::Clock;
  using Actors = std::vector<std::shared_ptr<Actor>>;
  struct Worker {
    std::shared_ptr<EnvironmentChannel> channel;  // Null while not attached.
    Actors actors;                                // By slot.
    int messages_under_way = 0;                   // Messages sent but not answered.
    std::vector<uint32_t> unsent;                 // Slots that must step, for which the socket had no room.
    Clock::time_point progress;                   // Time of the last answer, or of the first message after idleness.
    Clock::time_point long_work;                  // Time when it was last seen at long work.
    Clock::time_point silent_since;               // Time since which `waited_before` holds.
    std::chrono::nanoseconds waited_before{0};    // Options::processor_wait_ns soon after `silent_since`.
  };
  struct Fault {
    int worker;
    std::string reason;
  };
  // The work that has to be done once the mutex is free.
  struct Outcome {
    Actors ready;  // Actors that need inference.
    std::vector<std::pair<OnUnroll, Unroll>> unrolls;
    std::vector<std::pair<OnFault, Fault>> faults;
    Status failure;  // An error that ends the pool.
  };

  Actors MakeActors(int worker, const std::shared_ptr<EnvironmentChannel>& channel,
                    const std::vector<Environment>& environments) const;
  void ReadMessage(int worker);
  void CheckTimeouts(Clock::time_point now);
  void Settle(Outcome outcome);
  void End(const Status& closed, const std::string& cause);

  std::optional<std::chrono::nanoseconds> Waited(Worker* worker, Clock::time_point since) const REQUIRES(mutex_);
  Status Receive(Worker* worker, Actors* stepped) REQUIRES(mutex_);
  bool EveryoneStepped(Actors* stepped) REQUIRES(mutex_);
  void Advance(const Actors& stepped, Outcome* outcome) REQUIRES(mutex_);
  void AcceptUnrolls(const Actors& actors, Outcome* outcome) REQUIRES(mutex_);
  void Park(Actors actors) REQUIRES(mutex_);
  Actors Unpark() REQUIRES(mutex_);
  int NumParked() const REQUIRES(mutex_);
  void UnparkEveryone(Outcome* outcome) REQUIRES(mutex_);
  void DeliverUnrolls(Outcome* outcome) REQUIRES(mutex_);
  void Detach(int worker, const std::string& reason, Outcome* outcome) REQUIRES(mutex_);
  void SendActions(const Actors& actors) REQUIRES(mutex_);
  void Send(const std::vector<uint32_t>& slots, Worker* worker) REQUIRES(mutex_);

  const Options options_;
  const UnrollBuilder::Allocate allocate_;
  Batcher<std::shared_ptr<Actor>> batcher_;

  mutable Mutex mutex_;
  std::vector<Worker> workers_ GUARDED_BY(mutex_);
  int64_t next_stream_id_ GUARDED_BY(mutex_) = 0;  // The id of the next stream.
  std::deque<Unroll> completed_ GUARDED_BY(mutex_);
  // Groups that wait for room in completed_, or, at a barrier, for Release().
  std::deque<Actors> parked_ GUARDED_BY(mutex_);
  Actors received_ GUARDED_BY(mutex_);   // At Barrier::kStep: actors that have stepped and wait for others.
  int releases_ GUARDED_BY(mutex_) = 0;  // At a barrier: calls of Release() without effect so far.
  // At a barrier: ids of actors whose workers are being replaced, and whose unrolls were full.
  std::set<int32_t> finished_ GUARDED_BY(mutex_);
  std::set<int32_t> retired_ GUARDED_BY(mutex_);  // Ids of stopped actors.
  std::deque<OnUnroll> unroll_waiters_ GUARDED_BY(mutex_);
  std::deque<OnFault> fault_waiters_ GUARDED_BY(mutex_);
  std::deque<Fault> faults_ GUARDED_BY(mutex_);
  Statistics statistics_ GUARDED_BY(mutex_);
  Clock::time_point parked_since_ GUARDED_BY(mutex_);
  Clock::time_point last_check_ GUARDED_BY(mutex_) = Clock::now();  // Of timeouts.
  bool closed_ GUARDED_BY(mutex_) = false;
  Status closed_status_ GUARDED_BY(mutex_);  // The status that ends every wait, once closed.
  WorkerListener listener_;                  // Last member, so that its thread ends before the other members.
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_ACTOR_CC_ACTOR_POOL_H_
