// An actor pool with fake workers and a deterministic policy, and a checker of the rules that unrolls must follow.
#ifndef SCALABLE_AGENTS_TESTS_ACTOR_CC_POOL_TESTING_H_
#define SCALABLE_AGENTS_TESTS_ACTOR_CC_POOL_TESTING_H_

#include <gtest/gtest.h>
#include <stddef.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actor/cc/actor_pool.h"
#include "tests/actor/cc/fake_worker.h"
#include "tests/actor/cc/mailbox.h"

namespace scalable_agents {

// The components of these tests' unrolls, in order, and their bytes per row.
enum {
  kLevel,
  kActor,
  kStreamId,
  kIndex,
  kCount,
  kTag,
  kActed,
  kIncarnation,
  kStep,
  kReward,
  kDone,
  kAction,
  kScore,
  kVersion,
  kComponents
};
constexpr int64_t kRowBytes[kComponents] = {4, 4, 8, 8, 8, 4, 4, 8, 8, 4, 1, 4, 8, 8};

inline int32_t LevelOf(int actor_id) { return 100 + actor_id % 3; }

// The tests' policy. Its state counts the rows from the last done row on, including that row.
inline int32_t ActionFor(int32_t actor_id, const Row& row) {
  return (31 * actor_id + 7 * row.incarnation + 3 * row.step) % 1000 + 1;
}
inline int64_t CountAfter(int64_t count_before, const Row& row) { return row.done ? 1 : count_before + 1; }
inline int64_t ExpectedCountBefore(int64_t step) { return step == 0 ? 0 : (step - 1) % kEpisodeSteps + 1; }

struct Delivered {
  Status status;
  ActorPool::ActorBatch batch;
};

struct DeliveredUnroll {
  Status status;
  Unroll unroll;

  template <typename T>
  T Get(int component, int row = 0) const {
    T value;
    memcpy(&value, unroll[component].data + row * sizeof(T), sizeof(T));
    return value;
  }
};

struct DeliveredFault {
  Status status;
  int worker;
  std::string reason;
};

// A pool for rows of fake workers, with mailboxes for its callbacks.
class TestPool {
 public:
  TestPool(int num_environments, int unroll_length, int completed_capacity = 1, Barrier barrier = Barrier::kNone,
           int64_t environment_timeout_ms = 60000, int64_t long_work_factor = 1, bool dynamic_batching = true)
      : unroll_length_(unroll_length) {
    ActorPool::Options options;
    options.num_environments = num_environments;
    options.layout.unroll_length = unroll_length;
    options.slot_bytes = sizeof(Row);
    options.layout.environment_fields = {{offsetof(Row, acted), 4},
                                         {offsetof(Row, incarnation), 8},
                                         {offsetof(Row, step), 8},
                                         {offsetof(Row, reward), 4},
                                         {offsetof(Row, done), 1}};
    options.layout.agent_output_bytes = {4, 8};
    options.layout.agent_state_bytes = {8, 4};
    options.completed_capacity = completed_capacity;
    options.barrier = barrier;
    options.dynamic_batching = dynamic_batching;
    options.environment_timeout_ms = environment_timeout_ms;
    options.long_work_factor = long_work_factor;
    options.processor_wait_ns = [this](int64_t) {
      if (starved_ticks > 0) {
        --starved_ticks;
        waited_ns += 10'000'000'000;
      }
      return waited_ns.load();
    };
    pool_ = std::make_unique<ActorPool>(options, [this, unroll_length](int component) {
      if (out_of_memory) return Buffer();
      const int rows = component > kTag ? unroll_length + 1 : 1;
      auto memory = std::make_shared<std::vector<char>>(rows * kRowBytes[component], '\x7f');
      return Buffer{memory->data(), memory};
    });
  }

  ~TestPool() {
    pool_->Close("");
    for (std::thread& thread : threads_) thread.join();
    pool_.reset();
  }

  ActorPool* operator->() { return pool_.get(); }
  int unroll_length() const { return unroll_length_; }

