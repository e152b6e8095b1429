// K-quants: blocks of 256 values, whose scales are quantised themselves.
#pragma once

#include "rows.h"

namespace herd {

// 16 bytes with a scale and a minimum for each half of a slice, 64 of two bits, each 8 words of them for four slices,
// and the scales of both.
struct Q2_K {
  static constexpr int TYPE = 10, BLOCK = 256, BLOCK_BYTES = 84, BITS = 2, ZERO = 0;
  static constexpr bool HAS_TWO_SCALES = true, HAS_MINIMA = true;

  static inline Words four(Rows rows, int slice, int i) {
    return shift_right(rows.word(4 + slice / 4 * 8 + i), 2 * (slice % 4));
  }
  static inline Scales scales(Rows rows, int slice) {
    const Words first = shift_right(rows.word(slice / 2), 16 * (slice % 2)), second = shift_right(first, 8);
    const Words first_minimum = shift_right(first, 4), second_minimum = shift_right(second, 4);
    const Floats scale = rows.half(20), minimum = rows.half(20, 1);
    return {{multiply(scale, whole(first, 15)), multiply(scale, whole(second, 15))},
            {multiply(minimum, whole(first_minimum, 15)), multiply(minimum, whole(second_minimum, 15))}};
  }
};

// 32 bytes with a third bit for each slice, 64 of two bits, 12 of scales of 6 bits, and the scale of all. The words of
// two bits serve four slices each. Of a scale four bits stand in word 24 or 25, those above in word 26.
struct Q3_K {
  static constexpr int TYPE = 11, BLOCK = 256, BLOCK_BYTES = 110, BITS = 3, ZERO = 4;
  static constexpr bool HAS_TWO_SCALES = true, HAS_MINIMA = false;

  static inline Words four(Rows rows, int slice, int i) {
    const Words low = shift_right(rows.word(8 + slice / 4 * 8 + i), 2 * (slice % 4));
    return choose(all_words(0x03030303), low, rotate_left(rows.word(i), (2 - slice) & 31));
  }
  static inline Scales scales(Rows rows, int slice) {
    const int shift = 16 * (slice % 2);
    const Words low = shift_right(rows.word(24 + slice % 4 / 2), shift + 4 * (slice / 4));
    const Words high = shift_right(rows.word(26), shift + slice / 2 * 2);
    const Words two = choose(all_words(0x0f0f0f0f), low, shift_left(high, 4));
    const Floats scale = rows.half(27), zero = all(32);
    return of_halves(multiply(scale, subtract(whole(two, 63), zero)),
                     multiply(scale, subtract(whole(shift_right(two, 8), 63), zero)));
  }
};

// 128 bytes of nibbles, 64 of the two bits above them, 16 scales of signed bytes, and the scale of all.
// The words of nibbles serve slices 0 and 2, 1 and 3, 4 and 6, 5 and 7; those of bits four slices.
struct Q6_K {
  static constexpr int TYPE = 14, BLOCK = 256, BLOCK_BYTES = 210, BITS = 6, ZERO = 32;
  static constexpr bool HAS_TWO_SCALES = true, HAS_MINIMA = false;

  static inline Words four(Rows rows, int slice, int i) {
    const int half = slice / 4, quarter = slice % 4;
    const Words low = shift_right(rows.word(16 * half + 8 * (quarter % 2) + i), 4 * (quarter / 2));
    const Words high = shift_right(rows.word(32 + 8 * half + i), 2 * quarter);
    return choose(all_words(0x0f0f0f0f), low, shift_left(high, 4));
  }
  static inline Scales scales(Rows rows, int slice) {
    const Words two = shift_right(rows.word(48 + slice / 2), 16 * (slice % 2));
    const Floats scale = rows.half(52);
    return of_halves(multiply(scale, signed_byte(two, 0)), multiply(scale, signed_byte(two, 1)));
  }
};

// Of a slice of Q4_K or Q5_K, which begin with 12 bytes of scales and minima of 6 bits, and end with the scales of
// both. Of slices 0-3 these are the lowest of words 0 and 1; of slices 4-7 four bits stand in word 2, and the two above
// them in the highest of words 0 and 1.
static inline Scales coarse_and_fine(Rows rows, int slice, int num_words) {
  const int shift = 8 * (slice % 4);
  Words scale = shift_right(rows.word(0), shift), minimum = shift_right(rows.word(1), shift);
  if (slice >= 4) {
    const Words both = shift_right(rows.word(2), shift), low = all_words(15);
    scale = choose(low, both, shift_right(scale, 2));
    minimum = choose(low, shift_right(both, 4), shift_right(minimum, 2));
  }
  return of_both_halves(multiply(rows.half(num_words), whole(scale, 63)),
                        multiply(rows.half(num_words, 1), whole(minimum, 63)));
}

// Behind the scales 128 bytes of nibbles. Each 8 words of them serve two slices.
struct Q4_K {
  static constexpr int TYPE = 12, BLOCK = 256, BLOCK_BYTES = 144, BITS = 4, ZERO = 0;
  static constexpr bool HAS_TWO_SCALES = false, HAS_MINIMA = true;

  static inline Words four(Rows rows, int slice, int i) {
    return shift_right(rows.word(3 + slice / 2 * 8 + i), 4 * (slice % 2));
  }
  static inline Scales scales(Rows rows, int slice) { return coarse_and_fine(rows, slice, 35); }
};

// As Q4_K, with 32 bytes before the nibbles, which have a fifth bit for each slice.
struct Q5_K {
  static constexpr int TYPE = 13, BLOCK = 256, BLOCK_BYTES = 176, BITS = 5, ZERO = 0;
  static constexpr bool HAS_TWO_SCALES = false, HAS_MINIMA = true;

  static inline Words four(Rows rows, int slice, int i) {
    const Words low = shift_right(rows.word(11 + slice / 2 * 8 + i), 4 * (slice % 2));
    return choose(all_words(0x0f0f0f0f), low, rotate_left(rows.word(3 + i), (4 - slice) & 31));
  }
  static inline Scales scales(Rows rows, int slice) { return coarse_and_fine(rows, slice, 43); }
};

}  // namespace herd
