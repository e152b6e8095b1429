// Blocks of 32 values with a scale, and of some types a smallest value.
#pragma once

#include "rows.h"

namespace herd {

// Of 16 bytes from a word on: values 0-15 in their low nibbles, 16-31 above.
static inline Words nibbles(Rows rows, int first, int i) {
  return i < 4 ? rows.word(first + i) : shift_right(rows.word(first + i - 4), 4);
}

// 16 bytes of nibbles.
struct Q4_0 {
  static constexpr int BLOCK = 32, BLOCK_BYTES = 18, BITS = 4, ZERO = 8;
  static constexpr bool HAS_TWO_SCALES = false, HAS_MINIMA = false;

  static inline Words four(Rows rows, int, int i) { return nibbles(rows, 0, i); }
  static inline Scales scales(Rows rows, int) {
    const Floats scale = rows.half(4);
    return {{scale, scale}, zeros()};
  }
};

// As Q4_0, with the smallest value beside the scale.
struct Q4_1 {
  static constexpr int BLOCK = 32, BLOCK_BYTES = 20, BITS = 4, ZERO = 0;
  static constexpr bool HAS_TWO_SCALES = false, HAS_MINIMA = true;

  static inline Words four(Rows rows, int, int i) { return nibbles(rows, 0, i); }
  static inline Scales scales(Rows rows, int) {
    const Floats scale = rows.half(4);
    return {{scale, scale}, subtract(zeros(), rows.half(4, 1))};
  }
};

// 32 signed bytes.
struct Q8_0 {
  static constexpr int BLOCK = 32, BLOCK_BYTES = 34, BITS = 8, ZERO = 128;
  static constexpr bool HAS_TWO_SCALES = false, HAS_MINIMA = false;

  static inline Words four(Rows rows, int, int i) { return exclusive_or(rows.word(i), all_words(0x80808080)); }
  static inline Scales scales(Rows rows, int) {
    const Floats scale = rows.half(8);
    return {{scale, scale}, zeros()};
  }
};

}  // namespace herd
