#include "environments/cc/pixel_pass.h"

#include <string.h>

#include <algorithm>
#include <numeric>

#if defined(__x86_64__)
#include <immintrin.h>
#define SCALABLE_AGENTS_AVX2 __attribute__((target("avx2")))
#endif
#define SCALABLE_AGENTS_INLINE inline __attribute__((always_inline))

namespace scalable_agents {
namespace {

constexpr uint8_t kUnknown = 255;
constexpr uint16_t kUnknownEntry = 256;  // A gray that is not known, in a table of uint16 grays.

// The sizes of Atari's screens and of the papers' frames. Only these have fast code.
constexpr Size kScreen = {210, 160}, kFrame = {84, 84};
constexpr int kLanes = 96;              // 84 sums, and room for whole vectors.
constexpr int kPixelsOfFrame = 5 * 40;  // The sum of the shares of a frame's pixel, on both axes.

bool Equal(Size a, Size b) { return a.height == b.height && a.width == b.width; }

// The rounded mean of the pixels that a frame's pixel covers: their sum, at most 51,000, divided by 200. For this, half
// of 200 is added to the sum. An eighth of that is multiplied by 41,944 / 2^20, which is slightly more than 1 / 25.
SCALABLE_AGENTS_INLINE uint8_t Average(uint16_t sum) {
  const uint16_t eighth = static_cast<uint16_t>(sum + kPixelsOfFrame / 2) >> 3;
  return static_cast<uint16_t>(eighth * 41944u >> 16) >> 4;
}

int Total(const Cover& cover) { return std::accumulate(cover.shares.begin(), cover.shares.end(), 0); }

// Looks up the grays of a row's palette indices. Returns whether all are known; an unknown one counts as 0. Most of a
// screen is long runs of one colour. So eight pixels that equal the eight before them are not looked up again.
bool LookUp(const uint8_t* __restrict indices, int width, const uint16_t* __restrict entries,
            uint8_t* __restrict grays) {
  constexpr int kRun = 8;
  uint16_t seen = 0;
  uint64_t run, run_before = 0, grays_of_run = 0;
  int x = 0;
  for (; x + kRun <= width; x += kRun) {
    memcpy(&run, indices + x, kRun);
    if (x == 0 || run != run_before) {
      run_before = run;
      uint8_t looked_up[kRun];
      for (int i = 0; i < kRun; ++i) {
        const uint16_t entry = entries[indices[x + i]];
        seen |= entry;
        looked_up[i] = entry;
      }
      memcpy(&grays_of_run, looked_up, kRun);
    }
    memcpy(grays + x, &grays_of_run, kRun);
  }
  for (; x < width; ++x) {
    seen |= entries[indices[x]];
    grays[x] = entries[indices[x]];
  }
  return !(seen & kUnknownEntry);
}

void Maximum(const uint8_t* __restrict row, int width, uint8_t* __restrict pooled) {
  for (int x = 0; x < width; ++x) pooled[x] = std::max(pooled[x], row[x]);
}

// The vertical part of the fast code: two rows of a frame from five rows of the screen. `sums` has the weighted sums of
// the pixels that the frame's pixels cover in each of the five.
SCALABLE_AGENTS_INLINE void AverageRows(const uint16_t* sums, uint8_t* to) {
  for (int y = 0; y < 2; ++y, to += kFrame.width) {
    // 2, 2, 1 and 1, 2, 2 are the shares.
    const uint16_t* const row = sums + 2 * y * kLanes;
    const uint16_t first = y ? 1 : 2, last = 3 - first;
    for (int x = 0; x < kFrame.width; ++x) {
      to[x] = Average(first * row[x] + 2 * row[kLanes + x] + last * row[2 * kLanes + x]);
    }
  }
}

// Moves the frames of stacks [size, stack] by one, and puts the newest frame behind them.
void Push(const uint8_t* __restrict newest, int64_t size, int stack, uint8_t* __restrict stacks) {
  if (stack == 4) {  // The compiler makes wide instructions of this loop.
    for (int64_t i = 0; i < size; ++i) {
      uint32_t frames;
      memcpy(&frames, stacks + 4 * i, 4);
      frames = frames >> 8 | static_cast<uint32_t>(newest[i]) << 24;  // The lowest byte is the first one in memory.
      memcpy(stacks + 4 * i, &frames, 4);
    }
    return;
  }
  for (int64_t i = 0; i < size; ++i) {
    uint8_t* const frames = stacks + i * stack;
    memmove(frames, frames + 1, stack - 1);
    frames[stack - 1] = newest[i];
  }
}

}  // namespace

Instructions BestInstructions() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return Instructions::kAvx2;
#endif
  return Instructions::kPlain;
}

