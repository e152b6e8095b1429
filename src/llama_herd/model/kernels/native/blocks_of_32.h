// Blocks of 32 values with a scale.
#pragma once

#include "rows.h"

namespace herd {

// 16 bytes: values 0-15 in their low nibbles, 16-31 above.
struct Q4_0 {
  static constexpr int BLOCK = 32, BLOCK_BYTES = 18, BITS = 4, ZERO = 8;
  static constexpr bool HAS_TWO_SCALES = false, HAS_MINIMA = false;

  static inline Words four(Rows rows, int, int i) {
    return i < 4 ? rows.word(i) : shift_right(rows.word(i - 4), 4);
  }
  static inline Scales scales(Rows rows, int) {
    const Floats scale = rows.half(4);
    return {{scale, scale}, zeros()};
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