  // Slot i becomes actor first_actor + i. The slots take the groups in turn.
  Status Attach(int number, const FakeWorker& worker, int first_actor, int groups = 1) {
    std::vector<ActorPool::Environment> environments;
    for (int i = 0; i < worker.slots(); ++i) {
      environments.push_back({first_actor + i, LevelOf(first_actor + i), i % groups});
    }
    return pool_->Attach(number, worker.pools_socket(), worker.memory(), environments);
  }

  void AskForBatch() {
    pool_->NextBatch([this](const Status& status, const auto& batch) { batches.Put({status, batch}); });
  }
  void AskForUnroll() {
    pool_->NextUnroll([this](const Status& status, Unroll* unroll) {
      unrolls.Put({status, unroll == nullptr ? Unroll() : std::move(*unroll)});
    });
  }
  void AskForFault() {
    pool_->NextFault(
        [this](const Status& status, int worker, const std::string& reason) { faults.Put({status, worker, reason}); });
  }

  Delivered AwaitBatch() {
    AskForBatch();
    return batches.Wait().value_or(Delivered{Unavailable("no batch came"), {}});
  }
  DeliveredUnroll AwaitUnroll() {
    AskForUnroll();
    return unrolls.Wait().value_or(DeliveredUnroll{Unavailable("no unroll came"), {}});
  }
  DeliveredFault AwaitFault() {
    AskForFault();
    return faults.Wait().value_or(DeliveredFault{Unavailable("no fault came"), -1, ""});
  }

  // Completes a batch with the next version of the policy. The version is the second output, too.
  Status Complete(const ActorPool::ActorBatch& batch) {
    const int64_t version = ++version_;
    std::vector<int32_t> actions, tags;
    std::vector<double> scores(batch.items.size(), version);
    std::vector<int64_t> counts;
    for (const auto& actor : batch.items) {
      const Row& row = *reinterpret_cast<const Row*>(actor->channel->slot(actor->slot));
      int64_t count;
      memcpy(&count, actor->decision.state.data(), sizeof(count));
      EXPECT_EQ(count, ExpectedCountBefore(row.step));
      actions.push_back(ActionFor(actor->tag.actor_id, row));
      counts.push_back(CountAfter(count, row));
      tags.push_back(actor->tag.actor_id + 1);
    }
    auto bytes = [](const auto& values) { return reinterpret_cast<const char*>(values.data()); };
    return pool_->CompleteBatch(batch.id, version, {bytes(actions), bytes(scores)}, {bytes(counts), bytes(tags)});
  }

  // Completes one batch of inference. Returns the ids of its actors.
  std::vector<int> Act() {
    const Delivered delivered = AwaitBatch();
    EXPECT_TRUE(delivered.status.ok()) << delivered.status.message();
    std::vector<int> actors;
    for (const auto& actor : delivered.batch.items) actors.push_back(actor->tag.actor_id);
    if (delivered.status.ok()) {
      EXPECT_TRUE(Complete(delivered.batch).ok());
    }
    return actors;
  }

  // Starts a thread that acts until the pool is closed.
  void ActAllTheTime() {
    threads_.emplace_back([this] {
      Status status;
      while (status.ok()) {
        Mailbox<Delivered> mine;
        pool_->NextBatch([&mine](const Status& status, const auto& batch) { mine.Put({status, batch}); });
        const std::optional<Delivered> delivered = mine.Wait();
        status = delivered ? delivered->status : Unavailable("no batch came");
        if (status.ok()) status = Complete(delivered->batch);
      }
      EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.message();
    });
  }

  std::atomic<bool> out_of_memory{false};  // Makes all allocations fail.
  std::atomic<int> starved_ticks{0};       // So often the pool will see that workers waited 10 s for a processor.
  std::atomic<int64_t> waited_ns{0};       // For so long they have waited.
  Mailbox<Delivered> batches;
  Mailbox<DeliveredUnroll> unrolls;
  Mailbox<DeliveredFault> faults;

