#include "actor/cc/actor_pool.h"

#include <string.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

namespace scalable_agents {
namespace {

// The longest time between two checks of timeouts on a busy machine. After a longer one, this process was stopped.
constexpr std::chrono::seconds kLongestPause(1);

int64_t Nanoseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

}  // namespace

ActorPool::ActorPool(const Options& options, UnrollBuilder::Allocate allocate)
    : options_(options),
      allocate_(std::move(allocate)),
      batcher_({1, options.dynamic_batching ? std::max(options.num_environments, 1) : 1, -1}),
      listener_([this](int worker) { ReadMessage(worker); }, [this](Clock::time_point now) { CheckTimeouts(now); }) {}

ActorPool::~ActorPool() { Close(""); }

Status ActorPool::Attach(int worker, int socket, int memory, const std::vector<Environment>& environments) {
  std::unique_ptr<EnvironmentChannel> opened;
  Status status = EnvironmentChannel::Open(socket, memory, environments.size(), options_.slot_bytes, &opened);
  if (!status.ok()) return status;
  std::shared_ptr<EnvironmentChannel> channel = std::move(opened);
  Actors actors;
  status = WithMemory([&] {
    actors = MakeActors(worker, channel, environments);
    return Status();
  });
  if (!status.ok()) return status;
  std::map<int, std::vector<uint32_t>> groups;
  for (const auto& actor : actors) groups[actor->group].push_back(actor->slot);
  MutexLock lock(mutex_);
  if (closed_) return closed_status_;
  if (worker < 0) return InvalidArgument("worker: want a number >= 0, got " + std::to_string(worker));
  if (static_cast<size_t>(worker) >= workers_.size()) workers_.resize(worker + 1);
  Worker& entry = workers_[worker];
  if (entry.channel) return InvalidArgument("worker " + std::to_string(worker) + " is attached already");
  status = listener_.Add(worker, channel->socket());
  if (!status.ok()) return status;
  entry.channel = channel;
  entry.actors = std::move(actors);
  for (const auto& actor : entry.actors) actor->tag.stream_id = next_stream_id_++;
  for (const auto& group : groups) Send(group.second, &entry);
  return Status();
}

ActorPool::Actors ActorPool::MakeActors(int worker, const std::shared_ptr<EnvironmentChannel>& channel,
                                        const std::vector<Environment>& environments) const {
  Actors actors;
  for (size_t slot = 0; slot < environments.size(); ++slot) {
    auto actor = std::make_shared<Actor>(&options_.layout, &allocate_);
    actor->tag.level_id = environments[slot].level_id;
    actor->tag.actor_id = environments[slot].actor_id;
    actor->worker = worker;
    actor->slot = slot;
    actor->group = environments[slot].group;
    actor->channel = channel;
    actors.push_back(actor);
  }
  return actors;
}

Status ActorPool::CompleteBatch(int64_t id, int64_t version, const std::vector<const char*>& outputs,
                                const std::vector<const char*>& states) {
  // Without outputs, the caller knew no batch of this id. It may have been formed since.
  const Actors actors = outputs.empty() ? Actors() : batcher_.Take(id);
  MutexLock lock(mutex_);
  if (closed_) return closed_status_;
  if (actors.empty()) return InvalidArgument("Invalid computation id. Id: " + std::to_string(id));
  auto copy_row = [](size_t row, const std::vector<const char*>& from, const std::vector<int64_t>& bytes, char* to) {
    for (size_t field = 0; field < bytes.size(); ++field) {
      memcpy(to, from[field] + row * bytes[field], bytes[field]);
      to += bytes[field];
    }
  };
  Actors reachable;
  for (size_t i = 0; i < actors.size(); ++i) {
    Actor& actor = *actors[i];
    if (!actor.alive) continue;
    Decision& decision = actor.decision;
    copy_row(i, outputs, options_.layout.agent_output_bytes, decision.output.data());
    copy_row(i, states, options_.layout.agent_state_bytes, decision.state.data());
    decision.version = version;
    memcpy(actor.channel->slot(actor.slot), decision.output.data(), sizeof(int32_t));
    reachable.push_back(actors[i]);
  }
  statistics_.batches += 1;
  statistics_.rows += actors.size();
  SendActions(reachable);
  return Status();
}

void ActorPool::SendActions(const Actors& actors) {
  std::map<std::pair<int, int>, std::vector<uint32_t>> messages;
  for (const auto& actor : actors) {
    actor->stepping = true;
    messages[{actor->worker, actor->group}].push_back(actor->slot);
  }
  for (const auto& message : messages) Send(message.second, &workers_[message.first.first]);
}

// Sends a message, with the slots that are still unsent. If the socket is full, they wait until the next answer, for
// which the worker has read a message. The listening thread notices a lost worker.
void ActorPool::Send(const std::vector<uint32_t>& slots, Worker* worker) {
  worker->unsent.insert(worker->unsent.end(), slots.begin(), slots.end());
  if (worker->unsent.empty() || !worker->channel->Send(worker->unsent).ok()) return;
  worker->unsent.clear();
  if (worker->messages_under_way++ == 0) worker->progress = Clock::now();
}

void ActorPool::NextUnroll(OnUnroll on_unroll) {
  Outcome outcome;
  MutexLock lock(mutex_);
  if (closed_) {
    const Status closed = closed_status_;
    lock.Unlock();
    on_unroll(closed, nullptr);
    return;
  }
  unroll_waiters_.push_back(std::move(on_unroll));
  DeliverUnrolls(&outcome);
  lock.Unlock();
  Settle(std::move(outcome));
}

void ActorPool::NextFault(OnFault on_fault) {
  MutexLock lock(mutex_);
  if (closed_ || !faults_.empty()) {
    const Status status = closed_ ? closed_status_ : Status();
    Fault fault{-1, ""};
    if (!closed_) {
      fault = faults_.front();
      faults_.pop_front();
    }
    lock.Unlock();
    on_fault(status, fault.worker, fault.reason);
    return;
  }
  fault_waiters_.push_back(std::move(on_fault));
}

Status ActorPool::Release() {
  if (options_.barrier == Barrier::kNone) return InvalidArgument("the actors of a pool without a barrier do not wait");
  Outcome outcome;
  {
    MutexLock lock(mutex_);
    ++releases_;
    UnparkEveryone(&outcome);
  }
  Settle(std::move(outcome));
  return Status();
}

Status ActorPool::ReleaseOne(int32_t actor_id) {
  if (options_.barrier != Barrier::kUnroll) {
    return InvalidArgument("a single actor can be released only in a pool whose barrier is unroll");
  }
  Outcome outcome;
  {
    MutexLock lock(mutex_);
    finished_.erase(actor_id);  // An actor whose worker is being replaced does not wait after the replacement.
    for (auto group = parked_.begin(); group != parked_.end(); ++group) {
      const auto is_meant = [actor_id](const auto& actor) { return actor->tag.actor_id == actor_id; };
      const auto actor = std::find_if(group->begin(), group->end(), is_meant);
      if (actor == group->end()) continue;
      outcome.ready.push_back(*actor);
      group->erase(actor);
      if (group->empty()) parked_.erase(group);
      if (parked_.empty()) statistics_.blocked_ns += Nanoseconds(Clock::now() - parked_since_);
      break;
    }
  }
  Settle(std::move(outcome));
  return Status();
}

Status ActorPool::Retire(int32_t actor_id) {
  if (options_.barrier != Barrier::kNone) {
    return InvalidArgument("a single environment of a pool with a barrier cannot be stopped");
  }
  MutexLock lock(mutex_);
  retired_.insert(actor_id);
  return Status();
}

ActorPool::Statistics ActorPool::GetStatistics() const {
  MutexLock lock(mutex_);
  Statistics statistics = statistics_;
  statistics.inference_waiting_ns = batcher_.waiting_ns();
  for (const Worker& worker : workers_) {
    if (worker.channel) statistics.stepping_ns += worker.channel->stepping_ns();
  }
  if (!parked_.empty()) statistics.blocked_ns += Nanoseconds(Clock::now() - parked_since_);
  return statistics;
}

void ActorPool::Close(const std::string& cause) { End(Cancelled(WithCause("ActorPool is closed", cause)), cause); }

void ActorPool::End(const Status& closed, const std::string& cause) {
  std::deque<OnUnroll> unroll_waiters;
  std::deque<OnFault> fault_waiters;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    closed_status_ = closed;
    unroll_waiters.swap(unroll_waiters_);
    fault_waiters.swap(fault_waiters_);
    for (Worker& worker : workers_) {
      if (worker.channel) statistics_.stepping_ns += worker.channel->stepping_ns();
      worker = Worker();  // Closes this copy of the socket. The worker exits when Python has closed the other copy.
    }
    while (!parked_.empty()) Unpark();  // Counts the time that they waited.
    completed_.clear();
    received_.clear();
    listener_.Stop();
  }
  batcher_.Close(cause);
  for (OnUnroll& on_unroll : unroll_waiters) on_unroll(closed, nullptr);
  for (OnFault& on_fault : fault_waiters) on_fault(closed, -1, "");
}

