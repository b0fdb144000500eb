// A replay of sequences, prioritised or uniform: the C++ core, without TensorFlow.
#ifndef SCALABLE_AGENTS_REPLAY_CC_SEQUENCE_REPLAY_H_
#define SCALABLE_AGENTS_REPLAY_CC_SEQUENCE_REPLAY_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/cc/mutex.h"
#include "ops/cc/status.h"
#include "replay/cc/rate_limit.h"
#include "replay/cc/replay_file.h"
#include "replay/cc/row_store.h"
#include "replay/cc/stream_table.h"
#include "replay/cc/sum_tree.h"
#include "replay/cc/window_planner.h"

namespace scalable_agents {

struct ReplayOptions {
  std::vector<RowComponent> components;
  std::string contents;              // Describes rows and states. A file of a replay with other contents is refused.
  int done = 0;                      // Index of the component that says where an observation starts an episode.
  std::vector<int64_t> state_bytes;  // Of each field of a recurrent state.
  std::vector<int> state_offsets;    // Sequences keep the states before the rows with these offsets.
  SequenceGeometry geometry;         // Its history is that of the components.
  int64_t capacity = 1;              // In sequences.
  double priority_exponent = 0;      // alpha. 0: sequences are drawn uniformly, and need no priority.
  int64_t max_times_sampled = 0;     // A sequence leaves the replay when it has been drawn this often. 0: no limit.
  RateLimit rate_limit;
};

// A recurrent state: its fields one after the other.
using RecurrentState = std::shared_ptr<const std::vector<char>>;

// A sequence in the replay. It does not change, and exists as long as a reader holds it.
struct Sequence {
  int64_t key = 0;
  int64_t stream_id = 0;
  int64_t stream_row = 0;              // Number of row `first` in its stream; see Sample in sequence_replay.py.
  int64_t sampled_batches_before = 0;  // Batches that had been sampled when it was inserted.
  int64_t first = 0;                   // Rows first to first + geometry.num_rows() - 1 of the segment.
  RowRange rows;                       // The rows that exist.
  std::vector<RecurrentState> states;  // By state offset; null if there is none.

  // The number of rows at its start that do not exist, because the episode had not begun.
  int64_t padding() const { return rows.begin() > first ? rows.begin() - first : 0; }

  // Whether trained step `step`, which leads from row burn_in + step to the next one, exists.
  bool Trains(const SequenceGeometry& geometry, int step) const {
    return first + geometry.burn_in + step + 1 < rows.end();
  }
};

// A sequence that was drawn.
struct Sampled {
  std::shared_ptr<const Sequence> sequence;
  double probability = 0;  // The probability that a draw gives this sequence.
  int64_t age = 0;         // Batches sampled since it was inserted.
};

// The rows of an unroll, as actor/unroll.py describes it, for insertion.
struct NewUnroll {
  int64_t stream_id = 0, index = 0;
  int num_rows = 0;                 // T + 1.
  std::vector<StridedRows> rows;    // By component; of a stack, the newest frame.
  StridedRows starts_episode;       // One byte each.
  int64_t first_step = 0;           // Number of row 0, counted from the start of its episode, or of its stream with
                                    // cross_episodes.
  std::vector<StridedRows> states;  // By field. Row i has the recurrent state before row i - 1: like all of an agent's
                                    // outputs it comes one row after the observation that was acted on. Only the
                                    // states that WindowPlanner::WantsState names are read.
};

struct ReplayStatistics : StreamStatistics {
  int64_t size = 0;           // Sequences in the replay.
  int64_t inserted = 0;       // Sequences ever inserted.
  int64_t sampled = 0;        // Sequences ever sampled.
  int64_t stale_updates = 0;  // Priorities that came for sequences which had been dropped.
};

// Any thread may call any method. Bytes are copied without the lock of the replay; only two unrolls of the same stream
// wait for each other.
class SequenceReplay {
 public:
  explicit SequenceReplay(const ReplayOptions& options);

  // Says whether unrolls may be inserted now. Insert itself does not check it. kUnavailable: inserting must wait for
  // sampling.
  //
  // Inserting waits only while it is ahead and the largest batch that was asked for so far could be drawn. So inserting
  // and sampling never wait for each other. Proof: let Sample(n) be kUnavailable, with an n that it accepts, so
  // n <= LargestBatch(). It was asked for now. Either n sequences cannot be drawn, so the largest batch that was asked
  // for cannot either, and inserting may go on. Or sampling would be ahead: Lead(sampled + n) < -tolerance. Then
  // Lead(sampled) < n - tolerance <= tolerance, and inserting may go on. Each side gets its turn: a sample lowers the
  // lead, and `capacity` new sequences that have a priority suffice for any batch.
  Status MayInsert() const;

  // Says whether Sample(n) would succeed now. Returns its errors. Like Sample, it tells MayInsert that a batch of n was
  // asked for.
  Status MaySample(int64_t n);

  // Appends the rows of an unroll to its stream. Row 0 repeats the last row of the unroll before, so it is only
  // appended with a segment's first unroll. If the index is not the next one, unrolls were lost, and a new segment
  // begins. Appends the new sequences to `inserted`. If priorities are used, they are not sampled before they have one.
  // If the stream's last unroll comes again, its sequences are appended to `inserted` again, unless they have left.
  // kResourceExhausted: there is not enough memory; the segment is dropped.
  Status Insert(const NewUnroll& unroll, std::vector<std::shared_ptr<const Sequence>>* inserted);

  // Draws n sequences, independently of each other and with replacement. The same contents and seed give the same ones.
  // kUnavailable: there are too few to draw from, or sampling must wait for inserting. None is drawn.
  // kInvalidArgument: n is larger than LargestBatch().
  Status Sample(int64_t n, uint64_t seed, std::vector<Sampled>* sampled);

