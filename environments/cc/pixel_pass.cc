#include "environments/cc/pixel_pass.h"

#include <string.h>

#include <algorithm>
#include <numeric>

#if defined(__x86_64__)
#include <immintrin.h>
#define SCALABLE_AGENTS_AVX2 __attribute__((target("avx2")))
#define SCALABLE_AGENTS_AVX512 __attribute__((target("avx2,avx512f,avx512bw,avx512vl,avx512vbmi")))
#endif
#define SCALABLE_AGENTS_INLINE inline __attribute__((always_inline))

namespace scalable_agents {
namespace {

constexpr uint8_t kUnknown = 255;

// The sizes of Atari's screens and of the papers' frames. Only these have fast code.
constexpr Size kScreen = {210, 160}, kFrame = {84, 84};
constexpr int kLanes = 96;              // 84 sums, and room for whole vectors.
constexpr int kPixelsOfFrame = 5 * 40;  // The sum of the shares of a frame's pixel, on both axes.

bool Equal(Size a, Size b) { return a.height == b.height && a.width == b.width; }

int Total(const Cover& cover) { return std::accumulate(cover.shares.begin(), cover.shares.end(), 0); }

// Adds palette indices [begin, end) to the maximum. Returns whether one has an unknown gray, which counts as 0.
SCALABLE_AGENTS_INLINE bool AddPlain(const uint8_t* __restrict indices, int64_t begin, int64_t end,
                                     const uint8_t* __restrict grays, bool is_first, uint8_t* __restrict pooled) {
  uint16_t entries[256];  // The gray, and bit 8 if it is unknown.
  for (int index = 0; index < 256; ++index) entries[index] = grays[index] == kUnknown ? 256 : grays[index];
  uint16_t seen = 0;
  for (int64_t i = begin; i < end; ++i) {
    const uint16_t entry = entries[indices[i]];
    seen |= entry;
    pooled[i] = std::max(static_cast<uint8_t>(entry), is_first ? uint8_t{0} : pooled[i]);
  }
  return seen & 256;
}

#if defined(__x86_64__)

SCALABLE_AGENTS_AVX2 bool AddAvx2(const uint8_t* indices, int64_t count, const uint8_t* grays, bool is_first,
                                  uint8_t* pooled) {
  __m256i rows[16];  // 16 grays each, twice, since a shuffle takes bytes of its own half only.
  for (int row = 0; row < 16; ++row) {
    rows[row] = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(grays + 16 * row)));
  }
  const __m256i low = _mm256_set1_epi8(15), unknown = _mm256_set1_epi8(static_cast<char>(kUnknown));
  __m256i found = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256i index = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(indices + i));
    const __m256i column = _mm256_and_si256(index, low);
    const __m256i row = _mm256_and_si256(_mm256_srli_epi16(index, 4), low);
    __m256i gray = _mm256_setzero_si256();
    for (int number = 0; number < 16; ++number) {
      const __m256i is_row = _mm256_cmpeq_epi8(row, _mm256_set1_epi8(static_cast<char>(number)));
      gray = _mm256_or_si256(gray, _mm256_and_si256(is_row, _mm256_shuffle_epi8(rows[number], column)));
    }
    const __m256i is_unknown = _mm256_cmpeq_epi8(gray, unknown);
    found = _mm256_or_si256(found, is_unknown);
    gray = _mm256_andnot_si256(is_unknown, gray);
    __m256i* const to = reinterpret_cast<__m256i*>(pooled + i);
    _mm256_storeu_si256(to, is_first ? gray : _mm256_max_epu8(gray, _mm256_loadu_si256(to)));
  }
  return AddPlain(indices, i, count, grays, is_first, pooled) || !_mm256_testz_si256(found, found);
}

SCALABLE_AGENTS_AVX512 bool AddAvx512(const uint8_t* indices, int64_t count, const uint8_t* grays, bool is_first,
                                      uint8_t* pooled) {
  const __m512i a = _mm512_loadu_si512(grays), b = _mm512_loadu_si512(grays + 64), c = _mm512_loadu_si512(grays + 128),
                d = _mm512_loadu_si512(grays + 192);
  const __m512i unknown = _mm512_set1_epi8(static_cast<char>(kUnknown));
  __mmask64 found = 0;
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const __m512i index = _mm512_loadu_si512(indices + i);
    __m512i gray = _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), _mm512_permutex2var_epi8(a, index, b),
                                          _mm512_permutex2var_epi8(c, index, d));
    const __mmask64 is_known = _mm512_cmpneq_epi8_mask(gray, unknown);
    found |= ~is_known;
    gray = _mm512_maskz_mov_epi8(is_known, gray);
    _mm512_storeu_si512(pooled + i, is_first ? gray : _mm512_max_epu8(gray, _mm512_loadu_si512(pooled + i)));
  }
  return AddPlain(indices, i, count, grays, is_first, pooled) || found != 0;
}

