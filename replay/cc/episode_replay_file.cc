// Saves and restores the contents of a replay of episodes.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "replay/cc/episode_replay.h"
#include "replay/cc/replay_file.h"

namespace scalable_agents {
namespace {

constexpr char kKind[] = "scalable_agents episodes";

}  // namespace

FileSignature EpisodeReplay::Signature(const EpisodeReplayOptions& options) {
  FileSignature signature(kKind, options.components, options.contents);
  signature.Add("done", options.done);
  signature.Add("capacity", options.capacity);
  return signature;
}

Status EpisodeReplay::CheckSame(const EpisodeReplayOptions& options) const {
  const auto settings = [](const EpisodeReplayOptions& of) {
    FileSignature signature = Signature(of);
    signature.Add("unroll_length", of.unroll_length);
    signature.Add("longest_episode", of.longest_episode);
    for (bool is_observed : of.is_observed) signature.Add("is_observed", is_observed);
    return signature;
  };
  return CheckSameSettings(settings(options_), settings(options));
}

Status EpisodeReplay::Save(const std::string& path) const {
  Episodes episodes;
  int64_t next_key, replayed_unrolls;
  {
    MutexLock lock(mutex_);
    episodes = episodes_;
    next_key = next_key_;
    replayed_unrolls = replayed_unrolls_;
  }
  SlabWriter slabs;
  for (const auto& episode : episodes) slabs.Add(episode->rows);

  Writer writer(path);
  writer.Header(Signature(options_));
  writer.Counts({next_key, replayed_unrolls, slabs.num_slabs(), static_cast<int64_t>(episodes.size())});
  slabs.WriteSlabs(layout_, &writer);
  for (size_t i = 0; i < episodes.size() && writer.ok(); ++i) {
    writer.Counts({episodes[i]->key, episodes[i]->stream_id, episodes[i]->stream_row});
    slabs.WriteBounds(episodes[i]->rows, &writer);
    slabs.WriteNumbers(episodes[i]->rows, &writer);
  }
  return writer.Finish();
}

Status EpisodeReplay::Restore(const std::string& path) {
  Reader reader(path);
  if (!reader.CheckHeader(Signature(options_))) return reader.status();
  const int64_t next_key = reader.Count(0, kMostInFile);
  if (reader.version() < 3) reader.Count(0, kMostInFile);  // Older files also have the steps ever inserted.
  const int64_t replayed_unrolls = reader.Count(0, kMostInFile), num_slabs = reader.Count(0, kMostInFile);
  const int64_t num_episodes = reader.Count(0, std::min(options_.capacity, next_key));
  SlabReader slabs;
  Episodes episodes;
  int64_t steps = 0;
  const Status status = WithMemory([&] {
    slabs.ReadSlabs(layout_, counters_, num_slabs, &reader);
    for (int64_t i = 0; i < num_episodes && reader.ok(); ++i) {
      auto episode = std::make_shared<Episode>();
      episode->key = reader.Count(next_key - num_episodes + i, next_key - num_episodes + i);
      episode->stream_id = reader.Get<int64_t>();
      episode->stream_row = reader.Get<int64_t>();
      const SlabReader::Bounds bounds = SlabReader::ReadBounds(0, &reader);
      episode->rows = slabs.ReadNumbers(bounds, &reader);
      if (reader.ok() && episode->num_steps() == 0) return Unavailable(path + ": an episode in this file has no steps");
      steps += episode->num_steps();
      episodes.push_back(std::move(episode));
    }
    return reader.Finish();
  });
  if (!status.ok()) return status;

  MutexLock lock(mutex_);
  if (next_key_ > 0) return InvalidArgument(path + ": the replay that restores it must be empty");
  episodes_.swap(episodes);
  next_key_ = next_key;
  steps_ = steps;
  replayed_unrolls_ = replayed_unrolls;
  return Status();
}

}  // namespace scalable_agents