void ActorPool::ReadMessage(int worker) {
  Outcome outcome;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    Worker& entry = workers_[worker];
    if (!entry.channel) return;
    Actors stepped;
    const Status status = Receive(&entry, &stepped);
    if (!status.ok()) {
      Detach(worker, status.message(), &outcome);
    } else if (!stepped.empty() && (options_.barrier != Barrier::kStep || EveryoneStepped(&stepped))) {
      Advance(stepped, &outcome);
    }
  }
  Settle(std::move(outcome));
}

void ActorPool::CheckTimeouts(Clock::time_point now) {
  Outcome outcome;
  {
    MutexLock lock(mutex_);
    const auto limit = std::chrono::milliseconds(options_.environment_timeout_ms);
    // If this process was stopped, its workers may have been, too (docker pause). That time does not count.
    const auto stopped = std::max(now - last_check_ - kLongestPause, Clock::duration::zero());
    last_check_ = now;
    for (size_t worker = 0; worker < workers_.size(); ++worker) {
      Worker& entry = workers_[worker];
      if (!entry.channel) continue;
      for (Clock::time_point* time : {&entry.progress, &entry.long_work}) *time = std::min(*time + stopped, now);
      if (entry.messages_under_way == 0) {
        Send({}, &entry);  // If the system had no memory for a message, no answer will come to send it after.
        continue;
      }
      const bool at_long_work = entry.channel->at_long_work();
      if (at_long_work) entry.long_work = now;
      const int64_t factor = at_long_work ? options_.long_work_factor : 1;
      const Clock::time_point since = at_long_work ? entry.progress : std::max(entry.progress, entry.long_work);
      if (now - since <= limit / 4) continue;  // Waited() takes some microseconds.
      const auto waited = Waited(&entry, since);
      if (!waited || now - since - *waited <= limit * factor) continue;
      std::ostringstream reason;
      reason << "no answer for " << options_.environment_timeout_ms * factor / 1000.0 << " s (";
      if (at_long_work) reason << "long work, " << factor << " times ";
      reason << "--environment_timeout_seconds)";
      Detach(worker, reason.str(), &outcome);
    }
  }
  Settle(std::move(outcome));
}