// The vertical part of the fast code: the rows of a frame from the rows of sums. The compiler makes wide instructions
// of it; with those of AVX-512 it takes longer.
SCALABLE_AGENTS_AVX2 void AverageRows(const uint16_t* sums, uint8_t* to) {
  for (int y = 0; y < kFrame.height; ++y, to += kFrame.width) {
    // Five rows of the screen become two of the frame: 2, 2, 1 and 1, 2, 2 are the shares.
    const uint16_t* const row = sums + (y / 2 * 5 + y % 2 * 2) * kLanes;
    const uint16_t first = y % 2 ? 1 : 2, last = 3 - first;
    for (int x = 0; x < kFrame.width; ++x) {
      const uint16_t sum = first * row[x] + 2 * row[kLanes + x] + last * row[2 * kLanes + x] + kPixelsOfFrame / 2;
      // sum / 200, which is at most 51,100 / 200: an eighth of it, times 41,944 / 2^20, which is 1 / 25 and a little
      // more.
      to[x] = static_cast<uint16_t>(static_cast<uint32_t>(static_cast<uint16_t>(sum >> 3)) * 41944u >> 16) >> 4;
    }
  }
}

#endif

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
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vbmi")) {
    return Instructions::kAvx512;
  }
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

// The sum of the pixels that an output pixel covers, times their shares, is divided by the sum of the shares; halves
// are rounded up. For images of less than 2^18 pixels.
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

  static constexpr int kReadBeyond = 16;  // Bytes after the image that are read, and are not used.

  void operator()(const uint8_t* from, Instructions instructions, uint8_t* to) const {
    if (!is_fast_) instructions = Instructions::kPlain;
    switch (instructions) {
#if defined(__x86_64__)
      case Instructions::kAvx512:
        return Avx512(from, to);
      case Instructions::kAvx2:
        return Avx2(from, to);
#endif
      default:
        return Plain(from, to);
    }
  }

 private:
  static constexpr int kGroup = 7;  // Outputs of a row whose inputs are within 16 bytes.
  static constexpr int kGroups = kFrame.width / kGroup;

  void Plain(const uint8_t* from, uint8_t* to) const {
    const uint32_t total = Total(rows_[0]) * Total(columns_[0]);
    // sum / total is sum * reciprocal / 2^44, rounded down: for totals below 2^18 and averages below 256 the error of
    // the reciprocal is too small to reach the next whole number.
    const uint64_t reciprocal = ((uint64_t{1} << 44) + total - 1) / total;
    std::vector<uint32_t> sums(from_.width + most_covered_);
    for (const Cover& row : rows_) {
      std::fill(sums.begin(), sums.end(), 0);
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
  }

  // Makes the arguments of shuffles that bring the covered pixels of a row to their outputs: the first two of each
  // output as a pair, and the third one with a share of zero beside it.
  void PrepareFastCode() {
    is_fast_ = true;
    for (int x = 0; x < kFrame.width; ++x) {
      const Cover& cover = columns_[x];
      int shares[4] = {};
      std::copy(cover.shares.begin(), cover.shares.end(), shares);
      const int group = x / kGroup, lane = x % kGroup, base = columns_[group * kGroup].first;
      group_first_[group] = base;
      for (int j = 0; j < 4; ++j) {
        const int place = std::min(cover.first + j, from_.width - 1);
        const int byte = 2 * x + j % 2;
        wide_index_[j / 2][byte] = place - (x < 64 ? 0 : 64);
        wide_share_[j / 2][byte] = shares[j];
        index_[j / 2][group][2 * lane + j % 2] = shares[j] ? place - base : 0;
        share_[j / 2][group][2 * lane + j % 2] = shares[j];
      }
    }
  }

#if defined(__x86_64__)
  SCALABLE_AGENTS_AVX2 void Avx2(const uint8_t* from, uint8_t* to) const {
    alignas(64) uint16_t sums[kScreen.height * kLanes];
    for (int y = 0; y < kScreen.height; ++y) {
      const uint8_t* const row = from + y * kScreen.width;
      for (int group = 0; group < kGroups; ++group) {
        const __m128i pixels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + group_first_[group]));
        __m128i sum = _mm_setzero_si128();
        for (int part = 0; part < 2; ++part) {
          const __m128i index = _mm_load_si128(reinterpret_cast<const __m128i*>(index_[part][group]));
          const __m128i share = _mm_load_si128(reinterpret_cast<const __m128i*>(share_[part][group]));
          sum = _mm_add_epi16(sum, _mm_maddubs_epi16(_mm_shuffle_epi8(pixels, index), share));
        }
        _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + y * kLanes + group * kGroup), sum);
      }
    }
    AverageRows(sums, to);
  }

  SCALABLE_AGENTS_AVX512 void Avx512(const uint8_t* from, uint8_t* to) const {
    alignas(64) uint16_t sums[kScreen.height * kLanes];
    __m512i index[2][3], share[2][3];
    for (int part = 0; part < 2; ++part) {
      for (int i = 0; i < 3; ++i) {
        index[part][i] = _mm512_load_si512(wide_index_[part] + 64 * i);
        share[part][i] = _mm512_load_si512(wide_share_[part] + 64 * i);
      }
    }
    for (int y = 0; y < kScreen.height; ++y) {
      const uint8_t* const row = from + y * kScreen.width;
      const __m512i a = _mm512_loadu_si512(row), b = _mm512_loadu_si512(row + 64);
      const __m512i c = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 128)));
      for (int i = 0; i < 3; ++i) {  // 32 outputs each.
        const __m512i first = i < 2 ? a : b, second = i < 2 ? b : c;
        const __m512i pair = _mm512_maddubs_epi16(_mm512_permutex2var_epi8(first, index[0][i], second), share[0][i]);
        const __m512i third = _mm512_maddubs_epi16(_mm512_permutex2var_epi8(first, index[1][i], second), share[1][i]);
        _mm512_store_si512(sums + y * kLanes + 32 * i, _mm512_add_epi16(pair, third));
      }
    }
    AverageRows(sums, to);
  }
