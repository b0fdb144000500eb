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

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "actor/cc/batcher.h"
#include "actor/cc/environment_channel.h"
#include "ops/cc/status.h"

namespace scalable_agents {

// Where one field of a row lies in a worker's slot.
struct EnvironmentField {
  int64_t offset;
  int64_t bytes;
};

// Memory that one component of an unroll is written to; `owner` keeps it alive. Without one there was no memory.
struct Buffer {
  char* data = nullptr;
  std::shared_ptr<void> owner;
};

// The components of an unroll, in the order of the fields of actor/unroll.py:
// level id, actor id, agent state …, environment output …, agent output …, parameter version.
using Unroll = std::vector<Buffer>;

// One life of an environment, from its worker's start to its worker's end. The pool's, except what a batch reads.
struct Actor {
  int32_t actor_id;
  int32_t level_id;
  int worker;
  int slot;
  int group;
  std::shared_ptr<EnvironmentChannel> channel;
  bool alive = true;
  bool stepping = false;     // Its worker has been asked for a row.
  int row = 0;               // Rows written to `unroll`; 0 before the first reply.
  Unroll unroll;
  std::vector<char> output;  // What the policy last decided, field after field; begins with the int32 action.
  std::vector<char> state;   // The recurrent state that the next inference starts from, field after field.
  int64_t version = 0;       // Of the parameters that computed `output`.
};

class ActorPool {
 public:
  struct Options {
    int num_environments = 0;
    int unroll_length = 0;                             // Agent steps.
    int64_t slot_bytes = 0;
    int64_t action_offset = 0;                         // In a slot, int32.
    std::vector<EnvironmentField> environment_fields;  // In the order of EnvironmentOutput: reward, discount, done, …
    std::vector<int64_t> agent_output_bytes;           // Per row; the first is the int32 action.
    std::vector<int64_t> agent_state_bytes;
    int completed_capacity = 1;                        // Full unrolls that may wait before their actors must.
    int64_t environment_timeout_ms = 60000;            // A worker silent for longer than this is at fault.
    int64_t long_work_factor = 1;                      // While it is at long work it has so many times as long.
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
  // Memory for the unroll's component number `component`.
  using Allocate = std::function<Buffer(int component)>;

  ActorPool(const Options& options, Allocate allocate);
  ~ActorPool();

  // Starts the environments of a worker process: slot i is environments[i]. Its first message asks for each group's
  // first observations. A worker that was at fault is attached again under its old number, with a new process.
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
  using Clock = std::chrono::steady_clock;
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
  void Listen();
  void ReadMessage(int worker);
  void CheckTimeouts(Clock::time_point now);
  void Settle(Outcome outcome);
  void End(const Status& closed, const std::string& cause);

  // With mutex_ held:
  Status Receive(Worker* worker, Actors* stepped);
  bool EveryoneStepped(Actors* stepped);
  void Advance(const Actors& stepped, Outcome* outcome);
  bool AppendRow(Actor* actor, Outcome* outcome);
  bool StartUnroll(Actor* actor, Outcome* outcome);
  void AcceptUnrolls(const Actors& actors, Outcome* outcome);
  void Park(Actors actors);
  Actors Unpark();
  int NumParked() const;
  void UnparkEveryone(Outcome* outcome);
  void DeliverUnrolls(Outcome* outcome);
  void Detach(int worker, const std::string& reason, Outcome* outcome);
  void SendActions(const Actors& actors);

  const Options options_;
  const Allocate allocate_;
  const int first_environment_component_;
  const int first_output_component_;
  const int version_component_;
  Batcher<std::shared_ptr<Actor>> batcher_;
  int epoll_ = -1;
  int wake_ = -1;     // An eventfd that ends the listening thread.
  std::string deaf_;  // Why there is no listening thread, if there is none: too many open files, say.

  mutable std::mutex mutex_;
  std::vector<Worker> workers_;      // Guarded by mutex_, as all below.
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
  std::thread listener_;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_ACTOR_CC_ACTOR_POOL_H_