std::vector<Cover> AreaCovers(int from, int to) {
  const int64_t divisor = std::gcd(from, to), of_input = to / divisor, of_output = from / divisor;
  std::vector<Cover> covers(to);
  for (int64_t i = 0; i < to; ++i) {
    const int64_t begin = i * of_output, end = begin + of_output;
    covers[i].first = begin / of_input;
    for (int64_t j = covers[i].first; j * of_input < end; ++j) {
      covers[i].shares.push_back(std::min(end, (j + 1) * of_input) - std::max(begin, j * of_input));
    }
  }
  return covers;
}

// An output pixel is the mean of the pixels that it covers, weighted by their shares. Halves are rounded up. Images
// must have less than 2^18 pixels.
class Resize {
 public:
  Resize(Size from, Size to)
      : from_(from), rows_(AreaCovers(from.height, to.height)), columns_(AreaCovers(from.width, to.width)) {
    for (const Cover& column : columns_)
      most_covered_ = std::max(most_covered_, static_cast<int>(column.shares.size()));
    for (Cover& column : columns_) {
      firsts_.push_back(column.first);
      column.shares.resize(most_covered_);
      flat_shares_.insert(flat_shares_.end(), column.shares.begin(), column.shares.end());
    }
    if (Equal(from, kScreen) && Equal(to, kFrame)) PrepareFastCode();
  }

  // The number of rows that `Rows` makes.
  int num_rows() const { return is_fast_ ? 2 : 1; }

  // Makes the rows from y on of the resized image, where y is a multiple of `num_rows`.
  void Rows(const uint8_t* from, int y, Instructions instructions, uint8_t* to) const {
    if (!is_fast_) return AnySize(from, rows_[y], to);
#if defined(__x86_64__)
    if (instructions != Instructions::kPlain) return Avx2(from + y / 2 * 5 * kScreen.width, to);
#endif
    for (int i = 0; i < 2; ++i) Plain(from, rows_[y + i], to + i * kFrame.width);
  }

 private:
  static constexpr int kGroup = 7;  // Outputs of a row whose inputs are within 16 bytes.
  static constexpr int kGroups = kFrame.width / kGroup;

  void AnySize(const uint8_t* from, const Cover& row, uint8_t* to) const {
    const uint32_t total = Total(row) * column_total_;
    // sum / total is sum * reciprocal / 2^44, rounded down: for totals below 2^18 and averages below 256 the error of
    // the reciprocal is too small to reach the next whole number.
    const uint64_t reciprocal = ((uint64_t{1} << 44) + total - 1) / total;
    std::vector<uint32_t> sums(from_.width + most_covered_);
    for (size_t j = 0; j < row.shares.size(); ++j) {
      const uint8_t* const pixels = from + (row.first + j) * from_.width;
      for (int x = 0; x < from_.width; ++x) sums[x] += row.shares[j] * pixels[x];
    }
    const uint32_t* share = flat_shares_.data();
    for (int first : firsts_) {
      uint32_t sum = total / 2;
      for (int j = 0; j < most_covered_; ++j) sum += *share++ * sums[first + j];
      *to++ = sum * reciprocal >> 44;
    }
  }

  void Plain(const uint8_t* from, const Cover& row, uint8_t* to) const {
    uint16_t of_columns[kScreen.width + 1], of_pixels[kFrame.width];
    of_columns[kScreen.width] = 0;  // The last output covers two columns only.
    const uint8_t* const pixels = from + row.first * kScreen.width;
    const uint16_t first = row.shares[0], second = row.shares[1], third = row.shares[2];
    for (int x = 0; x < kScreen.width; ++x) {
      of_columns[x] = first * pixels[x] + second * pixels[kScreen.width + x] + third * pixels[2 * kScreen.width + x];
    }
    const uint32_t* share = flat_shares_.data();
    for (int x = 0; x < kFrame.width; ++x, share += 3) {
      const uint16_t* const columns = of_columns + firsts_[x];
      of_pixels[x] = share[0] * columns[0] + share[1] * columns[1] + share[2] * columns[2];
    }
    for (int x = 0; x < kFrame.width; ++x) to[x] = Average(of_pixels[x]);
  }