 private:
  const int unroll_length_;
  std::unique_ptr<ActorPool> pool_;
  std::atomic<int64_t> version_{0};
  std::vector<std::thread> threads_;
};

// Checks unrolls against the rules of actor/unroll.py, and each one against its actor's unroll before it.
class Checker {
 public:
  explicit Checker(int unroll_length) : unroll_length_(unroll_length) {}

  void Check(const DeliveredUnroll& unroll) {
    ASSERT_TRUE(unroll.status.ok()) << unroll.status.message();
    const int32_t actor = unroll.Get<int32_t>(kActor);
    const int64_t incarnation = unroll.Get<int64_t>(kIncarnation);
    const int64_t first_step = unroll.Get<int64_t>(kStep);
    // The first unroll of an incarnation starts at step 0. Otherwise row 0 repeats the last row of the unroll before.
    const auto before = last_.find(actor);
    const bool same_incarnation = before != last_.end() && before->second.incarnation == incarnation;
    EXPECT_EQ(first_step, same_incarnation ? before->second.step : 0);
    EXPECT_EQ(unroll.Get<int64_t>(kIndex) * unroll_length_, first_step);
    const int64_t stream_id = unroll.Get<int64_t>(kStreamId);
    if (same_incarnation) {
      EXPECT_EQ(stream_id, before->second.stream_id);
    } else {
      EXPECT_TRUE(stream_ids_.insert(stream_id).second) << "another stream has id " << stream_id << ", too";
    }
    EXPECT_EQ(unroll.Get<int32_t>(kLevel), LevelOf(actor));
    EXPECT_EQ(unroll.Get<int64_t>(kCount), ExpectedCountBefore(first_step));
    EXPECT_EQ(unroll.Get<int32_t>(kTag), first_step == 0 ? 0 : actor + 1);
    for (int t = 0; t <= unroll_length_; ++t) CheckRow(unroll, t, actor, incarnation, first_step + t);
    EXPECT_EQ(unroll.Get<int64_t>(kVersion, 0), same_incarnation ? before->second.version : 0);
    last_[actor] = {incarnation, stream_id, first_step + unroll_length_, unroll.Get<int64_t>(kVersion, unroll_length_)};
    ++unrolls_[actor];
  }

  size_t actors() const { return unrolls_.size(); }
  int fewest_unrolls() const {
    int fewest = 1 << 30;
    for (const auto& actor : unrolls_) fewest = std::min(fewest, actor.second);
    return fewest;
  }

 private:
  struct Last {
    int64_t incarnation, stream_id, step, version;
  };

  void CheckRow(const DeliveredUnroll& unroll, int t, int32_t actor, int64_t incarnation, int64_t step) {
    EXPECT_EQ(unroll.Get<int64_t>(kIncarnation, t), incarnation);
    ASSERT_EQ(unroll.Get<int64_t>(kStep, t), step);
    EXPECT_EQ(unroll.Get<uint8_t>(kDone, t), IsDone(step));
    const int32_t action = unroll.Get<int32_t>(kAction, t);
    const int64_t version = unroll.Get<int64_t>(kVersion, t);
    EXPECT_EQ(unroll.Get<double>(kScore, t), version);
    if (step == 0) {
      EXPECT_EQ(action, 0);
      EXPECT_EQ(version, 0);
      EXPECT_EQ(unroll.Get<float>(kReward, t), 0);
    } else {
      EXPECT_EQ(action, ActionFor(actor, Row{0, 0, incarnation, step - 1, 0, 0}));
      EXPECT_EQ(unroll.Get<int32_t>(kActed, t), action);
      EXPECT_GT(version, t == 0 ? 0 : unroll.Get<int64_t>(kVersion, t - 1));
      EXPECT_EQ(unroll.Get<float>(kReward, t), RewardOf(incarnation, step));
    }
  }

  const int unroll_length_;
  std::map<int32_t, Last> last_;
  std::set<int64_t> stream_ids_;
  std::map<int32_t, int> unrolls_;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_TESTS_ACTOR_CC_POOL_TESTING_H_
