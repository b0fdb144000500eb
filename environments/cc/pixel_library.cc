// The library that environments/pixel_pass.py loads through ctypes: PixelPass with C's calling convention.
#include <cstdint>

#include "environments/cc/pixel_pass.h"

using scalable_agents::BestInstructions;
using scalable_agents::Instructions;
using scalable_agents::PixelPass;

extern "C" {

int scalable_agents_best_instructions() { return static_cast<int>(BestInstructions()); }

// Returns a new pass, for scalable_agents_pixels_delete.
PixelPass* scalable_agents_pixels_new(int screen_height, int screen_width, int height, int width, int stack,
                                      int instructions) {
  return new PixelPass({screen_height, screen_width}, {height, width}, stack, static_cast<Instructions>(instructions));
}

void scalable_agents_pixels_delete(PixelPass* pass) { delete pass; }

int scalable_agents_pixels_add(const PixelPass* pass, const uint8_t* indices, int is_first, uint8_t* pooled) {
  return pass->Add(indices, is_first, pooled);
}

void scalable_agents_pixels_add_gray(PixelPass* pass, const uint8_t* indices, const uint8_t* gray, int is_first,
                                     uint8_t* pooled) {
  pass->AddGray(indices, gray, is_first, pooled);
}

void scalable_agents_pixels_observe(const PixelPass* pass, const uint8_t* pooled, uint8_t* stack) {
  pass->Observe(pooled, stack);
}

}  // extern "C"
