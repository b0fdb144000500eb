#include "actor/cc/actor_pool.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <system_error>
#include <utility>

namespace scalable_agents {
namespace {

constexpr uint64_t kWake = ~uint64_t{0};     // The eventfd's key; workers have their number.
constexpr int kTimeoutCheckMs = 100;
constexpr int kFirstStateComponent = 2;      // After level id and actor id.

int64_t Nanoseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

// More than there can ever be memory for, where a sum is beyond size_t.
size_t Sum(const std::vector<int64_t>& bytes) {
  size_t sum = 0;
  for (int64_t b : bytes) {
    if (__builtin_add_overflow(sum, static_cast<size_t>(b), &sum)) return ~size_t{0};
  }
  return sum;
}

BatcherOptions InferenceBatches(const ActorPool::Options& options) {
  BatcherOptions batches;
  batches.maximum_batch_size = std::max(options.num_environments, 1);
  return batches;
}

}  // namespace

ActorPool::ActorPool(const Options& options, Allocate allocate)
    : options_(options),
      allocate_(std::move(allocate)),
      first_environment_component_(kFirstStateComponent + options.agent_state_bytes.size()),
      first_output_component_(first_environment_component_ + options.environment_fields.size()),
      version_component_(first_output_component_ + options.agent_output_bytes.size()),
      batcher_(InferenceBatches(options)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kWake;
  if (epoll_ < 0 || wake_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) != 0) {
    deaf_ = std::string("ActorPool cannot listen to workers: ") + strerror(errno);
    return;
  }
  try {
    listener_ = std::thread([this] { Listen(); });
  } catch (const std::system_error& error) {
    deaf_ = std::string("ActorPool cannot start a thread: ") + error.what();
  }
}

ActorPool::~ActorPool() {
  Close("");
  if (listener_.joinable()) listener_.join();
  if (wake_ >= 0) close(wake_);
  if (epoll_ >= 0) close(epoll_);
}

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
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return closed_status_;
  if (!deaf_.empty()) return Unavailable(deaf_);
  if (worker < 0) return InvalidArgument("worker: want a number >= 0, got " + std::to_string(worker));
  if (static_cast<size_t>(worker) >= workers_.size()) workers_.resize(worker + 1);
  Worker& entry = workers_[worker];
  if (entry.channel) return InvalidArgument("worker " + std::to_string(worker) + " is attached already");
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = worker;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, channel->socket(), &event) != 0) {
    return Unavailable("worker " + std::to_string(worker) + " cannot be listened to: " + strerror(errno));
  }
  entry.channel = channel;
  entry.actors = std::move(actors);
  entry.messages_under_way = groups.size();
  entry.progress = Clock::now();
  // A worker that is gone already is noticed by the listening thread.
  for (const auto& group : groups) (void)channel->Send(group.second);
  return Status();
}

ActorPool::Actors ActorPool::MakeActors(int worker, const std::shared_ptr<EnvironmentChannel>& channel,
                                        const std::vector<Environment>& environments) const {
  Actors actors;
  for (size_t slot = 0; slot < environments.size(); ++slot) {
    auto actor = std::make_shared<Actor>();
    actor->actor_id = environments[slot].actor_id;
    actor->level_id = environments[slot].level_id;
    actor->worker = worker;
    actor->slot = slot;
    actor->group = environments[slot].group;
    actor->channel = channel;
    actor->stepping = true;
    actor->output.resize(Sum(options_.agent_output_bytes));
    actor->state.resize(Sum(options_.agent_state_bytes));
    actors.push_back(actor);
  }
  return actors;
}

Status ActorPool::CompleteBatch(int64_t id, int64_t version, const std::vector<const char*>& outputs,
                                const std::vector<const char*>& states) {
  const Actors actors = batcher_.Take(id);
  std::lock_guard<std::mutex> lock(mutex_);
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
    copy_row(i, outputs, options_.agent_output_bytes, actor.output.data());
    copy_row(i, states, options_.agent_state_bytes, actor.state.data());
    actor.version = version;
    memcpy(actor.channel->slot(actor.slot) + options_.action_offset, actor.output.data(), sizeof(int32_t));
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
  for (const auto& message : messages) {
    Worker& worker = workers_[message.first.first];
    if (worker.messages_under_way++ == 0) worker.progress = Clock::now();
    (void)worker.channel->Send(message.second);  // A worker that is gone is noticed by the listening thread.
  }
}

