// Blocks whose nibbles are places in a table of 16 numbers.
#pragma once

#include "blocks_of_32.h"

namespace herd {

// Of IQ4_NL and IQ4_XS: -127 to 113, here with 128 added, so none is negative.
alignas(16) static const uint8_t IQ4_NUMBERS[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                       129, 141, 153, 166, 181, 197, 217, 241};

static inline Words iq4_numbers(Words nibbles) { return look_up(IQ4_NUMBERS, masked(nibbles, 0x0f0f0f0f)); }

// As Q4_0.
struct IQ4_NL {
  static constexpr int TYPE = 20, BLOCK = 32, BLOCK_BYTES = 18, BITS = 8, ZERO = 128;
  static constexpr bool HAS_TWO_SCALES = false, HAS_MINIMA = false;

  static inline Words four(Rows rows, int, int i) { return iq4_numbers(nibbles(rows, 0, i)); }
  static inline Scales scales(Rows rows, int slice) { return Q4_0::scales(rows, slice); }
};

// 4 bytes of scales, the lowest 4 of the 6 bits of each, and 128 of nibbles, of each slice as IQ4_NL has them; then the
// scale of all, and beside it 16 bits with the two highest of each.
struct IQ4_XS {
  static constexpr int TYPE = 23, BLOCK = 256, BLOCK_BYTES = 136, BITS = 8, ZERO = 128;
  static constexpr bool HAS_TWO_SCALES = false, HAS_MINIMA = false;

  static inline Words four(Rows rows, int slice, int i) { return iq4_numbers(nibbles(rows, 1 + 4 * slice, i)); }
  static inline Scales scales(Rows rows, int slice) {
    const Words low = shift_right(rows.word(0), 4 * slice), high = shift_right(rows.bits(33, 1), 2 * slice);
    const Floats fine = subtract(whole(choose(all_words(15), low, shift_left(high, 4)), 63), all(32));
    return of_both_halves(multiply(rows.half(33), fine));
  }
};

// Of MXFP4: 0 to 6 in steps that grow, and the same below zero; here doubled, with 12 added.
alignas(16) static const uint8_t MXFP4_NUMBERS[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// 2^(number - 64), of a number from 0 to 128.
static inline Floats whole_power(Words number) { return as_floats(shift_left(add_words(number, all_words(63)), 23)); }

// 16 bytes of nibbles, as Q4_0 has them, and a byte: the exponent of the scale, 128 the one of 1. The smallest scales are
// no normal numbers, but products of two such.
struct MXFP4 {
  static constexpr int TYPE = 39, BLOCK = 32, BLOCK_BYTES = 17, BITS = 5, ZERO = 12;
  static constexpr bool HAS_TWO_SCALES = false, HAS_MINIMA = false;

  static inline Words four(Rows rows, int, int i) {
    return look_up(MXFP4_NUMBERS, masked(nibbles(rows, 0, i), 0x0f0f0f0f));
  }
  static inline Scales scales(Rows rows, int) {
    const Words exponent = rows.byte(4), half = shift_right(exponent, 1);
    const Words other_half = shift_right(add_words(exponent, all_words(1)), 1);
    return of_both_halves(multiply(whole_power(half), whole_power(other_half)));
  }
};

}  // namespace herd
