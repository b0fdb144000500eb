// Saves and restores the contents of a replay.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "learner/cc/sequence_replay.h"

namespace scalable_agents {
namespace {

constexpr char kMagic[] = "scalable_agents replay 1";

// A checksum of 64 bits that finds any single changed byte. Fowler, Noll and Vo's hash, on words of eight bytes.
uint64_t Checksum(const char* data, int64_t size, uint64_t sum) {
  constexpr uint64_t kPrime = 0x100000001b3;
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    uint64_t word;
    memcpy(&word, data + i, 8);
    sum = (sum ^ word) * kPrime;
    sum ^= sum >> 32;  // Otherwise the upper bits of a word would change only the upper bits of the sum.
  }
  for (; i < size; ++i) sum = (sum ^ static_cast<unsigned char>(data[i])) * kPrime;
  return sum;
}

struct CloseFile {
  void operator()(FILE* file) const { fclose(file); }
};

Status SystemError(const std::string& path) { return Unavailable(path + ": " + strerror(errno)); }

// A file that is written once, from beginning to end.
class Writer {
 public:
  explicit Writer(const std::string& path) : path_(path), file_(fopen(path.c_str(), "wb")) {
    if (!file_) status_ = SystemError(path_);
  }

  void Bytes(const char* data, int64_t size) {
    if (!status_.ok()) return;
    sum_ = Checksum(data, size, sum_);
    if (fwrite(data, 1, size, file_.get()) != static_cast<size_t>(size)) status_ = SystemError(path_);
  }

  template <typename Number>
  void Put(Number number) {
    Bytes(reinterpret_cast<const char*>(&number), sizeof(number));
  }

  void Text(const std::string& text) {
    Put<int64_t>(text.size());
    Bytes(text.data(), text.size());
  }

  // Writes the checksum and waits until everything is on the disk.
  Status Finish() {
    Put(uint64_t{sum_});
    if (status_.ok() && (fflush(file_.get()) != 0 || fsync(fileno(file_.get())) != 0)) status_ = SystemError(path_);
    FILE* file = file_.release();
    if (file != nullptr && fclose(file) != 0 && status_.ok()) status_ = SystemError(path_);
    return status_;
  }

  bool ok() const { return status_.ok(); }

 private:
  const std::string path_;
  std::unique_ptr<FILE, CloseFile> file_;
  Status status_;
  uint64_t sum_ = 0;
};

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(fopen(path.c_str(), "rb")) {
    if (!file_) status_ = SystemError(path_);
  }

  void Bytes(char* data, int64_t size) {
    if (status_.ok() && fread(data, 1, size, file_.get()) != static_cast<size_t>(size)) {
      status_ = ferror(file_.get()) ? SystemError(path_) : Damaged();
    }
    if (!status_.ok()) {
      memset(data, 0, size);
      return;
    }
    sum_ = Checksum(data, size, sum_);
  }

  template <typename Number>
  Number Get() {
    Number number;
    Bytes(reinterpret_cast<char*>(&number), sizeof(number));
    return number;
  }

  // Returns a number that must lie in [least, most]; else the file is damaged, and the result is `least`.
  int64_t Count(int64_t least, int64_t most) {
    const int64_t count = Get<int64_t>();
    if (status_.ok() && count >= least && count <= most) return count;
    if (status_.ok()) status_ = Damaged();
    return least;
  }

  std::string Text() {
    std::string text(Count(0, 1 << 20), '\0');
    Bytes(text.data(), text.size());
    return text;
  }

  // Reads the checksum, which must be the end of the file.
  Status Finish() {
    const uint64_t want = sum_;
    if (Get<uint64_t>() != want && status_.ok()) status_ = Damaged();
    if (status_.ok() && fgetc(file_.get()) != EOF) status_ = Damaged();
    return status_;
  }

  Status Damaged() const { return Unavailable(path_ + ": the file of the replay is damaged"); }
  const Status& status() const { return status_; }

