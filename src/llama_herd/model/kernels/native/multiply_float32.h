// x @ W.T in float32, weight by weight out of the tiles: as exact as a product with numbers.
//
// Each result is the same sum in the same order, however many tokens stand beside it.
#pragma once

#include "pool.h"
#include "types.h"

namespace herd {

constexpr int SUMS_AT_ONCE = LANES;  // half as many as there are registers
constexpr int MAX_TOKENS_AT_ONCE = 8;
constexpr int CHUNK_TILES = 4;  // of 16 rows
constexpr int PARTS_OF_TILE = TILE_ROWS / LANES;  // groups of rows that one vector holds

// The sums of TOKENS tokens for GROUPS groups of LANES rows, which stand one behind the other in tiles from `first` on.
template <class Type, int TOKENS, int GROUPS>
static void multiply_groups(const Product& p, const float* x, int64_t token, int64_t first) {
  const uint8_t* tiles[GROUPS];
  for (int g = 0; g < GROUPS; g++) tiles[g] = row_of_tiles<Type>(p, (first + g) / PARTS_OF_TILE);
  Floats sums[GROUPS][TOKENS];
  for (int g = 0; g < GROUPS; g++)
    for (int t = 0; t < TOKENS; t++) sums[g][t] = zeros();
  for (int64_t k = 0; k < p.slices(); k++) {
    const int slice = int(k % slices_of_tile<Type>());
    Rows rows[GROUPS];
    Scales scales[GROUPS];
#pragma GCC unroll 8
    for (int g = 0; g < GROUPS; g++) {
      rows[g] = {tiles[g] + k / slices_of_tile<Type>() * tile_bytes<Type>(), int((first + g) % PARTS_OF_TILE) * LANES};
      scales[g] = Type::scales(rows[g], slice);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      Line lines[GROUPS];
#pragma GCC unroll 8
      for (int g = 0; g < GROUPS; g++) lines[g] = line_of<Type>(scales[g], half);
#pragma GCC unroll 4
      for (int i = 4 * half; i < 4 * half + 4; i++) {
        Words fours[GROUPS];
#pragma GCC unroll 8
        for (int g = 0; g < GROUPS; g++) fours[g] = Type::four(rows[g], slice, i);
#pragma GCC unroll 4
        for (int column = 0; column < 4; column++) {
          Floats values[GROUPS];
#pragma GCC unroll 8
          for (int g = 0; g < GROUPS; g++)
            values[g] = add_product(fraction<Type>(fours[g], column), lines[g].factor, lines[g].start);
#pragma GCC unroll 16
          for (int t = 0; t < TOKENS; t++) {
            const Floats input = all(x[t * p.columns + SLICE_COLUMNS * k + 4 * i + column]);
#pragma GCC unroll 8
            for (int g = 0; g < GROUPS; g++) sums[g][t] = add_product(values[g], input, sums[g][t]);
          }
        }
      }
    }
  }
  for (int g = 0; g < GROUPS; g++)
    for (int t = 0; t < TOKENS; t++) put(p, token + t, (first + g) * LANES, sums[g][t]);
}

// Groups from `first` to `end`: as many at once as the tokens leave registers for.
template <class Type, int TOKENS>
static void multiply_tokens(const Product& p, const float* x, int64_t token, int64_t first, int64_t end) {
  constexpr int GROUPS = SUMS_AT_ONCE / TOKENS > 4 ? 4 : SUMS_AT_ONCE / TOKENS;
  for (; first + GROUPS <= end; first += GROUPS) multiply_groups<Type, TOKENS, GROUPS>(p, x, token, first);
  for (; first < end; first++) multiply_groups<Type, TOKENS, 1>(p, x, token, first);
}

template <class Type>
static void multiply_chunk_float32(const void* job, int64_t chunk) {
  const Product& p = *static_cast<const Product*>(job);
  const int64_t first = chunk * CHUNK_TILES * PARTS_OF_TILE;
  int64_t end = first + CHUNK_TILES * PARTS_OF_TILE;
  if (end > p.row_tiles() * PARTS_OF_TILE) end = p.row_tiles() * PARTS_OF_TILE;
  const float* x = static_cast<const float*>(p.x);
  for (int64_t token = 0; token < p.tokens;) {
    const int64_t left = p.tokens - token;
    const float* rows = x + token * p.columns;
    if (left >= MAX_TOKENS_AT_ONCE) {
      multiply_tokens<Type, MAX_TOKENS_AT_ONCE>(p, rows, token, first, end);
      token += MAX_TOKENS_AT_ONCE;
    } else if (left >= 4) {
      multiply_tokens<Type, 4>(p, rows, token, first, end);
      token += 4;
    } else if (left >= 2) {
      multiply_tokens<Type, 2>(p, rows, token, first, end);
      token += 2;
    } else {
      multiply_tokens<Type, 1>(p, rows, token, first, end);
      token += 1;
    }
  }
}

template <class Type>
static bool multiply_float32(Product p) {
  static thread_local Scratch scratch;
  if (p.is_bfloat16) {
    const int64_t count = p.tokens * p.columns;
    const uint16_t* bits = static_cast<const uint16_t*>(p.x);
    float* x = static_cast<float*>(scratch.at_least(size_t(count) * 4));
    if (x == nullptr) return false;
    for (int64_t i = 0; i < count; i++) x[i] = from_bfloat16(bits[i]);
    p.x = x;
  }
  const int64_t num_chunks = (p.row_tiles() + CHUNK_TILES - 1) / CHUNK_TILES;
  pool.run(multiply_chunk_float32<Type>, &p, num_chunks, useful_threads<Type>(p));
  return true;
}

}  // namespace herd
