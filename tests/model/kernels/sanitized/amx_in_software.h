// AMX's tiles in memory, for processors that have none, and for sanitizers, which see nothing of what the real ones
// load and store. As the real ones they refuse what was not configured.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig amx_in_software::load_config
#define _tile_release amx_in_software::release
#define _tile_loadd amx_in_software::load
#define _tile_stored amx_in_software::store
#define _tile_zero amx_in_software::zero
#define _tile_dpbf16ps amx_in_software::add_products

#define __AMX_TILE__ 1
#define __AMX_BF16__ 1

namespace amx_in_software {

struct Config {
  uint8_t palette, start_row, reserved[14];
  uint16_t column_bytes[16];
  uint8_t rows[16];
};

struct alignas(64) Tile {
  uint8_t bytes[16][64];
};

static thread_local Config config;
static thread_local Tile tiles[8];

static inline void release() { memset(&config, 0, sizeof config); }

static inline void load_config(const void* from) {
  memcpy(&config, from, sizeof config);
  memset(tiles, 0, sizeof tiles);
}

// How many rows a tile has.
static inline int rows_of(int number) {
  if (config.palette != 1 || config.rows[number] == 0 || config.column_bytes[number] != 64) __builtin_trap();
  return config.rows[number];
}

static inline void zero(int number) {
  rows_of(number);
  memset(&tiles[number], 0, sizeof(Tile));
}

static inline void load(int number, const void* from, int64_t step) {
  for (int row = 0; row < rows_of(number); row++)
    memcpy(tiles[number].bytes[row], static_cast<const uint8_t*>(from) + row * step, 64);
}

static inline void store(int number, void* to, int64_t step) {
  for (int row = 0; row < rows_of(number); row++)
    memcpy(static_cast<uint8_t*>(to) + row * step, tiles[number].bytes[row], 64);
}

// sums (rows, 16) in float32 += a (rows, 16 pairs) of bfloat16 times b (16 pairs, 16)
static inline void add_products(int sums, int a, int b) {
  if (rows_of(sums) != rows_of(a) || rows_of(b) != 16) __builtin_trap();
  const __m512i high = _mm512_set1_epi32(int(0xffff0000));
  for (int row = 0; row < rows_of(a); row++) {
    __m512 sum = _mm512_load_ps(tiles[sums].bytes[row]);
    for (int k = 0; k < 16; k++) {
      uint32_t pair;
      memcpy(&pair, tiles[a].bytes[row] + 4 * k, 4);
      const __m512i pairs = _mm512_load_si512(tiles[b].bytes[k]);
      const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
      const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, high));
      sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(int(pair << 16))), even, sum);
      sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(int(pair & 0xffff0000))), odd, sum);
    }
    _mm512_store_ps(tiles[sums].bytes[row], sum);
  }
}

}  // namespace amx_in_software
