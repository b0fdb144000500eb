#include "replay/cc/row_store.h"

#include <string.h>

#include <algorithm>
#include <utility>

namespace scalable_agents {
RowLayout::RowLayout(const std::vector<RowComponent>& components, int done) : components_(components), done_(done) {
  for (const RowComponent& component : components_) {
    offsets_.push_back(slab_bytes_);
    slab_bytes_ += (component.bytes * kRowsPerSlab + 7) / 8 * 8;  // Every component is aligned.
    history_ = std::max(history_, component.stack - 1);
  }
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

int64_t RowRange::FirstReadable(const RowLayout& layout, int component) const {
  const int64_t earliest = std::max(slabs_begin_, begin_ - (layout.components()[component].stack - 1));
  int64_t row = begin_;
  while (row > earliest && !*Stored(layout, layout.done(), row)) --row;
  return row;
}

void RowRange::Read(const RowLayout& layout, int component, int64_t first, int64_t num_rows, char* to,
                    int64_t to_stride) const {
  const RowComponent& described = layout.components()[component];
  const int64_t first_readable = FirstReadable(layout, component);
  for (int64_t row = first; row < first + num_rows; ++row, to += to_stride) {
    if (row < first_readable || row >= end_) {
      memset(to, 0, described.bytes);
    } else {
      memcpy(to, Stored(layout, component, row), described.bytes);
    }
  }
}

void RowRange::ReadEarlier(const RowLayout& layout, int component, int64_t row, char* to) const {
  const RowComponent& described = layout.components()[component];
  const int64_t first_readable = FirstReadable(layout, component);
  bool is_in_episode = true;
  for (int age = 1; age < described.stack; ++age) {
    is_in_episode = is_in_episode && row - age >= first_readable && !*Stored(layout, layout.done(), row - age + 1);
    char* const frame = to + (described.stack - 1 - age) * described.bytes;
    if (is_in_episode) {
      memcpy(frame, Stored(layout, component, row - age), described.bytes);
    } else {
      memset(frame, 0, described.bytes);
    }
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
  const int64_t dropped = std::min(row, num_rows_) - slabs_begin_;  // More rows may come into the last slab.
  const int64_t num_slabs = std::max<int64_t>(dropped / RowLayout::kRowsPerSlab, 0);
  slabs_.erase(slabs_.begin(), slabs_.begin() + num_slabs);
  slabs_begin_ += num_slabs * RowLayout::kRowsPerSlab;
}

}  // namespace scalable_agents
