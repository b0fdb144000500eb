// Decides which rows of a segment form the sequences that R2D2 replays.
#ifndef SCALABLE_AGENTS_REPLAY_CC_WINDOW_PLANNER_H_
#define SCALABLE_AGENTS_REPLAY_CC_WINDOW_PLANNER_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace scalable_agents {

// The lengths of sequences, in agent steps. Kapturowski et al. 2019 (R2D2), section 2.3 and table 2.
struct SequenceGeometry {
  int burn_in = 0;              // Steps before the trained ones.
  int length = 1;               // Trained steps, m.
  int period = 1;               // Steps from the first trained step of a sequence to that of the next one.
  bool cross_episodes = false;  // Whether sequences go on across the ends of episodes.
  int history = 0;              // Rows before a sequence that are needed to stack frames.

  // Rows of a sequence: the trained steps need one more row, to bootstrap from.
  int num_rows() const { return burn_in + length + 1; }
};

// The place of a sequence in a segment. Its rows are first to first + num_rows() - 1, of which those outside of
// [begin, end) do not exist: they are padding before an episode's start or after its end.
struct Window {
  int64_t first = 0;
  int64_t begin = 0, end = 0;
};

// Plans the windows of one segment, row by row.
//
// The trained steps of an episode's sequences begin at its first row, and then every `period` rows. So the burn-in of
// the first sequence is padding. The last row of an episode is the one in which the next episode starts: it has the
// last reward. A sequence that contains it is padded at its end. The last sequence of an episode is the first one that
// reaches the end, because later ones would train only steps that this one trains as well.
//
// A sequence of a running episode is complete one row after its last row. The actor's value of the last row, from which
// first priorities are computed, comes with the action taken there, and so one row later (actor/unroll.py).
//
// A segment may begin in the middle of an episode, after rows were lost. Its first rows then only complete stacks of
// frames, and its first sequence has a whole burn-in. It begins where one would have begun without the loss, because
// the actor sends the recurrent states for these rows only. With cross_episodes all sequences have a whole burn-in, and
// the starts of episodes have no meaning: the first sequence begins at the first row of the stream.
class WindowPlanner {
 public:
  // first_step: the number of the segment's first row in its episode, or in its stream with cross_episodes.
  WindowPlanner(const SequenceGeometry& geometry, int64_t first_step) : geometry_(geometry), first_step_(first_step) {}

  // Adds the next row. `starts_episode` says whether a new episode starts with its observation; `done` also says that
  // no frame before it is stacked. A lost life may start an episode for the learner only. Appends the windows that are
  // complete with the row, in the order of time.
  void Add(bool starts_episode, bool done, std::vector<Window>* complete) {
    const int64_t row = num_rows_++;
    if (row == 0) stacked_from_ = geometry_.history;
    if (done) stacked_from_ = std::min(stacked_from_, row);
    if (row == 0) {
      Begin(row, starts_episode);
    } else if (starts_episode && !geometry_.cross_episodes) {
      while (trained_ < row && (is_first_ || row > trained_ - geometry_.period + geometry_.length)) {
        Emit(row + 1, complete);
      }
      Begin(row, true);
    } else if (row == trained_ + geometry_.length + 1) {
      Emit(row + 1, complete);
    }
  }

  // Whether a future window needs the recurrent state before `row`, if windows need the states before the rows with
  // these offsets from their first one. Must be called before a later row is added.
  bool WantsState(int64_t row, const std::vector<int>& offsets) const {
    for (int offset : offsets) {
      const int64_t after_next = row - offset - next_first();
      if (after_next >= 0 && after_next % geometry_.period == 0) return true;
    }
    return false;
  }

  // The first row of the next window, unless an episode begins before it. Rows before both, except for `history` rows,
  // are not needed any more.
  int64_t next_first() const { return trained_ - geometry_.burn_in; }

 private:
  // Starts planning an episode at `row`. The episode may be incomplete.
  void Begin(int64_t row, bool starts_episode) {
    begin_ = std::max(row, stacked_from_);
    const bool is_start = starts_episode && begin_ == row && !geometry_.cross_episodes;
    trained_ = row;
    if (!is_start) {
      const bool is_known = starts_episode && !geometry_.cross_episodes;
      const int64_t step = (is_known ? 0 : first_step_) + begin_ - row;  // The number of row begin_ in its episode.
      const int64_t late = (step + (geometry_.cross_episodes ? 0 : geometry_.burn_in)) % geometry_.period;
      trained_ = begin_ + (late > 0 ? geometry_.period - late : 0) + geometry_.burn_in;
    }
    is_first_ = true;
  }

  void Emit(int64_t end, std::vector<Window>* complete) {
    complete->push_back({next_first(), begin_, end});
    trained_ += geometry_.period;
    is_first_ = false;
  }

  const SequenceGeometry geometry_;
  const int64_t first_step_;
  int64_t num_rows_ = 0;
  int64_t stacked_from_ = 0;  // The first row all of whose stacked frames are known.
  int64_t begin_ = 0;         // The first row that windows of this episode may read.
  int64_t trained_ = 0;       // The first trained row of the next window.
  bool is_first_ = true;      // Whether the next window is the first one of its episode.
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_REPLAY_CC_WINDOW_PLANNER_H_
