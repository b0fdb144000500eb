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

int scalable_agents_pixels_add(PixelPass* pass, const uint8_t* indices, int is_first) {
  return pass->Add(indices, is_first);
}

void scalable_agents_pixels_add_gray(PixelPass* pass, const uint8_t* indices, const uint8_t* gray, int is_first) {
  pass->AddGray(indices, gray, is_first);
}

void scalable_agents_pixels_observe(PixelPass* pass, uint8_t* stack) { pass->Observe(stack); }

void scalable_agents_pixels_clear(PixelPass* pass) { pass->Clear(); }

}  // extern "C"
