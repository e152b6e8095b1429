// Products of bfloat16, 32 rows by 32 others at a time, summed up in float32: by AMX, or by the vectors that have them.
//
// Both read the same: of one side 16 rows of 32 columns, of the other 16 pairs of columns x 16 rows, 1024 bytes each.
// Each result is the same sum in the same order, however many rows stand beside it.
#pragma once

#include "types.h"

#ifdef __AVX512F__
namespace herd {

constexpr int AT_ONCE = 32;                     // rows of either side: two AMX tiles each
constexpr int AMX_TILE_BYTES = 1024;            // 16 rows of 64 bytes
constexpr int PAIR_BYTES = 2 * AMX_TILE_BYTES;  // what 32 columns of 32 rows take as bfloat16

// 32 rows, slice after slice, as pairs of columns: of 16 rows each, so far from one slice to the next.
struct Pairs {
  const uint8_t *low, *high;
  int64_t step;

  Pairs from(int64_t k) const { return {low + k * step, high + k * step, step}; }
};

template <int AHEAD>
static inline __attribute__((always_inline)) void prefetch_pairs(const uint8_t* low, const uint8_t* high) {
  if (AHEAD)
    for (int at = AHEAD; at < AHEAD + AMX_TILE_BYTES; at += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(low) + at, _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(high) + at, _MM_HINT_T0);
    }
}

#ifdef __AMX_BF16__
constexpr int PASSING_AT_ONCE = AT_ONCE;  // rows of x

struct __attribute__((packed)) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t column_bytes[16];
  uint8_t rows[16];
};

// Tiles for so many of 32 rows; 0 to 3 are sums, 4 and 5 inputs, 6 and 7 the matrix. The configuration belongs to the
// thread. The barrier: GCC 12 believes that only eight bytes of it are read.
static inline void configure_tiles(int64_t rows_of_x = AT_ONCE) {
  TileConfig config;
  memset(&config, 0, sizeof config);
  config.palette = 1;
  const uint8_t first = uint8_t(rows_of_x < 16 ? rows_of_x : 16);
  const uint8_t second = uint8_t(rows_of_x <= 16 ? 16 : rows_of_x - 16);
  const uint8_t rows[8] = {first, first, second, second, first, second, 16, 16};
  for (int i = 0; i < 8; i++) {
    config.column_bytes[i] = 64;
    config.rows[i] = rows[i];
  }
  __asm__ __volatile__("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
}

static inline void release_tiles() { _tile_release(); }

static inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

static inline void load_sums(const float* from) {
  _tile_loadd(0, from, 64);
  _tile_loadd(1, from + 256, 64);
  _tile_loadd(2, from + 512, 64);
  _tile_loadd(3, from + 768, 64);
}

static inline void store_sums(float* to) {
  _tile_stored(0, to, 64);
  _tile_stored(1, to + 256, 64);
  _tile_stored(2, to + 512, 64);
  _tile_stored(3, to + 768, 64);
}

// Add the products of 32 rows of x, or of 16, and 32 of the other side, for as many slices as are given.
template <int AHEAD>
static inline void add_products(const uint8_t* x, Pairs pairs, int64_t count, bool is_half) {
  for (int64_t k = 0; k < count; k++, x += PAIR_BYTES) {
    const uint8_t *low = pairs.low + k * pairs.step, *high = pairs.high + k * pairs.step;
    prefetch_pairs<AHEAD>(low, high);
    _tile_loadd(6, low, 64);
    _tile_loadd(7, high, 64);
    _tile_loadd(4, x, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (is_half) continue;
    _tile_loadd(5, x + AMX_TILE_BYTES, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

template <int AHEAD = 0>
static inline void add_products(const uint8_t* x, Pairs pairs, int64_t count, int num_rows, bool is_first,
                                float* sums) {
  if (is_first) zero_sums();
  else load_sums(sums);
  add_products<AHEAD>(x, pairs, count, num_rows <= 16);
  store_sums(sums);
}
#else
constexpr int PASSING_AT_ONCE = 8;  // rows of x, whose sums stay in registers

static inline void configure_tiles(int64_t = AT_ONCE) {}
static inline void release_tiles() {}

// Two columns of a row of x, for all rows of the other side.
static inline Words two_inputs(const uint8_t* x) {
  uint32_t two;
  memcpy(&two, x, 4);
  return all_words(two);
}

// The products of ROWS rows of x.
template <int ROWS, int AHEAD>
static inline void add_products_of_rows(const uint8_t* x, Pairs pairs, int64_t count, bool is_first, float* sums) {
  Floats low[ROWS], high[ROWS];
#pragma GCC unroll 8
  for (int row = 0; row < ROWS; row++) {
    low[row] = is_first ? zeros() : load(sums + row * LANES);
    high[row] = is_first ? zeros() : load(sums + LANES * LANES + row * LANES);
  }
  for (int64_t k = 0; k < count; k++, x += PAIR_BYTES) {
    const uint8_t *of_low = pairs.low + k * pairs.step, *of_high = pairs.high + k * pairs.step;
    prefetch_pairs<AHEAD>(of_low, of_high);
#pragma GCC unroll 16
    for (int pair = 0; pair < LANES; pair++) {
      const Words a = load_words(of_low + pair * 64), b = load_words(of_high + pair * 64);
#pragma GCC unroll 8
      for (int row = 0; row < ROWS; row++) {
        const Words inputs = two_inputs(x + row * 64 + pair * 4);
        low[row] = add_pair_products(low[row], inputs, a);
        high[row] = add_pair_products(high[row], inputs, b);
      }
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < ROWS; row++) {
    store(sums + row * LANES, low[row]);
    store(sums + LANES * LANES + row * LANES, high[row]);
  }
}

template <int AHEAD = 0>
static inline void add_products(const uint8_t* x, Pairs pairs, int64_t count, int num_rows, bool is_first,
                                float* sums) {
  for (int row = 0; row < num_rows;) {
    const uint8_t* from = x + row * 64;
    float* to = sums + row / LANES * 2 * LANES * LANES + row % LANES * LANES;
    const int left = num_rows - row;
    if (left > 4) add_products_of_rows<8, AHEAD>(from, pairs, count, is_first, to);
    else if (left > 2) add_products_of_rows<4, AHEAD>(from, pairs, count, is_first, to);
    else if (left > 1) add_products_of_rows<2, AHEAD>(from, pairs, count, is_first, to);
    else add_products_of_rows<1, AHEAD>(from, pairs, count, is_first, to);
    row += left > 4 ? 8 : left > 2 ? 4 : left > 1 ? 2 : 1;
  }
}
#endif

// `sums` += or = the products of as many of 32 rows of x as there are, and of 32 of the other side, for so many slices.
static inline void add_products(const uint8_t* x, const uint8_t* pairs, int64_t count, int num_rows, bool is_first,
                                float* sums) {
  add_products<0>(x, {pairs, pairs + AMX_TILE_BYTES, PAIR_BYTES}, count, num_rows, is_first, sums);
}

}  // namespace herd
#endif
