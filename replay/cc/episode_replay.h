// A replay of whole episodes: the C++ core, without TensorFlow.
#ifndef SCALABLE_AGENTS_REPLAY_CC_EPISODE_REPLAY_H_
#define SCALABLE_AGENTS_REPLAY_CC_EPISODE_REPLAY_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ops/cc/mutex.h"
#include "ops/cc/status.h"
#include "replay/cc/replay_file.h"
#include "replay/cc/row_store.h"
#include "replay/cc/stream_table.h"

namespace scalable_agents {

struct EpisodeReplayOptions {
  std::vector<RowComponent> components;
  std::string contents;  // Describes rows. A file of a replay with other contents is refused.
  int done = 0;          // Index of the component that says where an observation starts an episode.
  // Of each component, whether it belongs to the observation. The row that ends an episode has the first observation of
  // the next one.
  std::vector<bool> is_observed;
  int unroll_length = 1;                                          // T, agent steps of a replayed unroll.
  int64_t capacity = 1;                                           // In agent steps.
  int64_t longest_episode = std::numeric_limits<int64_t>::max();  // In agent steps. Longer ones are not kept.
};

// An episode in the replay, from the row with its first observation to the one with its last reward, in which the next
// episode starts. An episode of n steps has n + 1 rows. It does not change, and exists as long as a reader holds it.
struct Episode {
  int64_t key = 0;
  int64_t stream_id = 0;
  int64_t stream_row = 0;  // Number of its first row in its stream; see Replayed in episode_replay.py.
  RowRange rows;
  int64_t num_steps() const { return std::max<int64_t>(rows.end() - rows.begin() - 1, 0); }
};

// The next unroll of a replayer: T steps of one episode or of several, one after the other.
struct ReplayedUnroll {
  struct Part {
    std::shared_ptr<const Episode> episode;
    int64_t first_step = 0;  // The part begins with this step of the episode.
    int64_t row = 0;         // The row of the unroll whose observation comes before that step.
  };
  std::vector<Part> parts;  // The last part may give only row T's observation. Empty if nothing is replayed.
  // Where the next unroll begins.
  int64_t next_key = -1, next_step = 0;
};

struct EpisodeReplayStatistics : StreamStatistics {
  int64_t steps = 0;              // Of the episodes in the replay.
  int64_t episodes = 0;           // In the replay.
  int64_t inserted_episodes = 0;  // Ever inserted.
  int64_t replayed_unrolls = 0;
  int64_t long_episodes = 0;  // Episodes that were dropped because they were too long.
};

// Any thread may call any method, and no method waits for another one's work: bytes are copied without the lock of the
// replay. Only two unrolls of the same stream wait for each other.
class EpisodeReplay {
 public:
  explicit EpisodeReplay(const EpisodeReplayOptions& options);

  // Appends the rows of an unroll to its stream. Row 0 repeats the last row of the unroll before, so it is only
  // appended with a segment's first unroll. If the index is not the next one, unrolls were lost, and a new segment
  // begins. Rows before a segment's first start of an episode are skipped. An episode that turns out to be longer than
  // longest_episode is dropped, and its further rows are skipped. The reset after a truncation, which is stored like a
  // step, does not count. Episodes get the keys 0, 1, 2, ... in the order in which they become complete. While all
  // episodes together have more steps than the capacity, the oldest one is dropped, but never the newest one.
  // `rows` are by component; of a stack, the newest frame.
  // kResourceExhausted: there is not enough memory; the segment is dropped.
  Status Insert(int64_t stream_id, int64_t index, int num_rows, const std::vector<StridedRows>& rows);

  // Gives each replayer its next unroll. Replayer i goes on with step steps[i] of episode keys[i]. If the episode has
  // no such step or is not in the replay any more, and whenever an episode ends, it goes on with the first step of an
  // episode that is drawn, uniformly and independently. With a negative key, it begins with any step of an episode that
  // is drawn: if all replayers began with first steps, then all of them would be at the same step for ever where all
  // episodes have the same length. The same contents and arguments give the same unrolls. Until the replay has
  // `minimum_size` steps, nothing is replayed. It may have fewer again when the newest episode is long and has replaced
  // several others.
  // kInvalidArgument: a step is negative.
  Status Next(const std::vector<int64_t>& keys, const std::vector<int64_t>& steps, uint64_t seed, int64_t minimum_size,
              std::vector<ReplayedUnroll>* unrolls);

  // Copies the T + 1 rows of an unroll. Where an episode ends, the components of the observation are those of the next
  // episode's first row; all others are those of the ended episode's last row. Row 0 is as it was stored, also if it
  // begins an episode. If nothing is replayed, rows are zeros.
  void Read(const ReplayedUnroll& unroll, int component, char* to, int64_t to_stride) const;

  // Copies the frames before row 0 of an unroll; see RowRange.
  void ReadEarlier(const ReplayedUnroll& unroll, int component, char* to) const;

  // Returns kInvalidArgument unless `options` are those of this replay.
  Status CheckSame(const EpisodeReplayOptions& options) const;

  // Writes all episodes to a file. The lock is held only while the list of episodes is copied. Streams are not written:
  // episodes that are not complete yet are lost.
  // kUnavailable: the file cannot be written. The caller must delete what is there of it.
  Status Save(const std::string& path) const;

  // Restores what Save wrote, with the same keys, into an empty replay. The length of unrolls may differ.
  // kUnavailable: the file cannot be read, or is damaged. kInvalidArgument: it is from a replay with other options.
  Status Restore(const std::string& path);

  EpisodeReplayStatistics GetStatistics() const;
  const EpisodeReplayOptions& options() const { return options_; }

 private:
  using Episodes = std::deque<std::shared_ptr<const Episode>>;

  // The rows of a stream from its first start of an episode on, or from the first one after the last gap.
  struct Segment {
    Segment(const RowLayout* layout, const std::shared_ptr<StoreCounters>& counters) : rows(layout, counters) {}
    RowStream rows;
    int64_t stream_row = 0;     // Number of row 0 in the stream.
    int64_t episode_begin = 0;  // The row with which the running episode began.
  };
  using Stream = StreamTable<Segment>::Stream;

  // Appends the rows to the stream, and the episodes that they complete to `episodes`.
  void Append(int64_t index, int num_rows, const std::vector<StridedRows>& rows, Stream* stream,
              std::vector<std::shared_ptr<Episode>>* episodes) REQUIRES(stream->mutex);
  // Gives the episodes their keys and adds them. Returns the ones that they replace, to be deleted without the lock.
  Episodes Add(const std::vector<std::shared_ptr<Episode>>& episodes);
  static FileSignature Signature(const EpisodeReplayOptions& options);

  const EpisodeReplayOptions options_;
  const RowLayout layout_;
  const std::shared_ptr<StoreCounters> counters_ = std::make_shared<StoreCounters>();
  StreamTable<Segment> streams_;  // A stream's time is num_unrolls_ at its last unroll.
  std::atomic<int64_t> num_unrolls_{0}, long_episodes_{0};

  mutable Mutex mutex_;
  Episodes episodes_ GUARDED_BY(mutex_);  // The oldest one first. Their keys are consecutive.
  int64_t next_key_ GUARDED_BY(mutex_) = 0;
  int64_t steps_ GUARDED_BY(mutex_) = 0;
  int64_t replayed_unrolls_ GUARDED_BY(mutex_) = 0;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_REPLAY_CC_EPISODE_REPLAY_H_
