#include "replay/cc/episode_replay.h"

#include <string.h>

#include <utility>

#include "replay/cc/split_mix.h"

namespace scalable_agents {

EpisodeReplay::EpisodeReplay(const EpisodeReplayOptions& options)
    : options_(options), layout_(options.components, options.done) {}

Status EpisodeReplay::Insert(int64_t stream_id, int64_t index, int num_rows, const std::vector<StridedRows>& rows) {
  const int64_t now = ++num_unrolls_;
  const std::shared_ptr<Stream> stream = streams_.Find(stream_id, now);
  MutexLock lock(stream->mutex);
  std::vector<std::shared_ptr<Episode>> episodes;
  const Status status = WithMemory([&] {
    stream->mutex.AssertHeld();
    Append(index, num_rows, rows, stream.get(), &episodes);
    return Status();
  });
  if (!status.ok()) {
    stream->segment.reset();
    return ResourceExhausted("there is not enough memory for the rows of another unroll");
  }
  // Both are destroyed at the end, without the replay's lock. Forgotten streams belong to actors that have stopped.
  const Episodes replaced = Add(episodes);
  const auto forgotten = streams_.Forget(now - kForgottenAfter);
  return Status();
}

void EpisodeReplay::Append(int64_t index, int num_rows, const std::vector<StridedRows>& rows, Stream* stream,
                           std::vector<std::shared_ptr<Episode>>* episodes) {
  const Continuation continuation = streams_.Admit(index, stream);
  if (continuation == Continuation::kRepeated) return;
  const bool is_first = continuation == Continuation::kFirst;
  if (is_first) stream->segment = std::make_unique<Segment>(&layout_, counters_);
  Segment* segment = stream->segment.get();
  for (int i = is_first ? 0 : 1; i < num_rows; ++i) {
    const bool starts_episode = *rows[options_.done].row(i);
    const int64_t row = segment->rows.num_rows();
    if (row == 0) {
      if (!starts_episode) continue;
      segment->stream_row = index * (num_rows - 1) + i;
    }
    if (!starts_episode && row - segment->episode_begin > options_.longest_episode) {
      ++long_episodes_;
      stream->segment = std::make_unique<Segment>(&layout_, counters_);  // It begins with the next episode.
      segment = stream->segment.get();
      continue;
    }
    segment->rows.Append(rows, i);
    if (row == 0 || !starts_episode) continue;
    auto episode = std::make_shared<Episode>();
    episode->stream_id = stream->id;
    episode->stream_row = segment->stream_row + segment->episode_begin;
    episode->rows = segment->rows.Range(segment->episode_begin, row + 1, 0);
    episodes->push_back(std::move(episode));
    segment->episode_begin = row;
  }
  segment->rows.DropBefore(segment->episode_begin);
}

EpisodeReplay::Episodes EpisodeReplay::Add(const std::vector<std::shared_ptr<Episode>>& episodes) {
  Episodes replaced;
  MutexLock lock(mutex_);
  for (const std::shared_ptr<Episode>& episode : episodes) {
    episode->key = next_key_++;
    steps_ += episode->num_steps();
    episodes_.push_back(episode);
    while (steps_ > options_.capacity && episodes_.size() > 1) {
      steps_ -= episodes_.front()->num_steps();
      replaced.push_back(std::move(episodes_.front()));
      episodes_.pop_front();
    }
  }
  return replaced;
}

Status EpisodeReplay::Next(const std::vector<int64_t>& keys, const std::vector<int64_t>& steps, uint64_t seed,
                           int64_t minimum_size, std::vector<ReplayedUnroll>* unrolls) {
  for (int64_t step : steps) {
    if (step < 0) return InvalidArgument("step: want at least 0, got " + std::to_string(step));
  }
  unrolls->assign(keys.size(), {});
  MutexLock lock(mutex_);
  if (episodes_.empty()) return Status();
  const int64_t first_key = episodes_.front()->key;
  const bool was_full = first_key > 0;  // Otherwise no episode would have been replaced.
  if (steps_ < minimum_size && !was_full) return Status();
  const auto draw = [&] {
    mutex_.AssertHeld();
    return episodes_[static_cast<size_t>(NextUniform(&seed) * episodes_.size())];
  };
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool goes_on =
        keys[i] >= first_key && keys[i] < next_key_ && steps[i] < episodes_[keys[i] - first_key]->num_steps();
    ReplayedUnroll& unroll = (*unrolls)[i];
    unroll.parts.push_back(goes_on ? ReplayedUnroll::Part{episodes_[keys[i] - first_key], steps[i], 0}
                                   : ReplayedUnroll::Part{draw(), 0, 0});
    if (keys[i] < 0) {
      ReplayedUnroll::Part& part = unroll.parts.back();
      part.first_step = static_cast<int64_t>(NextUniform(&seed) * part.episode->num_steps());
    }
    for (;;) {
      const ReplayedUnroll::Part& part = unroll.parts.back();
      const int64_t end = part.row + part.episode->num_steps() - part.first_step;  // The row that ends the episode.
      if (end > options_.unroll_length) break;
      unroll.parts.push_back({draw(), 0, end});
    }
    const ReplayedUnroll::Part& last = unroll.parts.back();
    unroll.next_key = last.episode->key;
    unroll.next_step = last.first_step + options_.unroll_length - last.row;
  }
  replayed_unrolls_ += keys.size();
  return Status();
}

void EpisodeReplay::Read(const ReplayedUnroll& unroll, int component, char* to, int64_t to_stride) const {
  const int64_t num_rows = options_.unroll_length + 1;
  if (unroll.parts.empty()) {
    for (int64_t row = 0; row < num_rows; ++row) {
      memset(to + row * to_stride, 0, layout_.components()[component].bytes);
    }
    return;
  }
  // In the row where a part begins, the observation is that of the part, and all else is that of the part before.
  const int64_t after = options_.is_observed[component] ? 0 : 1;
  for (size_t i = 0; i < unroll.parts.size(); ++i) {
    const ReplayedUnroll::Part& part = unroll.parts[i];
    const int64_t begin = i == 0 ? 0 : part.row + after;
    const int64_t end = i + 1 < unroll.parts.size() ? unroll.parts[i + 1].row + after : num_rows;
    const RowRange& rows = part.episode->rows;
    rows.Read(layout_, component, rows.begin() + part.first_step + begin - part.row, end - begin,
              to + begin * to_stride, to_stride);
  }
}

void EpisodeReplay::ReadEarlier(const ReplayedUnroll& unroll, int component, char* to) const {
  if (unroll.parts.empty()) {
    const RowComponent& described = layout_.components()[component];
    memset(to, 0, (described.stack - 1) * described.bytes);
    return;
  }
  const ReplayedUnroll::Part& part = unroll.parts[0];
  const RowRange& rows = part.episode->rows;
  rows.ReadEarlier(layout_, component, rows.begin() + part.first_step, to);
}

EpisodeReplayStatistics EpisodeReplay::GetStatistics() const {
  EpisodeReplayStatistics statistics = {streams_.statistics()};
  statistics.rows = counters_->rows;
  statistics.bytes = counters_->slabs * layout_.slab_bytes();
  statistics.long_episodes = long_episodes_;
  MutexLock lock(mutex_);
  statistics.steps = steps_;
  statistics.episodes = episodes_.size();
  statistics.inserted_episodes = next_key_;
  statistics.replayed_unrolls = replayed_unrolls_;
  return statistics;
}

}  // namespace scalable_agents
