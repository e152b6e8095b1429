// What a type reads of a tile, and the way it says what is there.
//
// Each is read by slices of 32 columns: value = scale x (number - ZERO) - minimum. The numbers of four
// neighbouring columns come in one word, each in the lowest BITS of a byte; what stands above them there is of no
// matter. A slice has one scale and one minimum, or one of both for each half: of columns 0-15, and of 16-31.
// TYPE is a type's number in GGUF.
#pragma once

#include "vector.h"

namespace herd {

struct Scales {
  Floats halves[2];
  Floats minima[2];
};

static inline Scales of_both_halves(Floats scale, Floats minimum = zeros()) {
  return {{scale, scale}, {minimum, minimum}};
}

static inline Scales of_halves(Floats first, Floats second) { return {{first, second}, {zeros(), zeros()}}; }

// As many rows of a tile as a vector has lanes.
struct Rows {
  const uint8_t* tile;
  int first;

  Words word(int number) const { return load_words(tile + 64 * number + 4 * first); }
  Floats half(int num_words, int number = 0) const { return load_halves(behind(num_words, number)); }
  Words bits(int num_words, int number) const { return load_shorts(behind(num_words, number)); }  // of such a number
  Words byte(int num_words) const { return load_bytes(tile + 64 * num_words + first); }  // instead of such numbers

 private:
  const uint8_t* behind(int num_words, int number) const {
    return tile + 64 * num_words + 2 * (TILE_ROWS * number + first);
  }
};

}  // namespace herd