#endif

  const Size from_;
  const std::vector<Cover> rows_;
  std::vector<Cover> columns_;  // All with `most_covered_` shares; those behind the cover are zeros.
  int most_covered_ = 0;
  std::vector<int> firsts_;
  std::vector<uint32_t> flat_shares_;
  bool is_fast_ = false;
  int group_first_[kGroups] = {};
  alignas(64) uint8_t index_[2][kGroups][16] = {};
  alignas(64) int8_t share_[2][kGroups][16] = {};
  alignas(64) uint8_t wide_index_[2][2 * kLanes] = {};
  alignas(64) int8_t wide_share_[2][2 * kLanes] = {};
};

PixelPass::PixelPass(Size screen, Size observation, int stack, Instructions instructions)
    : stack_(stack),
      instructions_(instructions),
      resize_(std::make_unique<Resize>(screen, observation)),
      num_pixels_(int64_t{screen.height} * screen.width),
      pooled_(num_pixels_ + Resize::kReadBeyond),
      newest_(static_cast<size_t>(observation.height) * observation.width),
      frames_(newest_.size() * stack) {
  grays_.fill(kUnknown);
}

PixelPass::~PixelPass() = default;

bool PixelPass::Add(const uint8_t* indices, bool is_first) {
  switch (instructions_) {
#if defined(__x86_64__)
    case Instructions::kAvx512:
      return !AddAvx512(indices, num_pixels_, grays_.data(), is_first, pooled_.data());
    case Instructions::kAvx2:
      return !AddAvx2(indices, num_pixels_, grays_.data(), is_first, pooled_.data());
#endif
    default:
      return !AddPlain(indices, 0, num_pixels_, grays_.data(), is_first, pooled_.data());
  }
}

void PixelPass::AddGray(const uint8_t* indices, const uint8_t* gray, bool is_first) {
  for (int64_t i = 0; i < num_pixels_; ++i) {
    grays_[indices[i]] = gray[i];
    pooled_[i] = is_first ? gray[i] : std::max(pooled_[i], gray[i]);
  }
}

void PixelPass::Observe(uint8_t* stack) {
  (*resize_)(pooled_.data(), instructions_, newest_.data());
  Push(newest_.data(), newest_.size(), stack_, frames_.data());
  memcpy(stack, frames_.data(), frames_.size());
}

void PixelPass::Clear() { std::fill(frames_.begin(), frames_.end(), 0); }

}  // namespace scalable_agents
