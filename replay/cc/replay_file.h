// Files with the contents of a replay: a header, numbers and slabs of rows, and a checksum at the end.
#ifndef SCALABLE_AGENTS_REPLAY_CC_REPLAY_FILE_H_
#define SCALABLE_AGENTS_REPLAY_CC_REPLAY_FILE_H_

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/cc/status.h"
#include "replay/cc/row_store.h"

namespace scalable_agents {

struct CloseFile {
  void operator()(FILE* file) const { fclose(file); }
};

// A text that describes the layout of a file. Only a replay with the same one can read the file.
class FileSignature {
 public:
  // `kind` names the kind of file. `contents` describes the rows and states; files before version 4 do not have it.
  FileSignature(const std::string& kind, const std::vector<RowComponent>& components, const std::string& contents);

  template <typename Number>
  void Add(const std::string& name, Number value) {
    settings_ += " " + name + std::to_string(value);
  }

  // The text in files of a version of the format.
  std::string Text(int version) const;
  std::string Settings() const { return settings_ + contents_; }
  // The beginning of this text, which does not depend on the settings.
  std::string Start(int version) const { return kind_ + " " + std::to_string(version); }

 private:
  const std::string kind_, contents_;
  std::string settings_;
};

// Returns kInvalidArgument unless a replay that exists and one that is asked for under its name have equal settings.
Status CheckSameSettings(const FileSignature& existing, const FileSignature& asked_for);

// A file that is written once, from beginning to end. After an error, nothing more is written.
class Writer {
 public:
  explicit Writer(const std::string& path);

  void Bytes(const char* data, int64_t size);
  void Text(const std::string& text);
  // Writes the signature, and a checksum of it: damage to it must not look like other settings.
  void Header(const FileSignature& signature);

  template <typename Number>
  void Put(Number number) {
    Bytes(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void Counts(std::initializer_list<int64_t> counts) {
    for (int64_t count : counts) Put(count);
  }

  // Writes the checksum and waits until everything is on the disk.
  Status Finish();

  bool ok() const { return status_.ok(); }

 private:
  const std::string path_;
  std::unique_ptr<FILE, CloseFile> file_;
  Status status_;
  uint64_t sum_ = 0;
};

// A file that is read once, from beginning to end. After an error, everything that is read is zero.
class Reader {
 public:
  explicit Reader(const std::string& path);

  void Bytes(char* data, int64_t size);
  std::string Text();

  template <typename Number>
  Number Get() {
    Number number;
    Bytes(reinterpret_cast<char*>(&number), sizeof(number));
    return number;
  }

  // Returns a number that must lie in [least, most]; else the file is damaged, and the result is `least`.
  int64_t Count(int64_t least, int64_t most);

  // Reads the header and returns whether it has `signature`. If not, `status` says why: the file is damaged, or the
  // replay was saved with other settings. In files of version 1, the header has no checksum.
  bool CheckHeader(const FileSignature& signature);
  // The version of the format, which the header says.
  int version() const { return version_; }

  // Reads the checksum, which must be the end of the file.
  Status Finish();

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

 private:
  Status Damaged() const { return Unavailable(path_ + ": the file of the replay is damaged"); }

  const std::string path_;
  std::unique_ptr<FILE, CloseFile> file_;
  Status status_;
  int version_;
  uint64_t sum_ = 0;
};

// The slabs of many ranges of rows, which may share them. A file has each slab once, and only with the rows that are
// needed: an actor may still be filling the rest.
class SlabWriter {
 public:
  // Adds the slabs of a range. Those that are new get the next numbers.
  void Add(const RowRange& rows);

  int64_t num_slabs() const { return slabs_.size(); }
  void WriteSlabs(const RowLayout& layout, Writer* writer) const;

  // Writes where a range begins and ends, and how many slabs it has.
  void WriteBounds(const RowRange& rows, Writer* writer) const;
  // Writes the numbers of its slabs, which were added.
  void WriteNumbers(const RowRange& rows, Writer* writer) const;

 private:
  struct SavedSlab {
    int64_t number, num_rows;
  };
  std::map<const Slab*, SavedSlab> saved_;
  std::vector<const Slab*> slabs_;
};

// Reads what a SlabWriter wrote.
class SlabReader {
 public:
  struct Bounds {
    int64_t begin, end, slabs_begin, num_slabs;
  };

  // Throws std::bad_alloc if there is not enough memory.
  void ReadSlabs(const RowLayout& layout, const std::shared_ptr<StoreCounters>& counters, int64_t num_slabs,
                 Reader* reader);
  // `least` is the first row with which the range may begin.
  static Bounds ReadBounds(int64_t least, Reader* reader);
  RowRange ReadNumbers(const Bounds& bounds, Reader* reader) const;

 private:
  std::vector<std::shared_ptr<Slab>> slabs_;
};

// The largest count or key that a file may have.
constexpr int64_t kMostInFile = int64_t{1} << 62;

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_REPLAY_CC_REPLAY_FILE_H_
