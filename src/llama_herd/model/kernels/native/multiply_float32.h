// x @ W.T in float32, weight by weight out of the tiles: as exact as a product with numbers.
//
// Each result is the same sum in the same order, however many tokens stand beside it.
#pragma once

#include <type_traits>

#include "pool.h"
#include "types.h"

namespace herd {

constexpr int CHUNK_TILES = 4;  // of 16 rows
constexpr int GROUPS = 4;  // that are read at once
template <class Type>  // for two tokens: the 16 registers of AVX2 hold sums of all groups, and no block on top of them
constexpr int GROUPS_OF_TWO = LANES == 16 || std::is_same_v<Type, Numbers> ? GROUPS : GROUPS / 2;
constexpr int TOKENS_AT_ONCE = LANES == 16 ? 4 : 3;  // that are multiplied at once: as many sums as registers can hold
constexpr int64_t READ_TOKENS = 64;  // that one reading of the tiles serves
constexpr int64_t READ_COLUMNS = 64;  // whose values stay in the nearest cache
constexpr int FETCHED_BYTES = 4096;  // ahead: they come while the values are multiplied
constexpr int64_t CHUNK_GROUPS = CHUNK_TILES * PARTS_OF_TILE;

// Call with the values of some groups for each of the 32 columns of slice k.
template <class Type, int NUM_GROUPS, class Call>
static inline __attribute__((always_inline)) void for_columns(const Group<Type>* groups, int64_t k, Call call) {
  const int slice = int(k % slices_of_tile<Type>());
  Rows rows[NUM_GROUPS];
  Scales scales[NUM_GROUPS];
#pragma GCC unroll 4
  for (int g = 0; g < NUM_GROUPS; g++) {
    rows[g] = groups[g].rows(k);
    scales[g] = Type::scales(rows[g], slice);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    Line lines[NUM_GROUPS];
#pragma GCC unroll 4
    for (int g = 0; g < NUM_GROUPS; g++) lines[g] = line_of<Type>(scales[g], half);
#pragma GCC unroll 4
    for (int i = 4 * half; i < 4 * half + 4; i++) {
      Words fours[NUM_GROUPS];
#pragma GCC unroll 4
      for (int g = 0; g < NUM_GROUPS; g++) fours[g] = Type::four(rows[g], slice, i);
#pragma GCC unroll 4
      for (int column = 0; column < 4; column++) {
        Floats values[NUM_GROUPS];
#pragma GCC unroll 4
        for (int g = 0; g < NUM_GROUPS; g++)
          values[g] = add_product(fraction<Type>(fours[g], column), lines[g].factor, lines[g].start);
        call(4 * i + column, values);
      }
    }
  }
}

// Of plain numbers, which are pairs of columns.
template <class Type, int NUM_GROUPS, class Call>
static inline __attribute__((always_inline)) void for_columns(const Group<Numbers>* groups, int64_t k, Call call) {
#pragma GCC unroll 16
  for (int pair = 0; pair < SLICE_COLUMNS / 2; pair++) {
    Floats low[NUM_GROUPS], high[NUM_GROUPS];
#pragma GCC unroll 4
    for (int g = 0; g < NUM_GROUPS; g++) {
      const Words words = groups[g].rows(k).word(pair);
      low[g] = low_numbers(words);
      high[g] = high_numbers(words);
    }
    call(2 * pair, low);
    call(2 * pair + 1, high);
  }
}

// Groups from `first` on for one or two tokens, whose sums stay in registers.
template <class Type, int TOKENS, int NUM_GROUPS>
static void multiply_few(const Product& p, const float* x, const Group<Type>* groups, int64_t first, int64_t end) {
  Floats sums[TOKENS][NUM_GROUPS];
#pragma GCC unroll 2
  for (int t = 0; t < TOKENS; t++)
#pragma GCC unroll 4
    for (int g = 0; g < NUM_GROUPS; g++) sums[t][g] = zeros();
  for (int64_t k = 0; k < p.slices(); k++) {
    for (int g = 0; g < NUM_GROUPS; g += PARTS_OF_TILE) prefetch<Type, FETCHED_BYTES>(groups[g].tiles, k);
    for_columns<Type, NUM_GROUPS>(groups, k, [&](int column, const Floats* values) {
#pragma GCC unroll 2
      for (int t = 0; t < TOKENS; t++) {
        const Floats input = all(x[t * p.columns + k * SLICE_COLUMNS + column]);
#pragma GCC unroll 4
        for (int g = 0; g < NUM_GROUPS; g++) sums[t][g] = add_product(values[g], input, sums[t][g]);
      }
    });
  }
  for (int t = 0; t < TOKENS; t++)
    for (int g = 0; g < NUM_GROUPS && first + g < end; g++) put(p, t, (first + g) * LANES, sums[t][g]);
}

// What some groups of rows are at work on: the values of some columns, and the sums of all tokens.
struct alignas(64) GroupBuffers {
  float values[READ_COLUMNS][GROUPS][LANES];
  float sums[READ_TOKENS][GROUPS][LANES];
};

// Inputs of some tokens, that lie `stride` apart.
struct Inputs {
  const float* x;
  int64_t stride, columns;
};

// Add the products of TOKENS tokens from `token` on.
template <int TOKENS>
static __attribute__((noinline)) void add_values(GroupBuffers& buffers, const Inputs& in, int64_t token) {
  const float* x = in.x + token * in.stride;
  Floats sums[TOKENS][GROUPS];
#pragma GCC unroll 4
  for (int t = 0; t < TOKENS; t++)
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; g++) sums[t][g] = load(buffers.sums[token + t][g]);
  for (int64_t column = 0; column < in.columns; column++) {
    Floats inputs[TOKENS];
#pragma GCC unroll 4
    for (int t = 0; t < TOKENS; t++) inputs[t] = all(x[t * in.stride + column]);
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; g++) {
      const Floats values = load(buffers.values[column][g]);
#pragma GCC unroll 4
      for (int t = 0; t < TOKENS; t++) sums[t][g] = add_product(values, inputs[t], sums[t][g]);
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < TOKENS; t++)
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; g++) store(buffers.sums[token + t][g], sums[t][g]);
}

