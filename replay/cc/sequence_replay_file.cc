// Saves and restores the contents of a replay.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "replay/cc/replay_file.h"
#include "replay/cc/sequence_replay.h"

namespace scalable_agents {
namespace {

constexpr char kKind[] = "scalable_agents replay";

void AddRateLimit(const RateLimit& limit, FileSignature* signature) {
  signature->Add("samples_per_insert", limit.samples_per_insert);
  signature->Add("tolerance", limit.tolerance);
  signature->Add("minimum_size", limit.minimum_size);
}

}  // namespace

FileSignature SequenceReplay::Signature(const ReplayOptions& options) {
  FileSignature signature(kKind, options.components, options.contents);
  for (int64_t bytes : options.state_bytes) signature.Add("s", bytes);
  for (int offset : options.state_offsets) signature.Add("o", offset);
  const SequenceGeometry& geometry = options.geometry;
  signature.Add("burn_in", geometry.burn_in);
  signature.Add("length", geometry.length);
  signature.Add("period", geometry.period);
  signature.Add("cross_episodes", geometry.cross_episodes);
  signature.Add("done", options.done);
  signature.Add("exponent", options.priority_exponent);
  signature.Add("capacity", options.capacity);
  // Files that are older than this option do not have it.
  if (options.max_times_sampled > 0) signature.Add("max_times_sampled", options.max_times_sampled);
  // The file has the counts of a lifetime. With another limit, one side would wait until the other has made up for
  // them.
  if (options.rate_limit.samples_per_insert > 0) AddRateLimit(options.rate_limit, &signature);
  return signature;
}

Status SequenceReplay::CheckSame(const ReplayOptions& options) const {
  const auto settings = [](const ReplayOptions& of) {
    FileSignature signature = Signature(of);
    if (of.rate_limit.samples_per_insert == 0) AddRateLimit(of.rate_limit, &signature);
    return signature;
  };
  return CheckSameSettings(settings(options_), settings(options));
}

Status SequenceReplay::Save(const std::string& path) const {
  std::vector<std::shared_ptr<const Sequence>> sequences;
  std::vector<double> weights;
  std::vector<int64_t> times_sampled;
  int64_t next_key, sampled_batches, sampled;
  {
    MutexLock lock(mutex_);
    for (int64_t key = FirstKey(); key < next_key_; ++key) {
      if (!Has(key)) continue;
      sequences.push_back(sequences_[Slot(key)]);
      weights.push_back(weights_.Get(Slot(key)));
      if (!times_sampled_.empty()) times_sampled.push_back(times_sampled_[Slot(key)]);
    }
    next_key = next_key_;
    sampled_batches = sampled_batches_;
    sampled = sampled_;
  }
  SlabWriter slabs;
  for (const auto& sequence : sequences) slabs.Add(sequence->rows);

  Writer writer(path);
  writer.Header(Signature(options_));
  writer.Counts({next_key, sampled_batches, sampled, slabs.num_slabs(), static_cast<int64_t>(sequences.size())});
  slabs.WriteSlabs(layout_, &writer);
  for (size_t i = 0; i < sequences.size() && writer.ok(); ++i) {
    const Sequence& sequence = *sequences[i];
    writer.Counts(
        {sequence.key, sequence.stream_id, sequence.stream_row, sequence.sampled_batches_before, sequence.first});
    slabs.WriteBounds(sequence.rows, &writer);
    writer.Put(weights[i]);
    if (!times_sampled.empty()) writer.Put(times_sampled[i]);
    slabs.WriteNumbers(sequence.rows, &writer);
    for (const RecurrentState& state : sequence.states) {
      writer.Put<int64_t>(state ? state->size() : 0);
      if (state) writer.Bytes(state->data(), state->size());
    }
  }
  return writer.Finish();
}

Status SequenceReplay::Restore(const std::string& path) {
  Reader reader(path);
  if (!reader.CheckHeader(Signature(options_))) return reader.status();
  const int64_t next_key = reader.Count(0, kMostInFile), sampled_batches = reader.Count(0, kMostInFile);
  const int64_t sampled = reader.Count(0, kMostInFile);
  if (reader.version() < 3) {  // Older files have two more counts, of waits.
    for (int unused = 0; unused < 2; ++unused) reader.Count(0, kMostInFile);
  }
  const int64_t num_slabs = reader.Count(0, kMostInFile);
  const int64_t num_sequences = reader.Count(0, std::min(options_.capacity, next_key));
  int64_t state_bytes = 0;
  for (int64_t bytes : options_.state_bytes) state_bytes += bytes;

  SlabReader slabs;
  std::vector<std::shared_ptr<Sequence>> sequences;
  std::vector<double> weights;
  std::vector<int64_t> times_sampled;
  int64_t least_key = std::max<int64_t>(next_key - options_.capacity, 0);
  const Status status = WithMemory([&] {
    slabs.ReadSlabs(layout_, counters_, num_slabs, &reader);
    for (int64_t i = 0; i < num_sequences && reader.ok(); ++i) {
      auto sequence = std::make_shared<Sequence>();
      sequence->key = reader.Count(least_key, next_key - 1);
      least_key = sequence->key + 1;
      sequence->stream_id = reader.Get<int64_t>();
      sequence->stream_row = reader.Get<int64_t>();
      sequence->sampled_batches_before = reader.Get<int64_t>();
      sequence->first = reader.Count(-kMostInFile, kMostInFile);
      const SlabReader::Bounds bounds = SlabReader::ReadBounds(std::max<int64_t>(sequence->first, 0), &reader);
      weights.push_back(reader.Get<double>());
      if (options_.max_times_sampled > 0) times_sampled.push_back(reader.Count(0, options_.max_times_sampled - 1));
      sequence->rows = slabs.ReadNumbers(bounds, &reader);
      for (size_t j = 0; j < options_.state_offsets.size(); ++j) {
        const int64_t bytes = reader.Count(0, state_bytes);
        if (bytes == 0) {
          sequence->states.push_back(nullptr);
          continue;
        }
        auto state = std::make_shared<std::vector<char>>(state_bytes);
        reader.Bytes(state->data(), state_bytes);
        sequence->states.push_back(state);
      }
      sequences.push_back(std::move(sequence));
    }
    return reader.Finish();
  });
  if (!status.ok()) return status;
  // Weight 0 means that a sequence had no priority yet: Update sets no such weight. Perhaps nobody sets its priority
  // any more, and then it could never be sampled.
  const double largest = weights.empty() ? 0 : *std::max_element(weights.begin(), weights.end());
  std::replace(weights.begin(), weights.end(), 0., largest > 0 ? largest : 1.);

  MutexLock lock(mutex_);
  if (next_key_ > 0) return InvalidArgument(path + ": the replay that restores it must be empty");
  next_key_ = next_key;
  size_ = num_sequences;
  sampled_batches_ = sampled_batches;
  sampled_ = sampled;
  for (int64_t i = 0; i < num_sequences; ++i) {
    const int64_t slot = Slot(sequences[i]->key);
    sequences_[slot] = sequences[i];
    if (!times_sampled.empty()) times_sampled_[slot] = times_sampled[i];
    SetWeight(slot, weights[i]);
  }
  return Status();
}

}  // namespace scalable_agents
