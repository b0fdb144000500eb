// The actors of one process: turns what environments answer and what the policy decides into unrolls.
//
// Every environment has an actor here. One thread listens to the worker processes. When a worker says that some of its
// environments have stepped, their rows are appended to their actors' unrolls and the actors queue for inference;
// when a batch of inference completes, the actions go back to the workers. Full unrolls wait for a consumer, and while
// too many wait, the actors that made them wait too (back-pressure). The rows follow actor/unroll.py.
//
// Environments that a worker steps in one message form a group, and a group stays together through inference: a worker
// with two groups steps one while the policy looks at the other, and batches stay large.
#ifndef SCALABLE_AGENTS_ACTOR_CC_ACTOR_POOL_H_
#define SCALABLE_AGENTS_ACTOR_CC_ACTOR_POOL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "actor/cc/batcher.h"
#include "actor/cc/environment_channel.h"
#include "actor/cc/unroll_builder.h"
#include "actor/cc/worker_listener.h"
#include "ops/cc/status.h"

namespace scalable_agents {

// One life of an environment, from its worker's start to its worker's end. The pool's, except what a batch reads.
struct Actor {
  Actor(const UnrollLayout* layout, const UnrollBuilder::Allocate* allocate)
      : unroll(layout, allocate), decision(*layout) {}

  LifeTag tag;
  int worker = 0;
  int slot = 0;
  int group = 0;
  std::shared_ptr<EnvironmentChannel> channel;
  bool alive = true;
  bool stepping = true;    // Its worker has been asked for a row.
  UnrollBuilder unroll;
  Decision decision;
};

class ActorPool {
 public:
  struct Options {
    int num_environments = 0;
    UnrollLayout layout;
    int64_t slot_bytes = 0;
    int64_t action_offset = 0;               // In a slot, int32.
    int completed_capacity = 1;              // Full unrolls that may wait before their actors must.
    int64_t environment_timeout_ms = 60000;  // A worker silent for longer than this is at fault.
    int64_t long_work_factor = 1;            // While it is at long work it has so many times as long.
    // Environments and inference take turns: rows are taken in the order of actor ids once every environment has
    // stepped, and an actor with a full unroll waits for Release(). Makes a run repeatable.
    bool synchronous = false;
  };
  struct Environment {
    int32_t actor_id;
    int32_t level_id;
    int32_t group;
  };
  struct Statistics {
    int64_t steps = 0;                 // Agent steps taken, all environments.
    int64_t batches = 0;               // Batches of inference completed, and the rows in them.
    int64_t rows = 0;
    int64_t inference_waiting_ns = 0;  // Summed over consumers of batches.
    int64_t stepping_ns = 0;           // Workers busy in their environments, summed over workers.
    int64_t blocked_ns = 0;            // Some actor waited for its unroll to be taken.
  };
  using ActorBatch = Batcher<std::shared_ptr<Actor>>::Batch;
  using OnBatch = Batcher<std::shared_ptr<Actor>>::OnBatch;
  using OnUnroll = std::function<void(const Status&, Unroll*)>;
  // `worker`, and why it is at fault.
  using OnFault = std::function<void(const Status&, int, const std::string&)>;

  // `allocate` gives memory for a component of an unroll.
  ActorPool(const Options& options, UnrollBuilder::Allocate allocate);
  ~ActorPool();

  // Starts the environments of a worker process: slot i is environments[i]. Its first message asks for each group's
  // first observations. A worker that was at fault is attached again under its old number, with a new process.
  // Each environment begins a life, and no two lives of a pool have the same id.
  // kUnavailable: the operating system does not let the pool listen to it. kResourceExhausted: there is no memory.
  Status Attach(int worker, int socket, int memory, const std::vector<Environment>& environments);

  // Asks for the next actors to act for; see Batcher::Next. The actors may be read until CompleteBatch().
  void NextBatch(OnBatch on_batch) { batcher_.Next(std::move(on_batch)); }
  int64_t BatchSize(int64_t id) const { return batcher_.Size(id); }

