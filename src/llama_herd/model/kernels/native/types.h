// What all types of blocks share: how their tiles follow each other, and how their numbers become values.
#pragma once

#include "blocks_of_32.h"
#include "k_quants.h"
#include "tables.h"

namespace herd {

// 32 numbers of bfloat16, which need no reading: a word is two columns, and a tile is what AMX multiplies.
struct Numbers {
  static constexpr int TYPE = 30, BLOCK = 32, BLOCK_BYTES = 64;
};

template <class... Types, class Call>
static inline bool with_one_of(int type, Call call) {
  return ((type == Types::TYPE && (call(Types()), true)) || ...);
}

// Call with a number of this type of blocks; false if it has no kernels.
template <class Call>
static inline bool with_type(int type, Call call) {
  return with_one_of<Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4>(type, call);
}

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

constexpr int PARTS_OF_TILE = TILE_ROWS / LANES;

// A group of rows, as many as a vector has lanes, which is read slice by slice.
template <class Type>
struct Group {
  const uint8_t* tiles;
  int first_row;  // in its tile

  Rows rows(int64_t k) const { return {tiles + k / slices_of_tile<Type>() * tile_bytes<Type>(), first_row}; }
};

template <class Type>
static inline Group<Type> group_of(const Product& p, int64_t number) {
  return {row_of_tiles<Type>(p, number / PARTS_OF_TILE), int(number % PARTS_OF_TILE) * LANES};
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
  return {factor, Type::HAS_MINIMA ? subtract(start, scales.minima[half]) : start};
}

// Fetch what lies so many bytes ahead of slice k into the cache, or a tile ahead: a slice reads from all of its tile.
// Inlined at once, for GCC 12 may drop calls of a function that does nothing else.
template <class Type, int BYTES>
static inline __attribute__((always_inline)) void prefetch(const uint8_t* row, int64_t k) {
  constexpr int64_t SLICE_BYTES = tile_bytes<Type>() / slices_of_tile<Type>();
  constexpr int64_t AHEAD = BYTES > tile_bytes<Type>() ? BYTES : tile_bytes<Type>();
#pragma GCC unroll 9
  for (int64_t at = 0; at < SLICE_BYTES; at += 64)
    _mm_prefetch(reinterpret_cast<const char*>(row) + k * SLICE_BYTES + AHEAD + at, _MM_HINT_T0);
}

// Threads that a product has work for: to wake one takes as long as to multiply these bytes by one token.
template <class Type>
static inline int useful_threads(const Product& p) {
  constexpr int64_t BYTES_A_THREAD = 600000, TOKENS_A_READING = 8;  // so many tokens cost as much as to read the tiles
  const int64_t num_bytes = p.row_tiles() * (p.columns / Type::BLOCK) * tile_bytes<Type>();
  const int64_t useful = 1 + num_bytes * (TOKENS_A_READING + p.tokens) / TOKENS_A_READING / BYTES_A_THREAD;
  return useful < p.num_threads ? int(useful) : p.num_threads;
}

}  // namespace herd