  // Makes the arguments of shuffles that bring the covered pixels of a row to their outputs: the first two of each
  // output as a pair, and the third one with a share of zero beside it.
  void PrepareFastCode() {
    is_fast_ = true;
    for (int x = 0; x < kFrame.width; ++x) {
      const Cover& cover = columns_[x];
      int shares[4] = {};
      std::copy(cover.shares.begin(), cover.shares.end(), shares);
      const int group = x / kGroup, lane = x % kGroup;
      const int base = std::min(columns_[group * kGroup].first, from_.width - 16);  // Nothing is read beyond the row.
      group_first_[group] = base;
      for (int j = 0; j < 4; ++j) {
        const int place = std::min(cover.first + j, from_.width - 1);
        index_[j / 2][group][2 * lane + j % 2] = shares[j] ? place - base : 0;
        share_[j / 2][group][2 * lane + j % 2] = shares[j];
      }
    }
  }

#if defined(__x86_64__)
  SCALABLE_AGENTS_AVX2 void Avx2(const uint8_t* from, uint8_t* to) const {
    uint16_t sums[5 * kLanes];
    for (int i = 0; i < 5; ++i, from += kScreen.width) {
      for (int group = 0; group < kGroups; ++group) {
        const __m128i pixels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + group_first_[group]));
        __m128i sum = _mm_setzero_si128();
        for (int part = 0; part < 2; ++part) {
          const __m128i index = _mm_load_si128(reinterpret_cast<const __m128i*>(index_[part][group]));
          const __m128i share = _mm_load_si128(reinterpret_cast<const __m128i*>(share_[part][group]));
          sum = _mm_add_epi16(sum, _mm_maddubs_epi16(_mm_shuffle_epi8(pixels, index), share));
        }
        _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + i * kLanes + group * kGroup), sum);
      }
    }
    AverageRows(sums, to);
  }
#endif

  const Size from_;
  const std::vector<Cover> rows_;
  std::vector<Cover> columns_;  // All with `most_covered_` shares; the shares beyond a cover are zeros.
  const int column_total_ = Total(columns_[0]);
  int most_covered_ = 0;
  std::vector<int> firsts_;
  std::vector<uint32_t> flat_shares_;
  bool is_fast_ = false;
  int group_first_[kGroups] = {};
  alignas(64) uint8_t index_[2][kGroups][16] = {};
  alignas(64) int8_t share_[2][kGroups][16] = {};
};

PixelPass::PixelPass(Size screen, Size observation, int stack, Instructions instructions)
    : screen_(screen),
      observation_(observation),
      stack_(stack),
      instructions_(instructions),
      resize_(std::make_unique<Resize>(screen, observation)) {
  grays_.fill(kUnknown);
}

PixelPass::~PixelPass() = default;

bool PixelPass::Add(const uint8_t* indices, bool is_first, uint8_t* pooled) const {
  uint16_t entries[256];
  for (int index = 0; index < 256; ++index) entries[index] = grays_[index] == kUnknown ? kUnknownEntry : grays_[index];
  bool is_known = true;
  std::vector<uint8_t> row(screen_.width);
  for (int y = 0; y < screen_.height; ++y, indices += screen_.width, pooled += screen_.width) {
    // Many rows are the same as the one above.
    if (y == 0 || memcmp(indices, indices - screen_.width, screen_.width) != 0) {
      is_known &= LookUp(indices, screen_.width, entries, row.data());
    }
    if (is_first) {
      memcpy(pooled, row.data(), screen_.width);
    } else {
      Maximum(row.data(), screen_.width, pooled);
    }
  }
  return is_known;
}

void PixelPass::AddGray(const uint8_t* indices, const uint8_t* gray, bool is_first, uint8_t* pooled) {
  for (int64_t i = 0; i < int64_t{screen_.height} * screen_.width; ++i) {
    grays_[indices[i]] = gray[i];
    pooled[i] = is_first ? gray[i] : std::max(pooled[i], gray[i]);
  }
}

void PixelPass::Observe(const uint8_t* pooled, uint8_t* stack) const {
  const int num_rows = resize_->num_rows(), size = num_rows * observation_.width;
  std::vector<uint8_t> newest(size);
  for (int y = 0; y < observation_.height; y += num_rows, stack += size * stack_) {
    resize_->Rows(pooled, y, instructions_, newest.data());
    Push(newest.data(), size, stack_, stack);
  }
}

}  // namespace scalable_agents
