#include "replay/cc/row_store.h"

#include <string.h>

#include <algorithm>
#include <utility>

namespace scalable_agents {
namespace {

// Interleaves four frames of single bytes. A loop of its own, since the compiler can make it a few wide instructions.
void InterleaveFour(const char* __restrict a, const char* __restrict b, const char* __restrict c,
                    const char* __restrict d, int64_t count, char* __restrict to) {
  for (int64_t i = 0; i < count; ++i) {
    to[4 * i] = a[i];
    to[4 * i + 1] = b[i];
    to[4 * i + 2] = c[i];
    to[4 * i + 3] = d[i];
  }
}

}  // namespace

RowLayout::RowLayout(const std::vector<RowComponent>& components, int done) : components_(components), done_(done) {
  int64_t largest_frame = 0;
  for (const RowComponent& component : components_) {
    offsets_.push_back(slab_bytes_);
    slab_bytes_ += (component.bytes * kRowsPerSlab + 7) / 8 * 8;  // Every component is aligned.
    history_ = std::max(history_, component.stack - 1);
    if (component.stack > 1) largest_frame = std::max(largest_frame, component.bytes);
  }
  zeros_.resize(largest_frame);
}

Slab::Slab(const RowLayout& layout, std::shared_ptr<StoreCounters> counters)
    : data_(new char[layout.slab_bytes()]), counters_(std::move(counters)) {
  ++counters_->slabs;
}

Slab::~Slab() {
  --counters_->slabs;
  counters_->rows -= num_rows_;
}

RowRange::RowRange(int64_t begin, int64_t end, int64_t slabs_begin, std::vector<std::shared_ptr<Slab>> slabs)
    : begin_(begin), end_(end), slabs_begin_(slabs_begin), slabs_(std::move(slabs)) {}

const char* RowRange::Stored(const RowLayout& layout, int component, int64_t row) const {
  const int64_t place = row - slabs_begin_;
  return slabs_[place / RowLayout::kRowsPerSlab]->data() + layout.offset(component, place % RowLayout::kRowsPerSlab);
}

void RowRange::Read(const RowLayout& layout, int component, int64_t first, int64_t num_rows, char* to,
                    int64_t to_stride) const {
  const RowComponent& described = layout.components()[component];
  for (int64_t row = first; row < first + num_rows; ++row, to += to_stride) {
    if (row < begin_ || row >= end_) {
      memset(to, 0, described.read_bytes());
    } else if (described.stack == 1) {
      memcpy(to, Stored(layout, component, row), described.bytes);
    } else {
      ReadStack(layout, component, row, to);
    }
  }
}

void RowRange::ReadStack(const RowLayout& layout, int component, int64_t row, char* to) const {
  constexpr int kFew = 16;
  const RowComponent& described = layout.components()[component];
  const int stack = described.stack;
  const char* few[kFew];
  std::vector<const char*> many(stack > kFew ? stack : 0);
  const char** frames = stack > kFew ? many.data() : few;  // The oldest one first.
  bool is_in_episode = true;
  for (int age = 0; age < stack; ++age) {
    is_in_episode = is_in_episode && row - age >= slabs_begin_;
    frames[stack - 1 - age] = is_in_episode ? Stored(layout, component, row - age) : layout.zeros();
    is_in_episode = is_in_episode && !*Stored(layout, layout.done(), row - age);
  }
  if (stack == 4 && described.unit_bytes == 1) {
    InterleaveFour(frames[0], frames[1], frames[2], frames[3], described.bytes, to);
    return;
  }
  const int64_t unit = described.unit_bytes;
  for (int64_t offset = 0; offset < described.bytes; offset += unit) {
    for (int i = 0; i < stack; ++i, to += unit) memcpy(to, frames[i] + offset, unit);
  }
}

void RowStream::Append(const std::vector<StridedRows>& rows, int64_t i) {
  const int64_t row_in_slab = num_rows_ % RowLayout::kRowsPerSlab;
  if (row_in_slab == 0) {
    if (slabs_.empty()) slabs_begin_ = num_rows_;
    slabs_.push_back(std::make_shared<Slab>(layout_, counters_));
  }
  Slab& slab = *slabs_.back();
  for (size_t component = 0; component < rows.size(); ++component) {
    memcpy(slab.data() + layout_.offset(component, row_in_slab), rows[component].row(i),
           layout_.components()[component].bytes);
  }
  slab.CountRow();
  ++num_rows_;
}

RowRange RowStream::Range(int64_t begin, int64_t end, int64_t history) const {
  const int64_t first_slab = (std::max(begin - history, slabs_begin_) - slabs_begin_) / RowLayout::kRowsPerSlab;
  const int64_t end_slab = (end - slabs_begin_ + RowLayout::kRowsPerSlab - 1) / RowLayout::kRowsPerSlab;
  return RowRange(begin, end, slabs_begin_ + first_slab * RowLayout::kRowsPerSlab,
                  {slabs_.begin() + first_slab, slabs_.begin() + end_slab});
}

void RowStream::DropBefore(int64_t row) {
  const int64_t num_slabs = std::clamp<int64_t>((row - slabs_begin_) / RowLayout::kRowsPerSlab, 0, slabs_.size());
  slabs_.erase(slabs_.begin(), slabs_.begin() + num_slabs);
  slabs_begin_ += num_slabs * RowLayout::kRowsPerSlab;
}

}  // namespace scalable_agents
