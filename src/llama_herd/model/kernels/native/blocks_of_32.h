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
  static constexpr int TYPE = 2, BLOCK = 32, BLOCK_BYTES = 18, BITS = 4, ZERO = 8;
  static constexpr bool HAS_TWO_SCALES = false, HAS_MINIMA = false;

  static inline Words four(Rows rows, int, int i) { return nibbles(rows, 0, i); }
  static inline Scales scales(Rows rows, int) { return of_both_halves(rows.half(4)); }
};

// As Q4_0, with the smallest value beside the scale.
struct Q4_1 {
  static constexpr int TYPE = 3, BLOCK = 32, BLOCK_BYTES = 20, BITS = 4, ZERO = 0;
  static constexpr bool HAS_TWO_SCALES = false, HAS_MINIMA = true;

  static inline Words four(Rows rows, int, int i) { return nibbles(rows, 0, i); }
  static inline Scales scales(Rows rows, int) {
    return of_both_halves(rows.half(4), subtract(zeros(), rows.half(4, 1)));
  }
};

// As Q4_0, with a word of fifth bits before the nibbles, those of columns in order.
struct Q5_0 {
  static constexpr int TYPE = 6, BLOCK = 32, BLOCK_BYTES = 22, BITS = 5, ZERO = 16;
  static constexpr bool HAS_TWO_SCALES = false, HAS_MINIMA = false;

  static inline Words four(Rows rows, int, int i) {
    constexpr uint32_t SPREAD = 1 << 4 | 1 << 11 | 1 << 18 | 1 << 25;  // bit n of a nibble stands above bit 3 of byte n
    const Words fifth = multiply_words(masked(shift_right(rows.word(0), 4 * i), 15), all_words(SPREAD));
    return choose(all_words(0x0f0f0f0f), nibbles(rows, 1, i), fifth);
  }
  static inline Scales scales(Rows rows, int) { return of_both_halves(rows.half(5)); }
};

// As Q5_0, with the smallest value beside the scale.
struct Q5_1 {
  static constexpr int TYPE = 7, BLOCK = 32, BLOCK_BYTES = 24, BITS = 5, ZERO = 0;
  static constexpr bool HAS_TWO_SCALES = false, HAS_MINIMA = true;

  static inline Words four(Rows rows, int slice, int i) { return Q5_0::four(rows, slice, i); }
  static inline Scales scales(Rows rows, int) {
    return of_both_halves(rows.half(5), subtract(zeros(), rows.half(5, 1)));
  }
};

// 32 signed bytes.
struct Q8_0 {
  static constexpr int TYPE = 8, BLOCK = 32, BLOCK_BYTES = 34, BITS = 8, ZERO = 128;
  static constexpr bool HAS_TWO_SCALES = false, HAS_MINIMA = false;

  static inline Words four(Rows rows, int, int i) { return exclusive_or(rows.word(i), all_words(0x80808080)); }
  static inline Scales scales(Rows rows, int) { return of_both_halves(rows.half(8)); }
};

}  // namespace herd