// Returns for how long the worker has waited for a processor since the first call with this `since`. Returns nothing at
// that first call.
std::optional<std::chrono::nanoseconds> ActorPool::Waited(Worker* worker, Clock::time_point since) const {
  const std::chrono::nanoseconds waited(options_.processor_wait_ns(worker->channel->process_id()));
  if (worker->silent_since == since) return waited - worker->waited_before;
  worker->silent_since = since;
  worker->waited_before = waited;
  return std::nullopt;
}

void ActorPool::Settle(Outcome outcome) {
  if (!outcome.failure.ok()) End(outcome.failure, outcome.failure.message());
  if (!outcome.ready.empty()) (void)batcher_.Submit(std::move(outcome.ready));  // Fails only after Close().
  for (auto& delivery : outcome.unrolls) delivery.first(Status(), &delivery.second);
  for (auto& delivery : outcome.faults) {
    delivery.first(Status(), delivery.second.worker, delivery.second.reason);
  }
}

Status ActorPool::Receive(Worker* worker, Actors* stepped) {
  std::vector<uint32_t> slots;
  const Status status = worker->channel->Receive(&slots);
  if (!status.ok() || slots.empty()) return status;
  for (uint32_t slot : slots) {
    const auto& actor = worker->actors[slot];
    if (!actor->stepping) {  // The consumer may be reading its row, and its unroll may be full.
      return Unavailable("the worker answered for slot " + std::to_string(slot) + " without a request");
    }
    actor->stepping = false;
    stepped->push_back(actor);
  }
  --worker->messages_under_way;
  worker->progress = Clock::now();
  Send({}, worker);
  return Status();
}

bool ActorPool::EveryoneStepped(Actors* stepped) {
  received_.insert(received_.end(), stepped->begin(), stepped->end());
  if (static_cast<int>(received_.size()) + NumParked() < options_.num_environments) return false;
  std::sort(received_.begin(), received_.end(),
            [](const auto& a, const auto& b) { return a->tag.actor_id < b->tag.actor_id; });
  stepped->swap(received_);
  received_.clear();
  return true;
}