  // Hands in what the policy decided for batch `id`: `outputs[i]` and `states[i]` are [batch size, field i's bytes].
  // Sends the actions to the workers. Actors whose worker is gone are passed over.
  Status CompleteBatch(int64_t id, int64_t version, const std::vector<const char*>& outputs,
                       const std::vector<const char*>& states);

  // Asks for the next full unroll, oldest first. Where there is no memory for another one, the pool closes, and every
  // wait for an unroll or a fault ends with kResourceExhausted.
  void NextUnroll(OnUnroll on_unroll);

  // Asks for the next worker at fault: ended, silent for too long, or talking nonsense. Its partial unrolls are
  // dropped by then, and it is heard no more.
  void NextFault(OnFault on_fault);

  // Synchronous pools only: once all actors wait with a full unroll, now or later, lets them go on for another one.
  void Release();

  // An environment rests: after the step that it may be taking, no more is asked of it, whatever becomes of its worker.
  // kInvalidArgument: in a synchronous pool, whose environments step together or not at all.
  Status Retire(int32_t actor_id);

  Statistics GetStatistics() const;

  // Ends every wait with kCancelled and the listening thread. Idempotent.
  void Close(const std::string& cause);

 private:
  using Clock = WorkerListener::Clock;
  using Actors = std::vector<std::shared_ptr<Actor>>;
  struct Worker {
    std::shared_ptr<EnvironmentChannel> channel;  // Null while not attached.
    Actors actors;                                // By slot.
    int messages_under_way = 0;                   // Sent and not answered.
    Clock::time_point progress;                   // Of the last answer, or of the first message after idleness.
    Clock::time_point long_work;                  // When it was last seen at long work.
  };
  struct Fault {
    int worker;
    std::string reason;
  };
  // What has to be done once the mutex is free.
  struct Outcome {
    Actors ready;  // For inference.
    std::vector<std::pair<OnUnroll, Unroll>> unrolls;
    std::vector<std::pair<OnFault, Fault>> faults;
    Status failure;  // Which ends the pool.
  };

  Actors MakeActors(int worker, const std::shared_ptr<EnvironmentChannel>& channel,
                    const std::vector<Environment>& environments) const;
  void ReadMessage(int worker);
  void CheckTimeouts(Clock::time_point now);
  void Settle(Outcome outcome);
  void End(const Status& closed, const std::string& cause);

  // With mutex_ held:
  Status Receive(Worker* worker, Actors* stepped);
  bool EveryoneStepped(Actors* stepped);
  void Advance(const Actors& stepped, Outcome* outcome);
  void AcceptUnrolls(const Actors& actors, Outcome* outcome);
  void Park(Actors actors);
  Actors Unpark();
  int NumParked() const;
  void UnparkEveryone(Outcome* outcome);
  void DeliverUnrolls(Outcome* outcome);
  void Detach(int worker, const std::string& reason, Outcome* outcome);
  void SendActions(const Actors& actors);

  const Options options_;
  const UnrollBuilder::Allocate allocate_;
  Batcher<std::shared_ptr<Actor>> batcher_;

  mutable std::mutex mutex_;
  std::vector<Worker> workers_;      // Guarded by mutex_, as all below but the listener.
  int64_t next_life_ = 0;            // The id of the next life.
  std::deque<Unroll> completed_;
  std::deque<Actors> parked_;        // Groups that wait: for room in completed_, or (synchronous) for Release().
  Actors received_;                  // Synchronous: stepped and waiting for the others.
  int releases_ = 0;                 // Synchronous: calls of Release() not yet acted on.
  std::set<int32_t> retired_;        // Actor ids.
  std::deque<OnUnroll> unroll_waiters_;
  std::deque<OnFault> fault_waiters_;
  std::deque<Fault> faults_;
  Statistics statistics_;
  Clock::time_point parked_since_;
  bool closed_ = false;
  Status closed_status_;             // What every wait ends with, once closed.
  WorkerListener listener_;          // Last, so that its thread ends before what it works on.
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_ACTOR_CC_ACTOR_POOL_H_