 private:
  const std::string path_;
  std::unique_ptr<FILE, CloseFile> file_;
  Status status_;
  uint64_t sum_ = 0;
};

}  // namespace

// Describes the layout of the file. Only a replay with the same signature can read it.
std::string SequenceReplay::Signature() const {
  std::string signature(kMagic);
  const auto add = [&](const std::string& name, int64_t value) { signature += " " + name + std::to_string(value); };
  for (const RowComponent& component : options_.components) {
    add("c", component.bytes);
    add("x", component.stack);
    add("u", component.unit_bytes);
  }
  for (int64_t bytes : options_.state_bytes) add("s", bytes);
  for (int offset : options_.state_offsets) add("o", offset);
  const SequenceGeometry& geometry = options_.geometry;
  add("burn_in", geometry.burn_in);
  add("length", geometry.length);
  add("period", geometry.period);
  add("cross_episodes", geometry.cross_episodes);
  add("done", options_.done);
  signature += " exponent" + std::to_string(options_.priority_exponent);
  add("capacity", options_.capacity);
  return signature;
}

Status SequenceReplay::Save(const std::string& path) const {
  std::vector<std::shared_ptr<const Sequence>> sequences;
  std::vector<double> weights;
  int64_t next_key, sampled_batches, sampled;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int64_t key = first_key_; key < next_key_; ++key) {
      sequences.push_back(sequences_[Slot(key)]);
      weights.push_back(weights_.Get(Slot(key)));
    }
    next_key = next_key_;
    sampled_batches = sampled_batches_;
    sampled = statistics_.sampled;
  }
  // Every slab is written once, although several sequences share it, and only with the rows that they need: an actor
  // may still be filling the rest.
  struct SavedSlab {
    int64_t number, num_rows;
  };
  std::map<const Slab*, SavedSlab> saved;
  std::vector<const Slab*> slabs;
  for (const auto& sequence : sequences) {
    const RowRange& rows = sequence->rows;
    for (size_t i = 0; i < rows.slabs().size(); ++i) {
      const Slab* slab = rows.slabs()[i].get();
      const auto [it, is_new] = saved.insert({slab, {static_cast<int64_t>(slabs.size()), 0}});
      if (is_new) slabs.push_back(slab);
      const int64_t needed = rows.end() - rows.slabs_begin() - static_cast<int64_t>(i) * RowLayout::kRowsPerSlab;
      it->second.num_rows = std::max(it->second.num_rows, std::min<int64_t>(needed, RowLayout::kRowsPerSlab));
    }
  }

  Writer writer(path);
  writer.Text(Signature());
  const RateLimiter::Counts counts = limiter_.counts();
  for (int64_t number : {next_key, sampled_batches, sampled, counts.inserted, counts.sampled,
                         static_cast<int64_t>(slabs.size()), static_cast<int64_t>(sequences.size())}) {
    writer.Put(number);
  }
  for (size_t i = 0; i < slabs.size() && writer.ok(); ++i) {
    const int64_t num_rows = saved[slabs[i]].num_rows;
    writer.Put(num_rows);
    for (size_t component = 0; component < layout_.components().size(); ++component) {
      writer.Bytes(slabs[i]->data() + layout_.offset(component, 0), num_rows * layout_.components()[component].bytes);
    }
  }
  for (size_t i = 0; i < sequences.size() && writer.ok(); ++i) {
    const Sequence& sequence = *sequences[i];
    const RowRange& rows = sequence.rows;
    for (int64_t number : {sequence.key, sequence.life_id, sequence.life_row, sequence.sampled_batches_before,
                           sequence.first, rows.begin(), rows.end(), rows.slabs_begin(),
                           static_cast<int64_t>(rows.slabs().size())}) {
      writer.Put(number);
    }
    writer.Put(weights[i]);
    for (const auto& slab : rows.slabs()) writer.Put(saved[slab.get()].number);
    for (const RecurrentState& state : sequence.states) {
      writer.Put<int64_t>(state ? state->size() : 0);
      if (state) writer.Bytes(state->data(), state->size());
    }
  }
  return writer.Finish();
}

