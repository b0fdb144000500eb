// The streams whose unrolls a replay gets. actor/unroll.py says what a stream is.
#ifndef SCALABLE_AGENTS_REPLAY_CC_STREAM_TABLE_H_
#define SCALABLE_AGENTS_REPLAY_CC_STREAM_TABLE_H_

#include <cstdint>
#include <iterator>
#include <list>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/cc/mutex.h"

namespace scalable_agents {

// How an unroll continues its stream.
enum class Continuation {
  kNext,      // It follows the last one.
  kFirst,     // It is the first one of a new segment of the stream.
  kRepeated,  // It came before, or is older than the last one.
};

// Counts of streams and of the rows that are stored of them.
struct StreamStatistics {
  int64_t gaps = 0;              // Times that unrolls of a stream were missing.
  int64_t repeated_unrolls = 0;  // Unrolls that were not the next one, but an older one. They are ignored.
  int64_t streams = 0;
  int64_t rows = 0;   // Rows in memory.
  int64_t bytes = 0;  // Memory of the rows.
};

// A stream is forgotten when this many unrolls of other streams have come since its last one.
constexpr int64_t kForgottenAfter = 100'000;

// Finds streams by their ids. A `Segment` is what is kept of a stream since its start or its last gap. Thread-safe.
template <typename Segment>
class StreamTable {
 public:
  struct Stream {
    explicit Stream(int64_t id) : id(id) {}
    const int64_t id;
    Mutex mutex;                                         // Held while an unroll is appended.
    std::unique_ptr<Segment> segment GUARDED_BY(mutex);  // Null: the next unroll begins a new one.
    int64_t next_index GUARDED_BY(mutex) = 0;            // Of the unroll that continues the segment.
    int64_t last_time = 0;                               // When it was last found. The table's lock guards it.
  };

  // Returns a stream. If it is new, it has no segment. `now` is any count that grows with time.
  std::shared_ptr<Stream> Find(int64_t id, int64_t now) {
    MutexLock lock(mutex_);
    const auto it = stream_by_id_.find(id);
    if (it != stream_by_id_.end()) {
      streams_.splice(streams_.end(), streams_, it->second);
    } else {
      streams_.push_back(std::make_shared<Stream>(id));
      stream_by_id_[id] = std::prev(streams_.end());
    }
    streams_.back()->last_time = now;
    return streams_.back();
  }

  // Says how unroll number `index` continues the segment. Unless it is repeated, the one after it is expected next. If
  // it is the first one of a new segment, the stream's segment is null, and the caller makes one.
  Continuation Admit(int64_t index, Stream* stream) REQUIRES(stream->mutex) {
    if (stream->segment && index < stream->next_index) {
      MutexLock lock(mutex_);
      ++statistics_.repeated_unrolls;
      return Continuation::kRepeated;
    }
    if (stream->segment && index > stream->next_index) {
      stream->segment.reset();
      MutexLock lock(mutex_);
      ++statistics_.gaps;
    }
    stream->next_index = index + 1;
    return stream->segment ? Continuation::kNext : Continuation::kFirst;
  }

  // Removes the streams that were last found before `time`. They are returned, to be deleted where no lock is held.
  std::vector<std::shared_ptr<Stream>> Forget(int64_t time) {
    std::vector<std::shared_ptr<Stream>> forgotten;
    MutexLock lock(mutex_);
    while (!streams_.empty() && streams_.front()->last_time < time) {
      stream_by_id_.erase(streams_.front()->id);
      forgotten.push_back(std::move(streams_.front()));
      streams_.pop_front();
    }
    return forgotten;
  }

  // Returns the counts of streams, without those of rows.
  StreamStatistics statistics() const {
    MutexLock lock(mutex_);
    StreamStatistics statistics = statistics_;
    statistics.streams = streams_.size();
    return statistics;
  }

 private:
  mutable Mutex mutex_;
  std::list<std::shared_ptr<Stream>> streams_ GUARDED_BY(mutex_);  // In the order in which they were last found.
  std::unordered_map<int64_t, typename std::list<std::shared_ptr<Stream>>::iterator> stream_by_id_ GUARDED_BY(mutex_);
  StreamStatistics statistics_ GUARDED_BY(mutex_);
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_REPLAY_CC_STREAM_TABLE_H_