void ActorPool::NextUnroll(OnUnroll on_unroll) {
  Outcome outcome;
  std::unique_lock<std::mutex> lock(mutex_);
  if (closed_) {
    const Status closed = closed_status_;
    lock.unlock();
    on_unroll(closed, nullptr);
    return;
  }
  unroll_waiters_.push_back(std::move(on_unroll));
  DeliverUnrolls(&outcome);
  lock.unlock();
  Settle(std::move(outcome));
}

void ActorPool::NextFault(OnFault on_fault) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (closed_ || !faults_.empty()) {
    const Status status = closed_ ? closed_status_ : Status();
    Fault fault{-1, ""};
    if (!closed_) {
      fault = faults_.front();
      faults_.pop_front();
    }
    lock.unlock();
    on_fault(status, fault.worker, fault.reason);
    return;
  }
  fault_waiters_.push_back(std::move(on_fault));
}

void ActorPool::Release() {
  Outcome outcome;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++releases_;
    UnparkEveryone(&outcome);
  }
  Settle(std::move(outcome));
}

Status ActorPool::Retire(int32_t actor_id) {
  if (options_.synchronous) return InvalidArgument("an environment of a synchronous pool cannot rest");
  std::lock_guard<std::mutex> lock(mutex_);
  retired_.insert(actor_id);
  return Status();
}

ActorPool::Statistics ActorPool::GetStatistics() const {
  std::lock_guard<std::mutex> lock(mutex_);
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
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    closed_ = true;
    closed_status_ = closed;
    unroll_waiters.swap(unroll_waiters_);
    fault_waiters.swap(fault_waiters_);
    for (Worker& worker : workers_) {
      if (worker.channel) statistics_.stepping_ns += worker.channel->stepping_ns();
      worker = Worker();  // Closes its copy of the socket. A worker leaves once Python has closed the other one.
    }
    while (!parked_.empty()) Unpark();  // Counts the time they waited.
    completed_.clear();
    received_.clear();
    const uint64_t one = 1;
    (void)!write(wake_, &one, sizeof(one));
  }
  batcher_.Close(cause);
  for (OnUnroll& on_unroll : unroll_waiters) on_unroll(closed, nullptr);
  for (OnFault& on_fault : fault_waiters) on_fault(closed, -1, "");
}

void ActorPool::Listen() {
  std::vector<epoll_event> events(1024);  // More than there are workers.
  auto read_messages = [&](int wait_ms) {
    const int count = epoll_wait(epoll_, events.data(), events.size(), wait_ms);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kWake) return false;
      ReadMessage(events[i].data.u64);
    }
    return true;
  };
  Clock::time_point next_check = Clock::now();
  while (read_messages(kTimeoutCheckMs)) {
    const Clock::time_point now = Clock::now();
    if (now < next_check) continue;
    next_check = now + std::chrono::milliseconds(kTimeoutCheckMs);
    // This process may have been stopped a moment ago (Ctrl-Z, then fg): what came meanwhile counts before time-outs.
    if (!read_messages(0)) return;
    CheckTimeouts(now);
  }
}

void ActorPool::ReadMessage(int worker) {
  Outcome outcome;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    Worker& entry = workers_[worker];
    if (!entry.channel) return;
    Actors stepped;
    const Status status = Receive(&entry, &stepped);
    if (!status.ok()) {
      Detach(worker, status.message(), &outcome);
    } else if (!stepped.empty() && (!options_.synchronous || EveryoneStepped(&stepped))) {
      Advance(stepped, &outcome);
    }
  }
  Settle(std::move(outcome));
}

void ActorPool::CheckTimeouts(Clock::time_point now) {
  Outcome outcome;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto limit = std::chrono::milliseconds(options_.environment_timeout_ms);
    for (size_t worker = 0; worker < workers_.size(); ++worker) {
      Worker& entry = workers_[worker];
      if (!entry.channel || entry.messages_under_way == 0) continue;
      const bool at_long_work = entry.channel->at_long_work();
      if (at_long_work) entry.long_work = now;
      const int64_t factor = at_long_work ? options_.long_work_factor : 1;
      const Clock::time_point since = at_long_work ? entry.progress : std::max(entry.progress, entry.long_work);
      if (now - since <= limit * factor) continue;
      std::ostringstream reason;
      reason << "no answer for " << options_.environment_timeout_ms * factor / 1000.0 << " s (";
      if (at_long_work) reason << "long work, " << factor << " times ";
      reason << "--environment_timeout_seconds)";
      Detach(worker, reason.str(), &outcome);
    }
  }
  Settle(std::move(outcome));
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
    if (!actor->stepping) {  // Its row may be being read, and its unroll may be full.
      return Unavailable("the worker answered for slot " + std::to_string(slot) + ", which was not asked");
    }
    actor->stepping = false;
    stepped->push_back(actor);
  }
  --worker->messages_under_way;
  worker->progress = Clock::now();
  return Status();
}

