// The lives whose unrolls a replay gets, and the stream of each one.
#ifndef SCALABLE_AGENTS_LEARNER_CC_LIFE_TABLE_H_
#define SCALABLE_AGENTS_LEARNER_CC_LIFE_TABLE_H_

#include <cstdint>
#include <iterator>
#include <list>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/cc/mutex.h"

namespace scalable_agents {

// How an unroll continues the stream of its life.
enum class Continuation {
  kNext,      // It follows the last one.
  kFirst,     // It is the first one of a new stream.
  kRepeated,  // It came before, or is older than the last one.
};

// Finds lives by their ids. A `Stream` is what one life has lived since it began, or since the last gap. Thread-safe.
template <typename Stream>
class LifeTable {
 public:
  struct Life {
    explicit Life(int64_t id) : id(id) {}
    const int64_t id;
    Mutex mutex;                                       // Held while an unroll is appended.
    std::unique_ptr<Stream> stream GUARDED_BY(mutex);  // Null: the next unroll begins a new one.
    int64_t next_index GUARDED_BY(mutex) = 0;          // Of the unroll that continues the stream.
    int64_t last_time = 0;                             // When it was found last. The table's lock guards it.
  };

  struct Counts {
    int64_t lives = 0;
    int64_t gaps = 0;              // Times that a stream was ended because unrolls were missing.
    int64_t repeated_unrolls = 0;  // Unrolls that were not the next one, but an older one.
  };

  // Returns a life. If it is new, it has no stream. `now` is any count that grows with time.
  std::shared_ptr<Life> Find(int64_t id, int64_t now) {
    MutexLock lock(mutex_);
    const auto it = life_by_id_.find(id);
    if (it != life_by_id_.end()) {
      lives_.splice(lives_.end(), lives_, it->second);
    } else {
      lives_.push_back(std::make_shared<Life>(id));
      life_by_id_[id] = std::prev(lives_.end());
    }
    lives_.back()->last_time = now;
    return lives_.back();
  }

  // Says how unroll number `index` continues the stream. Unless it is repeated, the one after it is expected next. If
  // it is the first one of a stream, there is no stream any more, and the caller makes one.
  Continuation Admit(int64_t index, Life* life) REQUIRES(life->mutex) {
    if (life->stream && index < life->next_index) {
      MutexLock lock(mutex_);
      ++counts_.repeated_unrolls;
      return Continuation::kRepeated;
    }
    if (life->stream && index > life->next_index) {
      life->stream.reset();
      MutexLock lock(mutex_);
      ++counts_.gaps;
    }
    life->next_index = index + 1;
    return life->stream ? Continuation::kNext : Continuation::kFirst;
  }

  // Removes the lives that were found last before `time`. They are returned, to be deleted where no lock is held.
  std::vector<std::shared_ptr<Life>> Forget(int64_t time) {
    std::vector<std::shared_ptr<Life>> forgotten;
    MutexLock lock(mutex_);
    while (!lives_.empty() && lives_.front()->last_time < time) {
      life_by_id_.erase(lives_.front()->id);
      forgotten.push_back(std::move(lives_.front()));
      lives_.pop_front();
    }
    return forgotten;
  }

  Counts counts() const {
    MutexLock lock(mutex_);
    Counts counts = counts_;
    counts.lives = lives_.size();
    return counts;
  }

 private:
  mutable Mutex mutex_;
  std::list<std::shared_ptr<Life>> lives_ GUARDED_BY(mutex_);  // The one that was found last is the last.
  std::unordered_map<int64_t, typename std::list<std::shared_ptr<Life>>::iterator> life_by_id_ GUARDED_BY(mutex_);
  Counts counts_ GUARDED_BY(mutex_);
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_LEARNER_CC_LIFE_TABLE_H_