  // Sets priorities. A sequence is then drawn in proportion to its priority to the power of priority_exponent. Keys
  // that the replay does not have any more are counted and ignored.
  // kInvalidArgument: a priority is negative or not finite. None is set.
  Status Update(const std::vector<int64_t>& keys, const std::vector<double>& priorities);

  // Copies row offset, offset + 1, ... of a sequence.
  void Read(const Sequence& sequence, int component, int64_t offset, int64_t num_rows, char* to,
            int64_t to_stride) const {
    sequence.rows.Read(layout_, component, sequence.first + offset, num_rows, to, to_stride);
  }

  // Copies the frames before row 0 of a sequence; see RowRange.
  void ReadEarlier(const Sequence& sequence, int component, char* to) const {
    sequence.rows.ReadEarlier(layout_, component, sequence.first, to);
  }

  // Copies a field of the state before the row with offset state_offsets[number]. Without a state it is zero.
  void ReadState(const Sequence& sequence, int number, int field, char* to) const;

  // Writes all sequences and their priorities to a file. The lock is held only while the list of sequences is copied.
  // Streams are not written: the rows that do not belong to a sequence yet are lost.
  // kUnavailable: the file cannot be written. The caller must delete what is there of it.
  Status Save(const std::string& path) const;

  // kInvalidArgument: `options` differ from this replay's.
  Status CheckSame(const ReplayOptions& options) const;

  // Restores what Save wrote, into an empty replay. If priorities are used, sequences that were saved before they had
  // one get the largest weight of the file; 1 if no sequence has any.
  // kUnavailable: the file cannot be read, or is damaged. kInvalidArgument: it is from a replay with other options.
  Status Restore(const std::string& path);

  ReplayStatistics GetStatistics() const;
  const ReplayOptions& options() const { return options_; }

 private:
  // What is kept of a stream since its start or its last gap.
  struct Segment {
    Segment(const RowLayout* layout, const std::shared_ptr<StoreCounters>& counters, const SequenceGeometry& geometry,
            int64_t first_step)
        : rows(layout, counters), planner(geometry, first_step) {}
    RowStream rows;
    WindowPlanner planner;
    std::deque<std::pair<int64_t, RecurrentState>> states;  // A row, and the recurrent state before it.
    int64_t stream_row = 0;                                 // Number of row 0 in the stream.
    std::vector<std::weak_ptr<const Sequence>> newest;      // The sequences that the last unroll completed.
  };
  using Stream = StreamTable<Segment>::Stream;

  // Appends the rows to the stream, and the sequences that they complete to `sequences`. If the unroll repeats the
  // stream's last one, appends that one's sequences to `repeated` instead.
  void Append(const NewUnroll& unroll, Stream* stream, std::vector<std::shared_ptr<Sequence>>* sequences,
              std::vector<std::shared_ptr<const Sequence>>* repeated) REQUIRES(stream->mutex);
  RecurrentState StateOf(const NewUnroll& unroll, int row) const;
  std::shared_ptr<Sequence> MakeSequence(const Window& window, const Stream& stream) const REQUIRES(stream.mutex);
  // Gives the sequences their keys and adds them. Returns the ones that they replace, to be deleted without the lock.
  std::vector<std::shared_ptr<const Sequence>> Add(const std::vector<std::shared_ptr<Sequence>>& sequences);
  int64_t Slot(int64_t key) const { return key % options_.capacity; }
  bool Has(int64_t key) const REQUIRES(mutex_);
  Status CheckSample(int64_t n) REQUIRES(mutex_);
  // The size of the largest batch that the rate limit and max_times_sampled ever allow.
  double LargestBatch() const;
  // Says whether n sequences can be drawn, and so fewer, too. Does not check whether sampling is ahead.
  Status CheckDraws(int64_t n) const REQUIRES(mutex_);
  // Sets the weight of a slot, and with it the draws that are left.
  void SetWeight(int64_t slot, double weight) REQUIRES(mutex_);
  // The oldest key that the replay may have.
  int64_t FirstKey() const REQUIRES(mutex_) { return std::max<int64_t>(next_key_ - options_.capacity, 0); }
  static FileSignature Signature(const ReplayOptions& options);

  const ReplayOptions options_;
  const RowLayout layout_;
  const std::shared_ptr<StoreCounters> counters_ = std::make_shared<StoreCounters>();
  StreamTable<Segment> streams_;  // A stream's time is num_unrolls_ at its last unroll.
  std::atomic<int64_t> num_unrolls_{0};

  mutable Mutex mutex_;
  // By slot, in a ring: the newest sequences. Null for those that have left.
  std::vector<std::shared_ptr<const Sequence>> sequences_ GUARDED_BY(mutex_);
  SumTree weights_ GUARDED_BY(mutex_);                     // By slot; 0 for sequences without a priority.
  std::vector<int64_t> times_sampled_ GUARDED_BY(mutex_);  // By slot. Empty without max_times_sampled.
  // With max_times_sampled: the draws that are possible before all sequences with a weight have left the replay.
  int64_t draws_left_ GUARDED_BY(mutex_) = 0;
  int64_t largest_asked_ GUARDED_BY(mutex_) = 0;  // Sequences of the largest batch that was asked for.
  int64_t next_key_ GUARDED_BY(mutex_) = 0;
  int64_t size_ GUARDED_BY(mutex_) = 0;  // Sequences in the replay.
  int64_t sampled_batches_ GUARDED_BY(mutex_) = 0;
  int64_t sampled_ GUARDED_BY(mutex_) = 0;
  int64_t stale_updates_ GUARDED_BY(mutex_) = 0;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_REPLAY_CC_SEQUENCE_REPLAY_H_
