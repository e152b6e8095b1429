// What the words of a tile mean, by the type of the blocks.
//
// All types are read by slices of 32 columns: value = scale x (number - ZERO) - minimum. The numbers of four
// neighbouring columns come in one word, each in the lowest BITS of a byte; what stands above them there is of no
// matter. A slice has one scale, or one for each half.
#pragma once

#include "vector.h"

namespace herd {

struct Scales {
  Floats halves[2];  // of columns 0-15, and of 16-31
  Floats minimum;
};

// As many rows of a tile as a vector has lanes.
struct Rows {
  const uint8_t* tile;
  int first;

  Words word(int number) const { return load_words(tile + 64 * number + 4 * first); }
  Floats half(int num_words, int number = 0) const {
    return load_halves(tile + 64 * num_words + 2 * (TILE_ROWS * number + first));
  }
};

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

// 128 bytes of nibbles, 64 of the two bits above them, 16 scales of signed bytes, and the scale of all.
// The words of nibbles serve slices 0 and 2, 1 and 3, 4 and 6, 5 and 7; those of bits four slices.
struct Q6_K {
  static constexpr int BLOCK = 256, BLOCK_BYTES = 210, BITS = 6, ZERO = 32;
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
    return {{multiply(scale, signed_byte(two, 0)), multiply(scale, signed_byte(two, 1))}, zeros()};
  }
};

// 12 bytes of scales and minima, 128 of nibbles, and the scales of both. Each 8 words of nibbles serve two slices.
struct Q4_K {
  static constexpr int BLOCK = 256, BLOCK_BYTES = 144, BITS = 4, ZERO = 0;
  static constexpr bool HAS_TWO_SCALES = false, HAS_MINIMA = true;

  static inline Words four(Rows rows, int slice, int i) {
    return shift_right(rows.word(3 + slice / 2 * 8 + i), 4 * (slice % 2));
  }
  // Scales and minima have 6 bits. Of slices 0-3 these are the lowest of words 0 and 1; of slices 4-7 four stand in
  // word 2, and the two above them in the highest of words 0 and 1.
  static inline Scales scales(Rows rows, int slice) {
    const int shift = 8 * (slice % 4);
    Words scale = shift_right(rows.word(0), shift), minimum = shift_right(rows.word(1), shift);
    if (slice >= 4) {
      const Words both = shift_right(rows.word(2), shift), low = all_words(15);
      scale = choose(low, both, shift_right(scale, 2));
      minimum = choose(low, shift_right(both, 4), shift_right(minimum, 2));
    }
    const Floats coarse = rows.half(35), scaled = multiply(coarse, whole(scale, 63));
    return {{scaled, scaled}, multiply(rows.half(35, 1), whole(minimum, 63))};
  }
};

// 32 numbers of bfloat16, which need no reading: a word is two columns, and a tile is what AMX multiplies.
struct Numbers {
  static constexpr int BLOCK = 32, BLOCK_BYTES = 64;
};

template <class Type>
constexpr int64_t tile_bytes() {
  return TILE_ROWS * Type::BLOCK_BYTES;
}

template <class Type>
constexpr int slices_of_tile() {
  return Type::BLOCK / SLICE_COLUMNS;
}

template <class Type>
static inline const uint8_t* row_of_tiles(const Product& p, int64_t number) {
  return p.tiles + number * (p.columns / Type::BLOCK) * tile_bytes<Type>();
}

// 1 + number / 2**BITS, for one column of the four: its bits become the first of a fraction.
template <class Type>
static inline Floats fraction(Words four, int column) {
  const int shift = 23 - Type::BITS - 8 * column;
  const Words placed = shift < 0 ? shift_right(four, -shift) : shift_left(four, shift);
  const Words mask = all_words(((1 << Type::BITS) - 1) << (23 - Type::BITS));
  return as_floats(masked_or(mask, placed, all_words(0x3f800000)));
}

// The way from fractions to values of half a slice: value = fraction x factor + start, in one step.
struct Line {
  Floats factor, start;
};

template <class Type>
static inline Line line_of(const Scales& scales, int half) {
  constexpr float STEPS = 1 << Type::BITS;
  const Floats factor = multiply(scales.halves[half], all(STEPS));
  const Floats start = multiply(scales.halves[half], all(-STEPS - Type::ZERO));
  return {factor, Type::HAS_MINIMA ? subtract(start, scales.minimum) : start};
}

// Fetch what lies so many bytes ahead of slice k into the cache, or a tile ahead: a slice reads from all of its tile.
template <class Type, int BYTES>
static inline void prefetch(const uint8_t* row, int64_t k) {
  constexpr int64_t SLICE_BYTES = tile_bytes<Type>() / slices_of_tile<Type>();
  constexpr int64_t AHEAD = BYTES > tile_bytes<Type>() ? BYTES : tile_bytes<Type>();
#pragma GCC unroll 9
  for (int64_t at = 0; at < SLICE_BYTES; at += 64)
    _mm_prefetch(reinterpret_cast<const char*>(row) + k * SLICE_BYTES + AHEAD + at, _MM_HINT_T0);
}

// So that a thread that another process holds up has little left to do.
constexpr int CHUNKS_A_THREAD = 4;

// Threads that a product has work for: to wake one takes as long as to multiply these bytes by one token.
template <class Type>
static inline int useful_threads(const Product& p) {
  constexpr int64_t BYTES_A_THREAD = 600000, TOKENS_A_READING = 8;  // so many tokens cost as much as to read the tiles
  const int64_t num_bytes = p.row_tiles() * (p.columns / Type::BLOCK) * tile_bytes<Type>();
  const int64_t useful = 1 + num_bytes * (TOKENS_A_READING + p.tokens) / TOKENS_A_READING / BYTES_A_THREAD;
  return useful < p.num_threads ? int(useful) : p.num_threads;
}

}  // namespace herd
