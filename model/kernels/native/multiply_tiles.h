// x @ W.T by AMX: bfloat16 times bfloat16, summed up in float32.
//
// For many tokens: 32 rows of the matrix become bfloat16 once, and all tokens are multiplied by them while they are in
// the core's cache. A token's result does not depend on the tokens beside it.
#pragma once

#include "pool.h"
#include "types.h"

#ifdef __AMX_BF16__
namespace herd {

constexpr int AT_ONCE = 32;                     // rows of the matrix, and tokens: two AMX tiles each
constexpr int AMX_TILE_BYTES = 1024;            // 16 rows of 64 bytes
constexpr int PAIR_BYTES = 2 * AMX_TILE_BYTES;  // what 32 columns of 32 rows take as bfloat16
constexpr int PREFETCHED_BYTES_OF_TILES = 4608;
constexpr int FEW = 4;  // slices that become bfloat16 at a time

struct TilesJob {
  Product p;
  const uint16_t* x;     // bfloat16
  const uint16_t* last;  // the tokens that fill no 32, and zeros after them
  std::atomic<bool>* has_failed;
};

struct __attribute__((packed)) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t column_bytes[16];
  uint8_t rows[16];
};

// The configuration belongs to the thread. The barrier: GCC 12 believes that only eight bytes of it are read.
static inline void configure_tiles() {
  TileConfig config;
  memset(&config, 0, sizeof config);
  config.palette = 1;
  for (int i = 0; i < 8; i++) {
    config.column_bytes[i] = 64;
    config.rows[i] = 16;
  }
  __asm__ __volatile__("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
}

// Two columns of 16 rows as bfloat16, in pairs: what AMX multiplies at a time.
static inline void store_pairs(uint8_t* to, Floats even, Floats odd) {
  alignas(64) static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
  _mm512_store_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(order), both));
}

// Slices of a row of tiles as an AMX tile each, every other one.
template <class Type>
static inline void dequantise(const uint8_t* row, int64_t first, int64_t count, uint8_t* to) {
  for (int64_t k = first; k < first + count; k++, to += PAIR_BYTES) {
    prefetch<Type, PREFETCHED_BYTES_OF_TILES>(row, k);
    const Rows rows{row + k / slices_of_tile<Type>() * tile_bytes<Type>(), 0};
    const int slice = int(k % slices_of_tile<Type>());
    const Scales scales = Type::scales(rows, slice);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
      const Line line = line_of<Type>(scales, i / 4);
      const Words four = Type::four(rows, slice, i);
      Floats values[4];
#pragma GCC unroll 4
      for (int column = 0; column < 4; column++)
        values[column] = add_product(fraction<Type>(four, column), line.factor, line.start);
      store_pairs(to + 128 * i, values[0], values[1]);
      store_pairs(to + 128 * i + 64, values[2], values[3]);
    }
  }
}

static inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Add the products of 32 tokens, or of 16, and 32 rows, for as many slices as are given.
static inline void add_products(const uint16_t* x, int64_t columns, const uint8_t* pairs, int64_t count, bool is_half) {
  for (int64_t k = 0; k < count; k++, x += SLICE_COLUMNS, pairs += PAIR_BYTES) {
    _tile_loadd(6, pairs, 64);
    _tile_loadd(7, pairs + AMX_TILE_BYTES, 64);
    _tile_loadd(4, x, columns * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (is_half) continue;
    _tile_loadd(5, x + 16 * columns, columns * 2);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

static inline void put_sums(const Product& p, int64_t token, int64_t count, int64_t row_tile, int num_halves) {
  alignas(64) float sums[4][256];
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  _tile_stored(2, sums[2], 64);
  _tile_stored(3, sums[3], 64);
  for (int t = 0; t < count; t++)
    for (int half = 0; half < num_halves; half++)
      put(p, token + t, (row_tile + half) * TILE_ROWS, _mm512_load_ps(sums[t / 16 * 2 + half] + t % 16 * 16));
}

// 32 rows of the matrix for all tokens. The first 32 tokens are multiplied while the rows become bfloat16, a few
// tiles at a time, which stay in the nearest cache; if there are no others, each few take the place of the last.
template <class Type>
static void multiply_chunk_tiles(const void* argument, int64_t chunk) {
  static thread_local Scratch scratch;
  const TilesJob& job = *static_cast<const TilesJob*>(argument);
  const Product& p = job.p;
  const int64_t num_slices = p.slices(), row_tile = 2 * chunk;
  const bool keeps = p.tokens > AT_ONCE;
  uint8_t* pairs = static_cast<uint8_t*>(scratch.at_least(size_t(keeps ? num_slices : FEW) * PAIR_BYTES));
  if (pairs == nullptr) {
    job.has_failed->store(true);
    return;
  }
  const int num_halves = row_tile + 1 < p.row_tiles() ? 2 : 1;  // the last rows may be 16; then the rest is not used
  const int64_t num_first = p.tokens < AT_ONCE ? p.tokens : AT_ONCE;
  const uint16_t* x = p.tokens < AT_ONCE ? job.last : job.x;
  configure_tiles();
  zero_sums();
  for (int64_t k = 0; k < num_slices; k += FEW) {
    const int64_t count = num_slices - k < FEW ? num_slices - k : FEW;
    uint8_t* to = pairs + (keeps ? k * PAIR_BYTES : 0);
    for (int half = 0; half < num_halves; half++)
      dequantise<Type>(row_of_tiles<Type>(p, row_tile + half), k, count, to + half * AMX_TILE_BYTES);
    add_products(x + k * SLICE_COLUMNS, p.columns, to, count, num_first <= 16);
  }
  put_sums(p, 0, num_first, row_tile, num_halves);
  for (int64_t token = AT_ONCE; token < p.tokens; token += AT_ONCE) {
    const int64_t left = p.tokens - token < AT_ONCE ? p.tokens - token : AT_ONCE;
    x = left < AT_ONCE ? job.last : job.x + token * p.columns;
    zero_sums();
    add_products(x, p.columns, pairs, num_slices, left <= 16);
    put_sums(p, token, left, row_tile, num_halves);
  }
  _tile_release();
}

template <class Type>
static bool multiply_tiles(const Product& p) {
  static thread_local Scratch inputs, remainder;
  const uint16_t* x = static_cast<const uint16_t*>(p.x);
  if (!p.is_bfloat16) {
    uint16_t* rounded = static_cast<uint16_t*>(inputs.at_least(size_t(p.tokens * p.columns) * 2));
    if (rounded == nullptr) return false;
    for (int64_t i = 0; i < p.tokens * p.columns; i += SLICE_COLUMNS / 2)
      store_first(rounded + i, _mm512_loadu_ps(static_cast<const float*>(p.x) + i), SLICE_COLUMNS / 2);
    x = rounded;
  }
  const int64_t num_last = p.tokens % AT_ONCE;
  uint16_t* last = nullptr;
  if (num_last > 0) {
    last = static_cast<uint16_t*>(remainder.at_least(size_t(AT_ONCE * p.columns) * 2));
    if (last == nullptr) return false;
    memcpy(last, x + (p.tokens - num_last) * p.columns, size_t(num_last * p.columns) * 2);
    memset(last + num_last * p.columns, 0, size_t((AT_ONCE - num_last) * p.columns) * 2);
  }
  std::atomic<bool> has_failed{false};
  const TilesJob job{p, x, last, &has_failed};
  pool.run(multiply_chunk_tiles<Type>, &job, (p.row_tiles() + 1) / 2, useful_threads<Type>(p));
  return !has_failed;
}

}  // namespace herd
#endif
