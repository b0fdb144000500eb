#include "replay/cc/sequence_replay.h"

#include <string.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "replay/cc/split_mix.h"

namespace scalable_agents {
namespace {

// A sequence of priority 0 would never be sampled again, and if all had this priority, none could be.
constexpr double kSmallestPriority = 1e-6;

// Powers of large priorities must not overflow, nor must the sum of all weights.
constexpr double kLargestWeight = 1e280;
constexpr double kSmallestWeight = 1e-280;  // A weight of 0 means that the sequence has no priority.

ReplayOptions WithHistory(ReplayOptions options, const RowLayout& layout) {
  options.geometry.history = layout.history();
  return options;
}

}  // namespace

SequenceReplay::SequenceReplay(const ReplayOptions& options)
    : options_(WithHistory(options, RowLayout(options.components, options.done))),
      layout_(options.components, options.done),
      sequences_(options.capacity),
      weights_(options.capacity),
      times_sampled_(options.max_times_sampled > 0 ? options.capacity : 0) {}

Status SequenceReplay::MayInsert() const {
  MutexLock lock(mutex_);
  if (options_.rate_limit.MayInsert(next_key_, sampled_) || !CheckDraws(largest_asked_).ok()) return Status();
  return Unavailable("inserting is ahead of sampling: " + std::to_string(next_key_) + " sequences were inserted, and " +
                     std::to_string(sampled_) + " sampled");
}

Status SequenceReplay::Insert(const NewUnroll& unroll, std::vector<std::shared_ptr<const Sequence>>* inserted) {
  const int64_t now = ++num_unrolls_;
  const std::shared_ptr<Stream> stream = streams_.Find(unroll.stream_id, now);
  MutexLock lock(stream->mutex);
  std::vector<std::shared_ptr<Sequence>> sequences;
  const Status status = WithMemory([&] {
    stream->mutex.AssertHeld();
    Append(unroll, stream.get(), &sequences, inserted);
    return Status();
  });
  if (!status.ok()) {
    stream->segment.reset();
    return ResourceExhausted("there is not enough memory for the rows of another unroll");
  }
  // Both are destroyed at the end, without the replay's lock. Forgotten streams belong to actors that have stopped.
  const auto replaced = Add(sequences);
  const auto forgotten = streams_.Forget(now - kForgottenAfter);
  inserted->insert(inserted->end(), sequences.begin(), sequences.end());
  return Status();
}

void SequenceReplay::Append(const NewUnroll& unroll, Stream* stream, std::vector<std::shared_ptr<Sequence>>* sequences,
                            std::vector<std::shared_ptr<const Sequence>>* repeated) {
  const Continuation continuation = streams_.Admit(unroll.index, stream);
  if (continuation == Continuation::kRepeated) {
    if (unroll.index + 1 < stream->next_index) return;
    for (const auto& newest : stream->segment->newest) {
      if (auto sequence = newest.lock()) repeated->push_back(std::move(sequence));
    }
    return;
  }
  const bool is_new = continuation == Continuation::kFirst;
  if (is_new) {
    stream->segment = std::make_unique<Segment>(&layout_, counters_, options_.geometry, unroll.first_step);
    stream->segment->stream_row = unroll.index * (unroll.num_rows - 1);
  }
  Segment& segment = *stream->segment;
  std::vector<Window> windows;
  for (int i = is_new ? 0 : 1; i < unroll.num_rows; ++i) {
    const int64_t row = segment.rows.num_rows();
    // The state is kept before the planner gets the row, because this row may complete a window that needs the state.
    if (row > 0 && segment.planner.WantsState(row - 1, options_.state_offsets)) {
      segment.states.emplace_back(row - 1, StateOf(unroll, i));
    }
    segment.rows.Append(unroll.rows, i);
    windows.clear();
    segment.planner.Add(*unroll.starts_episode.row(i), *unroll.rows[options_.done].row(i), &windows);
    for (const Window& window : windows) sequences->push_back(MakeSequence(window, *stream));
    const int64_t oldest = segment.planner.next_first();
    while (!segment.states.empty() && segment.states.front().first < oldest) segment.states.pop_front();
  }
  // After a gap the next window may be far, but a lost life may begin one in any row.
  const int64_t first = std::min(segment.planner.next_first(), segment.rows.num_rows());
  segment.rows.DropBefore(std::max<int64_t>(first - options_.geometry.history, 0));
  segment.newest.assign(sequences->begin(), sequences->end());
}

RecurrentState SequenceReplay::StateOf(const NewUnroll& unroll, int row) const {
  auto state = std::make_shared<std::vector<char>>();
  for (size_t field = 0; field < options_.state_bytes.size(); ++field) {
    const char* data = unroll.states[field].row(row);
    state->insert(state->end(), data, data + options_.state_bytes[field]);
  }
  return state;
}

std::shared_ptr<Sequence> SequenceReplay::MakeSequence(const Window& window, const Stream& stream) const {
  const Segment& segment = *stream.segment;
  auto sequence = std::make_shared<Sequence>();
  sequence->stream_id = stream.id;
  sequence->stream_row = segment.stream_row + window.first;
  sequence->first = window.first;
  sequence->rows = segment.rows.Range(std::max(window.begin, window.first), window.end, options_.geometry.history);
  for (int offset : options_.state_offsets) {
    const int64_t row = window.first + offset;
    RecurrentState found;
    for (const auto& [its_row, state] : segment.states) {
      // A row before the window is one of an earlier episode.
      if (its_row == row && row >= window.begin) found = state;
    }
    sequence->states.push_back(found);
  }
  return sequence;
}

std::vector<std::shared_ptr<const Sequence>> SequenceReplay::Add(
    const std::vector<std::shared_ptr<Sequence>>& sequences) {
  std::vector<std::shared_ptr<const Sequence>> replaced;
  MutexLock lock(mutex_);
  for (const std::shared_ptr<Sequence>& sequence : sequences) {
    sequence->key = next_key_++;
    sequence->sampled_batches_before = sampled_batches_;
    const int64_t slot = Slot(sequence->key);
    if (!sequences_[slot]) ++size_;
    replaced.push_back(std::move(sequences_[slot]));
    sequences_[slot] = sequence;
    SetWeight(slot, 0);
    if (!times_sampled_.empty()) times_sampled_[slot] = 0;
    if (options_.priority_exponent == 0) SetWeight(slot, 1);
  }
  return replaced;
}

void SequenceReplay::SetWeight(int64_t slot, double weight) {
  if (!times_sampled_.empty() && (weight > 0) != (weights_.Get(slot) > 0)) {
    const int64_t draws = options_.max_times_sampled - times_sampled_[slot];
    draws_left_ += weight > 0 ? draws : -draws;
  }
  weights_.Set(slot, weight);
}

bool SequenceReplay::Has(int64_t key) const {
  return key >= FirstKey() && key < next_key_ && sequences_[Slot(key)] != nullptr;
}

Status SequenceReplay::MaySample(int64_t n) {
  MutexLock lock(mutex_);
  return CheckSample(n);
}

double SequenceReplay::LargestBatch() const {
  const RateLimit& limit = options_.rate_limit;
  double largest = std::numeric_limits<double>::infinity();
  if (limit.samples_per_insert > 0) largest = 2 * limit.tolerance;
  if (options_.max_times_sampled == 0) return largest;
  return std::min(largest, static_cast<double>(options_.capacity) * static_cast<double>(options_.max_times_sampled));
}

Status SequenceReplay::CheckSample(int64_t n) {
  if (static_cast<double>(n) > LargestBatch()) {
    return InvalidArgument("batch_size: want at most " + std::to_string(static_cast<int64_t>(LargestBatch())) +
                           ", got " + std::to_string(n) +
                           ": the limits are twice the tolerance, and capacity * max_times_sampled");
  }
  largest_asked_ = std::max(largest_asked_, n);
  if (const Status status = CheckDraws(n); !status.ok()) return status;
  if (!options_.rate_limit.MaySample(n, next_key_, sampled_)) {
    return Unavailable("sampling is ahead of inserting: " + std::to_string(next_key_) +
                       " sequences were inserted, and " + std::to_string(sampled_) + " sampled");
  }
  return Status();
}

Status SequenceReplay::CheckDraws(int64_t n) const {
  if (!(weights_.total() > 0)) return Unavailable("the replay has no sequence to sample yet");
  if (const int64_t least = options_.rate_limit.minimum_size; next_key_ < least) {
    return Unavailable(std::to_string(next_key_) + " sequences were inserted, fewer than the minimum of " +
                       std::to_string(least));
  }
  if (options_.max_times_sampled > 0 && draws_left_ < n) {
    return Unavailable("the replay has too few sequences that may be sampled again");
  }
  return Status();
}

Status SequenceReplay::Sample(int64_t n, uint64_t seed, std::vector<Sampled>* sampled) {
  std::vector<std::shared_ptr<const Sequence>> left;  // To be deleted without the lock.
  MutexLock lock(mutex_);
  if (const Status status = CheckSample(n); !status.ok()) return status;
  for (int64_t i = 0; i < n; ++i) {
    const double total = weights_.total();
    const int64_t slot = weights_.Find(NextUniform(&seed) * total);
    std::shared_ptr<const Sequence>& sequence = sequences_[slot];
    sampled->push_back({sequence, weights_.Get(slot) / total, sampled_batches_ - sequence->sampled_batches_before});
    if (options_.max_times_sampled == 0) continue;
    --draws_left_;
    if (++times_sampled_[slot] == options_.max_times_sampled) {
      left.push_back(std::move(sequence));
      SetWeight(slot, 0);
    }
  }
  size_ -= static_cast<int64_t>(left.size());
  ++sampled_batches_;
  sampled_ += n;
  return Status();
}

Status SequenceReplay::Update(const std::vector<int64_t>& keys, const std::vector<double>& priorities) {
  if (keys.size() != priorities.size()) {
    return InvalidArgument("priorities: want " + std::to_string(keys.size()) + ", one for each key, got " +
                           std::to_string(priorities.size()));
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!std::isfinite(priorities[i]) || priorities[i] < 0) {
      return InvalidArgument("priority: want a finite number >= 0, got " + std::to_string(priorities[i]) + " for key " +
                             std::to_string(keys[i]));
    }
  }
  MutexLock lock(mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!Has(keys[i])) {
      ++stale_updates_;
      continue;
    }
    const double weight = std::pow(std::max(priorities[i], kSmallestPriority), options_.priority_exponent);
    SetWeight(Slot(keys[i]), std::clamp(weight, kSmallestWeight, kLargestWeight));
  }
  return Status();
}

void SequenceReplay::ReadState(const Sequence& sequence, int number, int field, char* to) const {
  const RecurrentState& state = sequence.states[number];
  if (!state) {
    memset(to, 0, options_.state_bytes[field]);
    return;
  }
  const char* from = state->data();
  for (int before = 0; before < field; ++before) from += options_.state_bytes[before];
  memcpy(to, from, options_.state_bytes[field]);
}

ReplayStatistics SequenceReplay::GetStatistics() const {
  ReplayStatistics statistics = {streams_.statistics()};
  statistics.rows = counters_->rows;
  statistics.bytes = counters_->slabs * layout_.slab_bytes();
  MutexLock lock(mutex_);
  statistics.size = size_;
  statistics.inserted = next_key_;
  statistics.sampled = sampled_;
  statistics.stale_updates = stale_updates_;
  return statistics;
}

}  // namespace scalable_agents
