#include "replay/cc/replay_file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace scalable_agents {
namespace {

constexpr int kVersion = 4;  // Of the format.

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

Status SystemError(const std::string& path) { return Unavailable(path + ": " + strerror(errno)); }

}  // namespace

Writer::Writer(const std::string& path) : path_(path), file_(fopen(path.c_str(), "wb")) {
  if (!file_) status_ = SystemError(path_);
}

void Writer::Bytes(const char* data, int64_t size) {
  if (!status_.ok()) return;
  sum_ = Checksum(data, size, sum_);
  if (fwrite(data, 1, size, file_.get()) != static_cast<size_t>(size)) status_ = SystemError(path_);
}

void Writer::Text(const std::string& text) {
  Put<int64_t>(text.size());
  Bytes(text.data(), text.size());
}

void Writer::Header(const FileSignature& signature) {
  Text(signature.Text(kVersion));
  Put(uint64_t{sum_});
}

Status Writer::Finish() {
  Put(uint64_t{sum_});
  if (status_.ok() && (fflush(file_.get()) != 0 || fsync(fileno(file_.get())) != 0)) status_ = SystemError(path_);
  FILE* file = file_.release();
  if (file != nullptr && fclose(file) != 0 && status_.ok()) status_ = SystemError(path_);
  return status_;
}

Reader::Reader(const std::string& path) : path_(path), file_(fopen(path.c_str(), "rb")), version_(kVersion) {
  if (!file_) status_ = SystemError(path_);
}

void Reader::Bytes(char* data, int64_t size) {
  if (status_.ok() && fread(data, 1, size, file_.get()) != static_cast<size_t>(size)) {
    status_ = ferror(file_.get()) ? SystemError(path_) : Damaged();
  }
  if (!status_.ok()) {
    memset(data, 0, size);
    return;
  }
  sum_ = Checksum(data, size, sum_);
}

int64_t Reader::Count(int64_t least, int64_t most) {
  const int64_t count = Get<int64_t>();
  if (status_.ok() && count >= least && count <= most) return count;
  if (status_.ok()) status_ = Damaged();
  return least;
}

std::string Reader::Text() {
  std::string text(Count(0, 1 << 20), '\0');
  Bytes(text.data(), text.size());
  return text;
}

bool Reader::CheckHeader(const FileSignature& signature) {
  const std::string text = Text();
  const uint64_t sum = sum_;
  for (int earlier = 1; earlier < kVersion; ++earlier) {
    if (text.rfind(signature.Start(earlier) + " ", 0) == 0) version_ = earlier;
  }
  if (version_ > 1 && Get<uint64_t>() != sum && status_.ok()) status_ = Damaged();
  if (status_.ok() && text != signature.Text(version_)) {
    status_ = InvalidArgument(path_ + ": the replay was saved with other settings: want '" + signature.Text(version_) +
                              "', got '" + text + "'");
  }
  return status_.ok();
}

Status Reader::Finish() {
  const uint64_t want = sum_;
  if (Get<uint64_t>() != want && status_.ok()) status_ = Damaged();
  if (status_.ok() && fgetc(file_.get()) != EOF) status_ = Damaged();
  return status_;
}

FileSignature::FileSignature(const std::string& kind, const std::vector<RowComponent>& components,
                             const std::string& contents)
    : kind_(kind), contents_(contents.empty() ? "" : " " + contents) {
  for (const RowComponent& component : components) {
    Add("c", component.bytes);
    Add("x", component.stack);
    Add("u", component.unit_bytes);
  }
}

std::string FileSignature::Text(int version) const { return Start(version) + (version < 4 ? settings_ : Settings()); }

Status CheckSameSettings(const FileSignature& existing, const FileSignature& asked_for) {
  const std::string want = existing.Settings(), got = asked_for.Settings();
  if (want == got) return Status();
  return InvalidArgument("a replay of this name has other settings: want '" + want + "', got '" + got + "'");
}

void SlabWriter::Add(const RowRange& rows) {
  for (size_t i = 0; i < rows.slabs().size(); ++i) {
    const Slab* slab = rows.slabs()[i].get();
    const auto [it, is_new] = saved_.insert({slab, {num_slabs(), 0}});
    if (is_new) slabs_.push_back(slab);
    const int64_t needed = rows.end() - rows.slabs_begin() - static_cast<int64_t>(i) * RowLayout::kRowsPerSlab;
    it->second.num_rows = std::max(it->second.num_rows, std::min<int64_t>(needed, RowLayout::kRowsPerSlab));
  }
}

void SlabWriter::WriteSlabs(const RowLayout& layout, Writer* writer) const {
  for (size_t i = 0; i < slabs_.size() && writer->ok(); ++i) {
    const int64_t num_rows = saved_.at(slabs_[i]).num_rows;
    writer->Put(num_rows);
    for (size_t component = 0; component < layout.components().size(); ++component) {
      writer->Bytes(slabs_[i]->data() + layout.offset(component, 0), num_rows * layout.components()[component].bytes);
    }
  }
}

void SlabWriter::WriteBounds(const RowRange& rows, Writer* writer) const {
  writer->Counts({rows.begin(), rows.end(), rows.slabs_begin(), static_cast<int64_t>(rows.slabs().size())});
}

void SlabWriter::WriteNumbers(const RowRange& rows, Writer* writer) const {
  for (const auto& slab : rows.slabs()) writer->Put(saved_.at(slab.get()).number);
}

void SlabReader::ReadSlabs(const RowLayout& layout, const std::shared_ptr<StoreCounters>& counters, int64_t num_slabs,
                           Reader* reader) {
  for (int64_t i = 0; i < num_slabs && reader->ok(); ++i) {
    slabs_.push_back(std::make_shared<Slab>(layout, counters));
    const int64_t num_rows = reader->Count(1, RowLayout::kRowsPerSlab);
    for (size_t component = 0; component < layout.components().size(); ++component) {
      reader->Bytes(slabs_.back()->data() + layout.offset(component, 0),
                    num_rows * layout.components()[component].bytes);
    }
    for (int64_t row = 0; row < num_rows; ++row) slabs_.back()->CountRow();
  }
}

SlabReader::Bounds SlabReader::ReadBounds(int64_t least, Reader* reader) {
  Bounds bounds;
  bounds.begin = reader->Count(least, kMostInFile);
  bounds.end = reader->Count(bounds.begin, kMostInFile);
  bounds.slabs_begin = reader->Count(0, bounds.begin);
  const int64_t needed = (bounds.end - bounds.slabs_begin + RowLayout::kRowsPerSlab - 1) / RowLayout::kRowsPerSlab;
  bounds.num_slabs = reader->Count(needed, needed);
  return bounds;
}

RowRange SlabReader::ReadNumbers(const Bounds& bounds, Reader* reader) const {
  std::vector<std::shared_ptr<Slab>> slabs;
  for (int64_t i = 0; i < bounds.num_slabs && reader->ok(); ++i) {
    const int64_t number = reader->Count(0, static_cast<int64_t>(slabs_.size()) - 1);
    if (reader->ok()) slabs.push_back(slabs_[number]);
  }
  return RowRange(bounds.begin, bounds.end, bounds.slabs_begin, std::move(slabs));
}

}  // namespace scalable_agents