void ActorPool::Advance(const Actors& stepped, Outcome* outcome) {
  statistics_.steps += stepped.size();
  Actors full, back;
  for (const auto& actor : stepped) {
    if (retired_.count(actor->tag.actor_id)) {
      actor->unroll.Clear();
      continue;
    }
    const Status status = actor->unroll.Append(actor->tag, actor->channel->slot(actor->slot), actor->decision);
    if (!status.ok()) {
      outcome->failure = status;
      return;
    }
    if (actor->unroll.full()) {
      full.push_back(actor);
    } else if (finished_.erase(actor->tag.actor_id) > 0) {
      back.push_back(actor);
    } else {
      outcome->ready.push_back(actor);
    }
  }
  if (full.empty() && back.empty()) return;
  // A group is accepted or parked as a whole. A divided group would make batches small from then on.
  if (options_.barrier != Barrier::kNone) {
    AcceptUnrolls(full, outcome);
    full.insert(full.end(), back.begin(), back.end());
    Park(std::move(full));
    UnparkEveryone(outcome);
  } else if (static_cast<int>(completed_.size()) < options_.completed_capacity) {
    AcceptUnrolls(full, outcome);
    outcome->ready.insert(outcome->ready.end(), full.begin(), full.end());
  } else {
    Park(std::move(full));
  }
  DeliverUnrolls(outcome);
}

void ActorPool::AcceptUnrolls(const Actors& actors, Outcome* outcome) {
  for (const auto& actor : actors) {
    Unroll full;
    const Status status = actor->unroll.TakeFull(actor->tag, actor->channel->slot(actor->slot), actor->decision, &full);
    if (!status.ok()) {
      outcome->failure = status;
      return;
    }
    completed_.push_back(std::move(full));
  }
}

void ActorPool::Park(Actors actors) {
  if (parked_.empty()) parked_since_ = Clock::now();
  parked_.push_back(std::move(actors));
}

ActorPool::Actors ActorPool::Unpark() {
  Actors actors = std::move(parked_.front());
  parked_.pop_front();
  if (parked_.empty()) statistics_.blocked_ns += Nanoseconds(Clock::now() - parked_since_);
  return actors;
}

int ActorPool::NumParked() const {
  size_t parked = 0;
  for (const Actors& group : parked_) parked += group.size();
  return parked;
}

void ActorPool::UnparkEveryone(Outcome* outcome) {
  if (releases_ == 0 || NumParked() < options_.num_environments) return;
  --releases_;
  while (!parked_.empty()) {
    const Actors actors = Unpark();
    outcome->ready.insert(outcome->ready.end(), actors.begin(), actors.end());
  }
}

void ActorPool::DeliverUnrolls(Outcome* outcome) {
  while (!unroll_waiters_.empty() && !completed_.empty()) {
    outcome->unrolls.emplace_back(std::move(unroll_waiters_.front()), std::move(completed_.front()));
    unroll_waiters_.pop_front();
    completed_.pop_front();
    while (options_.barrier == Barrier::kNone && !parked_.empty() &&
           static_cast<int>(completed_.size()) < options_.completed_capacity) {
      const Actors actors = Unpark();
      AcceptUnrolls(actors, outcome);
      outcome->ready.insert(outcome->ready.end(), actors.begin(), actors.end());
    }
  }
}

void ActorPool::Detach(int worker, const std::string& reason, Outcome* outcome) {
  Worker& entry = workers_[worker];
  for (const auto& actor : entry.actors) actor->alive = false;
  auto drop_dead = [](Actors* actors) {
    actors->erase(std::remove_if(actors->begin(), actors->end(), [](const auto& actor) { return !actor->alive; }),
                  actors->end());
  };
  drop_dead(&received_);
  const bool were_parked = !parked_.empty();
  if (options_.barrier != Barrier::kNone) {
    for (const Actors& group : parked_) {
      for (const auto& actor : group) {
        if (!actor->alive) finished_.insert(actor->tag.actor_id);
      }
    }
  }
  for (Actors& group : parked_) drop_dead(&group);
  parked_.erase(std::remove_if(parked_.begin(), parked_.end(), [](const Actors& group) { return group.empty(); }),
                parked_.end());
  if (were_parked && parked_.empty()) statistics_.blocked_ns += Nanoseconds(Clock::now() - parked_since_);
  statistics_.stepping_ns += entry.channel->stepping_ns();
  listener_.Remove(entry.channel->socket());
  entry = Worker();
  Fault fault{worker, reason};
  if (fault_waiters_.empty()) {
    faults_.push_back(fault);
  } else {
    outcome->faults.emplace_back(std::move(fault_waiters_.front()), fault);
    fault_waiters_.pop_front();
  }
}

}  // namespace scalable_agents