bool ActorPool::EveryoneStepped(Actors* stepped) {
  received_.insert(received_.end(), stepped->begin(), stepped->end());
  if (static_cast<int>(received_.size()) + NumParked() < options_.num_environments) return false;
  std::sort(received_.begin(), received_.end(), [](const auto& a, const auto& b) { return a->actor_id < b->actor_id; });
  stepped->swap(received_);
  received_.clear();
  return true;
}

void ActorPool::Advance(const Actors& stepped, Outcome* outcome) {
  statistics_.steps += stepped.size();
  Actors full;
  for (const auto& actor : stepped) {
    if (retired_.count(actor->actor_id)) {
      actor->unroll.clear();
    } else {
      (AppendRow(actor.get(), outcome) ? full : outcome->ready).push_back(actor);
    }
  }
  if (full.empty() || !outcome->failure.ok()) return;
  // A group is accepted or parked whole: one that comes apart would make small batches ever after.
  if (options_.synchronous) {
    AcceptUnrolls(full, outcome);
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

bool ActorPool::AppendRow(Actor* actor, Outcome* outcome) {
  if (actor->unroll.empty() && !StartUnroll(actor, outcome)) return false;
  Unroll& unroll = actor->unroll;
  const char* slot = actor->channel->slot(actor->slot);
  const int row = actor->row++;
  int component = first_environment_component_;
  for (const EnvironmentField& field : options_.environment_fields) {
    memcpy(unroll[component++].data + row * field.bytes, slot + field.offset, field.bytes);
  }
  const char* output = actor->output.data();
  for (int64_t bytes : options_.agent_output_bytes) {
    memcpy(unroll[component++].data + row * bytes, output, bytes);
    output += bytes;
  }
  memcpy(unroll[component].data + row * sizeof(int64_t), &actor->version, sizeof(int64_t));
  return actor->row == options_.unroll_length + 1;
}

bool ActorPool::StartUnroll(Actor* actor, Outcome* outcome) {
  Unroll& unroll = actor->unroll;
  for (int component = 0; component <= version_component_; ++component) {
    const Status status = WithMemory([&] {
      unroll.push_back(allocate_(component));
      return unroll.back().owner ? Status() : ResourceExhausted("");
    });
    if (status.ok()) continue;
    unroll.clear();
    outcome->failure = ResourceExhausted("there is not enough memory for another unroll of " +
                                         std::to_string(options_.unroll_length) + " steps");
    return false;
  }
  memcpy(unroll[0].data, &actor->level_id, sizeof(int32_t));
  memcpy(unroll[1].data, &actor->actor_id, sizeof(int32_t));
  const char* state = actor->state.data();
  for (size_t field = 0; field < options_.agent_state_bytes.size(); ++field) {
    memcpy(unroll[kFirstStateComponent + field].data, state, options_.agent_state_bytes[field]);
    state += options_.agent_state_bytes[field];
  }
  actor->row = 0;
  return true;
}

void ActorPool::AcceptUnrolls(const Actors& actors, Outcome* outcome) {
  for (const auto& actor : actors) {
    Unroll full = std::move(actor->unroll);
    actor->unroll.clear();
    if (!StartUnroll(actor.get(), outcome)) return;
    auto repeat_last_row = [&](int component, int64_t bytes) {
      memcpy(actor->unroll[component].data, full[component].data + options_.unroll_length * bytes, bytes);
    };
    int component = first_environment_component_;
    for (const EnvironmentField& field : options_.environment_fields) repeat_last_row(component++, field.bytes);
    for (int64_t bytes : options_.agent_output_bytes) repeat_last_row(component++, bytes);
    repeat_last_row(component, sizeof(int64_t));
    actor->row = 1;
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
    while (!options_.synchronous && !parked_.empty() &&
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
  for (Actors& group : parked_) drop_dead(&group);
  parked_.erase(std::remove_if(parked_.begin(), parked_.end(), [](const Actors& group) { return group.empty(); }),
                parked_.end());
  if (were_parked && parked_.empty()) statistics_.blocked_ns += Nanoseconds(Clock::now() - parked_since_);
  statistics_.stepping_ns += entry.channel->stepping_ns();
  epoll_ctl(epoll_, EPOLL_CTL_DEL, entry.channel->socket(), nullptr);
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
