// Turns a console's screens into an observation: converts them to gray, takes the maximum of several screens, resizes
// it, and stacks the frames. No TensorFlow and no Python. Not thread-safe.
#ifndef SCALABLE_AGENTS_ENVIRONMENTS_CC_PIXEL_PASS_H_
#define SCALABLE_AGENTS_ENVIRONMENTS_CC_PIXEL_PASS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace scalable_agents {

// The instructions that the code uses. The results are the same, bit for bit.
enum class Instructions { kPlain, kAvx2 };

// The fastest instructions that this processor has. There is no code for AVX-512. On an Ice Lake processor, such code
// made the emulator 3 % slower, which cost more time than the code saved.
Instructions BestInstructions();

// The pixels of one axis that an output pixel covers: first, first + 1, ..., and the share of each, as whole numbers.
struct Cover {
  int first;
  std::vector<int> shares;
};

// The cover of each output pixel if `from` pixels become `to`. The shares of each have the same sum, from / gcd.
std::vector<Cover> AreaCovers(int from, int to);

struct Size {
  int height, width;
};

class Resize;  // Makes an image smaller or larger by area averaging.

// Processes the pixels of one environment. `pooled` is memory of the caller, [height, width] of a screen. It has the
// maximum of the screens of a step so far.
class PixelPass {
 public:
  // A screen has palette indices. An observation is [height, width, stack].
  PixelPass(Size screen, Size observation, int stack, Instructions instructions);
  ~PixelPass();

  // Adds a screen to the maximum; the first one begins a new maximum. False if the screen has a colour whose gray is
  // not known yet; then AddGray must follow.
  bool Add(const uint8_t* indices, bool is_first, uint8_t* pooled) const;

  // Like Add, for a screen whose gray pixels are given. Add knows the screen's colours from then on.
  void AddGray(const uint8_t* indices, const uint8_t* gray, bool is_first, uint8_t* pooled);

  // Resizes the maximum and adds it to the stack of the step before, as the newest frame. The oldest one is dropped.
  void Observe(const uint8_t* pooled, uint8_t* stack) const;

 private:
  const Size screen_, observation_;
  const int stack_;
  const Instructions instructions_;
  const std::unique_ptr<const Resize> resize_;
  std::array<uint8_t, 256> grays_;  // By palette index. kUnknown: not known, or known to be this gray.
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_ENVIRONMENTS_CC_PIXEL_PASS_H_