// As many tokens at once as there are registers for; rather twice two than a last one alone.
static inline void add_values(GroupBuffers& buffers, const Inputs& in, int64_t count) {
  int64_t token = 0;
  for (; count - token >= TOKENS_AT_ONCE && count - token != TOKENS_AT_ONCE + 1; token += TOKENS_AT_ONCE)
    add_values<TOKENS_AT_ONCE>(buffers, in, token);
  for (; count - token >= 2; token += 2) add_values<2>(buffers, in, token);
  if (token < count) add_values<1>(buffers, in, token);
}

// Groups from `first` on for some tokens: each slice of them becomes values once.
template <class Type>
static void multiply_some(const Product& p, const float* x, int64_t token, int64_t count, const Group<Type>* groups,
                          int64_t first, int64_t end) {
  GroupBuffers buffers;
  memset(buffers.sums, 0, size_t(count) * sizeof buffers.sums[0]);
  for (int64_t start = 0; start < p.columns; start += READ_COLUMNS) {
    const int64_t columns = p.columns - start < READ_COLUMNS ? p.columns - start : READ_COLUMNS;
    for (int64_t at = 0; at < columns; at += SLICE_COLUMNS) {
      const int64_t k = (start + at) / SLICE_COLUMNS;
      for (int g = 0; g < GROUPS; g += PARTS_OF_TILE) prefetch<Type, FETCHED_BYTES>(groups[g].tiles, k);
      for_columns<Type, GROUPS>(groups, k, [&](int column, const Floats* values) {
#pragma GCC unroll 4
        for (int g = 0; g < GROUPS; g++) store(buffers.values[at + column][g], values[g]);
      });
    }
    add_values(buffers, {x + token * p.columns + start, p.columns, columns}, count);
  }
  for (int64_t t = 0; t < count; t++)
    for (int g = 0; g < GROUPS && first + g < end; g++)
      put(p, token + t, (first + g) * LANES, load(buffers.sums[t][g]));
}

template <class Type>
static void multiply_many(const Product& p, const float* x, const Group<Type>* groups, int64_t first, int64_t end) {
  for (int64_t token = 0; token < p.tokens; token += READ_TOKENS) {
    const int64_t left = p.tokens - token;
    multiply_some<Type>(p, x, token, left < READ_TOKENS ? left : READ_TOKENS, groups, first, end);
  }
}

template <class Type>
static void multiply_chunk_float32(const void* job, int64_t chunk) {
  const Product& p = *static_cast<const Product*>(job);
  const int64_t all_groups = p.row_tiles() * PARTS_OF_TILE;
  int64_t first = chunk * CHUNK_GROUPS;
  const int64_t end = first + CHUNK_GROUPS < all_groups ? first + CHUNK_GROUPS : all_groups;
  const float* x = static_cast<const float*>(p.x);
  Group<Type> groups[GROUPS];  // the last may stand there twice
  for (; first < end; first += GROUPS) {
    for (int g = 0; g < GROUPS; g++) groups[g] = group_of<Type>(p, first + g < end ? first + g : end - 1);
    if (p.tokens == 1) multiply_few<Type, 1, GROUPS>(p, x, groups, first, end);
    else if (p.tokens == 2)
      for (int g = 0; g < GROUPS; g += GROUPS_OF_TWO<Type>)
        multiply_few<Type, 2, GROUPS_OF_TWO<Type>>(p, x, groups + g, first + g, end);
    else multiply_many<Type>(p, x, groups, first, end);
  }
}

template <class Type>
static bool multiply_float32(Product p) {
  static thread_local Scratch scratch;
  if (p.is_bfloat16) {
    const int64_t count = p.tokens * p.columns;
    const uint8_t* bits = static_cast<const uint8_t*>(p.x);
    float* x = static_cast<float*>(scratch.at_least(size_t(count) * 4));
    if (x == nullptr) return false;
    for (int64_t i = 0; i < count; i += LANES) store(x + i, low_numbers(load_shorts(bits + 2 * i)));
    p.x = x;
  }
  const int64_t num_chunks = (p.row_tiles() + CHUNK_TILES - 1) / CHUNK_TILES;
  pool.run(multiply_chunk_float32<Type>, &p, num_chunks, useful_threads<Type>(p));
  return true;
}

}  // namespace herd