Status SequenceReplay::Restore(const std::string& path) {
  Reader reader(path);
  const std::string signature = reader.Text();
  if (!reader.status().ok()) return reader.status();
  if (signature != Signature()) {
    return InvalidArgument(path + ": the replay was saved with other settings: want '" + Signature() + "', got '" +
                           signature + "'");
  }
  constexpr int64_t kMost = int64_t{1} << 62;
  const int64_t next_key = reader.Count(0, kMost), sampled_batches = reader.Count(0, kMost);
  const int64_t sampled = reader.Count(0, kMost);
  RateLimiter::Counts counts;
  counts.inserted = reader.Count(0, kMost);
  counts.sampled = reader.Count(0, kMost);
  const int64_t num_slabs = reader.Count(0, kMost);
  const int64_t num_sequences = reader.Count(0, std::min(options_.capacity, next_key));
  int64_t state_bytes = 0;
  for (int64_t bytes : options_.state_bytes) state_bytes += bytes;

  std::vector<std::shared_ptr<Slab>> slabs;
  std::vector<std::shared_ptr<Sequence>> sequences;
  std::vector<double> weights;
  const Status status = WithMemory([&] {
    for (int64_t i = 0; i < num_slabs && reader.status().ok(); ++i) {
      slabs.push_back(std::make_shared<Slab>(layout_, counters_));
      const int64_t num_rows = reader.Count(1, RowLayout::kRowsPerSlab);
      for (size_t component = 0; component < layout_.components().size(); ++component) {
        reader.Bytes(slabs.back()->data() + layout_.offset(component, 0),
                     num_rows * layout_.components()[component].bytes);
      }
      for (int64_t row = 0; row < num_rows; ++row) slabs.back()->CountRow();
    }
    for (int64_t i = 0; i < num_sequences && reader.status().ok(); ++i) {
      auto sequence = std::make_shared<Sequence>();
      sequence->key = reader.Count(next_key - num_sequences + i, next_key - num_sequences + i);
      sequence->life_id = reader.Get<int64_t>();
      sequence->life_row = reader.Get<int64_t>();
      sequence->sampled_batches_before = reader.Get<int64_t>();
      sequence->first = reader.Count(-kMost, kMost);
      const int64_t begin = reader.Count(std::max<int64_t>(sequence->first, 0), kMost);
      const int64_t end = reader.Count(begin, kMost), slabs_begin = reader.Count(0, begin);
      const int64_t needed = (end - slabs_begin + RowLayout::kRowsPerSlab - 1) / RowLayout::kRowsPerSlab;
      reader.Count(needed, needed);
      weights.push_back(reader.Get<double>());
      std::vector<std::shared_ptr<Slab>> its_slabs;
      for (int64_t j = 0; j < needed && reader.status().ok(); ++j) {
        const int64_t number = reader.Count(0, num_slabs - 1);
        if (reader.status().ok()) its_slabs.push_back(slabs[number]);
      }
      sequence->rows = RowRange(begin, end, slabs_begin, std::move(its_slabs));
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
    return Status();
  });
  if (!status.ok()) return status;
  const Status finished = reader.Finish();
  if (!finished.ok()) return finished;

  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (next_key_ > 0) return InvalidArgument(path + ": the replay that restores it must be empty");
    next_key_ = next_key;
    first_key_ = next_key - num_sequences;
    sampled_batches_ = sampled_batches;
    statistics_.sampled = sampled;
    for (int64_t i = 0; i < num_sequences; ++i) {
      const int64_t slot = Slot(sequences[i]->key);
      sequences_[slot] = sequences[i];
      weights_.Set(slot, weights[i]);
    }
  }
  limiter_.Restore(counts);
  return Status();
}

}  // namespace scalable_agents
