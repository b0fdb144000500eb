// The rows of a stream without gaps, each one once, in slabs of equal size.
#ifndef SCALABLE_AGENTS_REPLAY_CC_ROW_STORE_H_
#define SCALABLE_AGENTS_REPLAY_CC_ROW_STORE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace scalable_agents {

// One component of a row, for example the pixels or the reward.
struct RowComponent {
  int64_t bytes = 0;       // Of a row in the store. Of a stack of frames, the store has the newest frame only.
  int stack = 1;           // k > 1: reading also returns the k-1 frames before the first row.
  int64_t unit_bytes = 1;  // Bytes along the last axis of one frame. Only the signature of files has them.
};

// Rows in memory that the caller owns: row i begins at data + i * stride.
struct StridedRows {
  const char* data = nullptr;
  int64_t stride = 0;
  const char* row(int64_t i) const { return data + i * stride; }
};

// What a store holds at the moment. Readers may hold slabs that the replay has dropped; these count as well.
struct StoreCounters {
  std::atomic<int64_t> slabs{0}, rows{0};
};

// The components of rows, and their places in a slab.
class RowLayout {
 public:
  static constexpr int kRowsPerSlab = 16;

  // `done` is the index of the component, one byte, that says whether a row has the first observation of an episode.
  // Frames of other episodes are not stacked.
  RowLayout(const std::vector<RowComponent>& components, int done);

  const std::vector<RowComponent>& components() const { return components_; }
  int done() const { return done_; }
  int64_t slab_bytes() const { return slab_bytes_; }
  int64_t offset(int component, int64_t row_in_slab) const {
    return offsets_[component] + row_in_slab * components_[component].bytes;
  }
  // The number of rows before a row that are needed to stack its frames.
  int history() const { return history_; }

 private:
  const std::vector<RowComponent> components_;
  const int done_;
  std::vector<int64_t> offsets_;
  int64_t slab_bytes_ = 0;
  int history_ = 0;
};

// kRowsPerSlab rows. Rows are written once, in their order. A row that has been published may be read while later ones
// are written. A slab exists as long as it has owners.
class Slab {
 public:
  // Throws std::bad_alloc if there is not enough memory.
  Slab(const RowLayout& layout, std::shared_ptr<StoreCounters> counters);
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  char* data() { return data_.get(); }
  const char* data() const { return data_.get(); }

  // Counts a row that has been written.
  void CountRow() {
    ++num_rows_;
    ++counters_->rows;
  }

 private:
  const std::unique_ptr<char[]> data_;
  const std::shared_ptr<StoreCounters> counters_;
  std::atomic<int> num_rows_{0};
};

// Consecutive rows, and the slabs that hold them. Copies share the slabs.
class RowRange {
 public:
  RowRange() = default;
  // Rows [begin, end); slabs[0] begins with row slabs_begin, a multiple of kRowsPerSlab.
  RowRange(int64_t begin, int64_t end, int64_t slabs_begin, std::vector<std::shared_ptr<Slab>> slabs);

  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  int64_t slabs_begin() const { return slabs_begin_; }
  const std::vector<std::shared_ptr<Slab>>& slabs() const { return slabs_; }

  // A row of a component as it is stored. The row must be in the range.
  const char* Stored(const RowLayout& layout, int component, int64_t row) const;

  // Copies rows first, first + 1, ... of a component to `to`, to + to_stride, ... Rows outside of [begin, end) become
  // zeros, except for the frames of its episode before `begin` that the stack of row `begin` needs, if the range has
  // them.
  void Read(const RowLayout& layout, int component, int64_t first, int64_t num_rows, char* to, int64_t to_stride) const;

  // Copies the k-1 frames before `row`, the oldest one first. Frames of other episodes, and frames before the first one
  // that Read copies, are zeros.
  void ReadEarlier(const RowLayout& layout, int component, int64_t row, char* to) const;

 private:
  // The first row whose component Read copies.
  int64_t FirstReadable(const RowLayout& layout, int component) const;

  int64_t begin_ = 0, end_ = 0, slabs_begin_ = 0;
  std::vector<std::shared_ptr<Slab>> slabs_;
};

// The rows of a segment of a stream, numbered from 0. Keeps those that may still be needed. Not thread-safe.
class RowStream {
 public:
  RowStream(const RowLayout* layout, std::shared_ptr<StoreCounters> counters)
      : layout_(*layout), counters_(std::move(counters)) {}

  // Appends a row: component c is copied from rows[c].row(i). Throws std::bad_alloc if there is not enough memory; then
  // nothing is appended.
  void Append(const std::vector<StridedRows>& rows, int64_t i);

  // The range [begin, end), with `history` more rows before it if there are any.
  RowRange Range(int64_t begin, int64_t end, int64_t history) const;

  // Drops the slabs that have only rows before `row`, which may be a row that is still to come.
  void DropBefore(int64_t row);

  int64_t num_rows() const { return num_rows_; }

 private:
  const RowLayout& layout_;
  const std::shared_ptr<StoreCounters> counters_;
  std::vector<std::shared_ptr<Slab>> slabs_;
  int64_t slabs_begin_ = 0;  // The first row of slabs_[0].
  int64_t num_rows_ = 0;     // Rows ever appended, also those of dropped slabs.
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_REPLAY_CC_ROW_STORE_H_
