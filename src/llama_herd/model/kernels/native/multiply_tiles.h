// x @ W.T of bfloat16 times bfloat16, summed up in float32: of plain numbers, and by AMX of blocks too.
//
// For many tokens: rows of blocks become bfloat16 once, and all tokens are multiplied by them while they are in the
// core's cache. Inputs are packed as AMX loads them: 16 tokens that lie one row apart would all want the same place of
// the nearest cache. A token's result does not depend on the tokens beside it.
#pragma once

#include <type_traits>

#include "pool.h"
#include "tile_products.h"
#include "types.h"

#ifdef __AVX512F__
namespace herd {

constexpr int PREFETCHED_BYTES_OF_TILES = 4608, PREFETCHED_BYTES_OF_NUMBERS = 4096;
constexpr int64_t PANEL_ROWS = 256, PANEL_SLICES = 64;  // 1 MB as bfloat16: half of what the core's cache holds
constexpr int FEW = 4;  // slices that become bfloat16 at a time
constexpr int64_t FEW_ROWS_OF_NUMBERS = 128;  // that a thread reads one after the other
// Where tokens do not pass all at once, each passes over as many slices as are fetched ahead, and the next ones come
// all the while. Over whole rows, only the first would wait for memory, and only the others compute.
constexpr int64_t SLICES_OF_A_PASS = PREFETCHED_BYTES_OF_NUMBERS / AMX_TILE_BYTES;

struct TilesJob {
  Product p;
  const uint8_t* x;  // packed: 32 tokens after the other, of each slice after slice, as two AMX tiles
  int64_t chunk_rows;
  std::atomic<bool>* has_failed;
};

// Slices of a row of tiles as an AMX tile each, every other one.
template <class Type>
static inline void dequantise(const uint8_t* row, int64_t first, int64_t count, uint8_t* to);

#ifdef __AMX_BF16__
// Numbers of float32 become bfloat16 by their upper halves, in two thirds of the time that rounding takes. Each is
// first made larger by what that takes away on average: together they lose nothing, one at most 4/3 of a rounding.
constexpr float LIFT = 1 + 11.0f / 4096;

// Two columns of 16 rows in pairs: what AMX multiplies at a time.
static inline void store_pairs(uint8_t* to, Floats even, Floats odd) {
  const Words low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
  _mm512_store_si512(to, choose(all_words(0xffff0000), _mm512_castps_si512(odd), low));
}

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
      const Floats factor = multiply(line.factor, all(LIFT)), start = multiply(line.start, all(LIFT));
      const Words four = Type::four(rows, slice, i);
      Floats values[4];
#pragma GCC unroll 4
      for (int column = 0; column < 4; column++)
        values[column] = add_product(fraction<Type>(four, column), factor, start);
      store_pairs(to + 128 * i, values[0], values[1]);
      store_pairs(to + 128 * i + 64, values[2], values[3]);
    }
  }
}
#endif

// Numbers need no more than to lie where the cache keeps them: read from their matrix they take twice as long.
template <>
inline void dequantise<Numbers>(const uint8_t* row, int64_t first, int64_t count, uint8_t* to) {
  for (int64_t k = first; k < first + count; k++, to += PAIR_BYTES) {
    prefetch<Numbers, PREFETCHED_BYTES_OF_TILES>(row, k);
    memcpy(to, row + k * AMX_TILE_BYTES, AMX_TILE_BYTES);
  }
}

// Rows that one thread takes at a time. All inputs are read once for them, so for many tokens they are many; but all
// threads want some.
static inline int64_t chunk_rows(const Product& p, int num_threads) {
  if (p.tokens <= 4 * AT_ONCE) return AT_ONCE;
  const int64_t share = p.rows / (CHUNKS_A_THREAD * num_threads) / AT_ONCE * AT_ONCE;
  return share < AT_ONCE ? AT_ONCE : share < PANEL_ROWS ? share : PANEL_ROWS;
}

// The results of 32 rows for as many tokens as there are.
static inline void put_sums(const Product& p, const float* sums, int64_t token, int64_t row) {
  const int64_t left = p.tokens - token;
  const int count = left < AT_ONCE ? int(left) : AT_ONCE;
  for (int t = 0; t < count; t++) {
    const float* of_token = sums + t / 16 * 512 + t % 16 * 16;
    put(p, token + t, row, load(of_token));
    put(p, token + t, row + TILE_ROWS, load(of_token + 256));
  }
}

// Slices of 32 rows as pairs. The last rows may be 16; then what stands for the others is not used.
template <class Type>
static inline void dequantise_rows(const Product& p, int64_t row, int64_t first, int64_t count, uint8_t* to) {
  for (int half = 0; half < 2; half++)
    if (row / TILE_ROWS + half < p.row_tiles())
      dequantise<Type>(row_of_tiles<Type>(p, row / TILE_ROWS + half), first, count, to + half * AMX_TILE_BYTES);
}

#ifndef __AMX_BF16__
constexpr int FEWEST = 2;   // tokens, for which a core waits for memory alone
constexpr int STREAMS = 4;  // rows of tiles that are read side by side for them: the processor runs ahead in each

// The products of one token or two and as many rows of tiles. The last may stand there twice.
template <int TOKENS>
static inline void multiply_streams(const Product& p, const uint8_t* x, int64_t first) {
  const uint8_t* tiles[STREAMS];
  Floats sums[TOKENS][STREAMS];
  for (int s = 0; s < STREAMS; s++) {
    tiles[s] = row_of_tiles<Numbers>(p, first + s < p.row_tiles() ? first + s : p.row_tiles() - 1);
    for (int t = 0; t < TOKENS; t++) sums[t][s] = zeros();
  }
  for (int64_t k = 0; k < p.slices(); k++, x += PAIR_BYTES)
#pragma GCC unroll 16
    for (int pair = 0; pair < LANES; pair++) {
      Words inputs[TOKENS];
#pragma GCC unroll 2
      for (int t = 0; t < TOKENS; t++) inputs[t] = two_inputs(x + t * 64 + pair * 4);
#pragma GCC unroll 4
      for (int s = 0; s < STREAMS; s++) {
        const Words numbers = load_words(tiles[s] + k * AMX_TILE_BYTES + pair * 64);
#pragma GCC unroll 2
        for (int t = 0; t < TOKENS; t++) sums[t][s] = add_pair_products(sums[t][s], inputs[t], numbers);
      }
    }
  for (int t = 0; t < TOKENS; t++)
    for (int s = 0; s < STREAMS; s++) put(p, t, (first + s) * TILE_ROWS, sums[t][s]);
}

static void multiply_chunk_of_numbers_by_fewest(const void* argument, int64_t chunk) {
  const TilesJob& job = *static_cast<const TilesJob*>(argument);
  const int64_t count = job.chunk_rows / TILE_ROWS, first = chunk * count;
  const int64_t end = first + count < job.p.row_tiles() ? first + count : job.p.row_tiles();
  for (int64_t tile = first; tile < end; tile += STREAMS)
    (job.p.tokens == 1 ? multiply_streams<1> : multiply_streams<FEWEST>)(job.p, job.x, tile);
}
#endif

// 32 rows of numbers at a time for at most 32 tokens, as they lie.
static void multiply_chunk_of_numbers_by_few(const void* argument, int64_t chunk) {
  const TilesJob& job = *static_cast<const TilesJob*>(argument);
  const Product& p = job.p;
  const int64_t first = chunk * job.chunk_rows;
  const int64_t end = first + job.chunk_rows < p.rows ? first + job.chunk_rows : p.rows;
  const int64_t most = p.tokens <= PASSING_AT_ONCE ? p.slices() : SLICES_OF_A_PASS;
  alignas(64) float sums[AT_ONCE * AT_ONCE];
  configure_tiles(p.tokens);
  for (int64_t row = first; row < end; row += AT_ONCE) {
    const int64_t low = row / TILE_ROWS, high = low + 1 < p.row_tiles() ? low + 1 : low;
    const Pairs pairs{row_of_tiles<Numbers>(p, low), row_of_tiles<Numbers>(p, high), AMX_TILE_BYTES};
    for (int64_t k = 0; k < p.slices(); k += most) {
      const int64_t count = p.slices() - k < most ? p.slices() - k : most;
      add_products<PREFETCHED_BYTES_OF_NUMBERS>(job.x + k * PAIR_BYTES, pairs.from(k), count, int(p.tokens), k == 0, sums);
    }
    put_sums(p, sums, 0, row);
  }
  release_tiles();
}

#ifdef __AMX_BF16__

// 32 rows for at most 32 tokens: a few slices become bfloat16 at a time, and stay in the nearest cache.
template <class Type>
static void multiply_chunk_by_few(const void* argument, int64_t chunk) {
  const TilesJob& job = *static_cast<const TilesJob*>(argument);
  const Product& p = job.p;
  alignas(64) uint8_t pairs[FEW * PAIR_BYTES];
  alignas(64) float sums[AT_ONCE * AT_ONCE];
  configure_tiles(p.tokens);
  zero_sums();
  for (int64_t k = 0; k < p.slices(); k += FEW) {
    const int64_t count = p.slices() - k < FEW ? p.slices() - k : FEW;
    dequantise_rows<Type>(p, chunk * AT_ONCE, k, count, pairs);
    add_products<0>(job.x + k * PAIR_BYTES, {pairs, pairs + AMX_TILE_BYTES, PAIR_BYTES}, count, p.tokens <= 16);
  }
  store_sums(sums);
  release_tiles();
  put_sums(p, sums, 0, chunk * AT_ONCE);
}
#endif

// Some rows for all tokens: a panel of them becomes bfloat16 once and stays in the core's cache meanwhile. Where a row
// is longer than a panel, sums wait in memory for the next.
template <class Type>
static void multiply_chunk_by_many(const void* argument, int64_t chunk) {
  static thread_local Scratch panels, waiting;
  const TilesJob& job = *static_cast<const TilesJob*>(argument);
  const Product& p = job.p;
  const int64_t num_slices = p.slices(), first = chunk * job.chunk_rows;
  const int64_t end = first + job.chunk_rows < p.rows ? first + job.chunk_rows : p.rows;
  const int64_t num_groups = (p.tokens + AT_ONCE - 1) / AT_ONCE, num_parts = (end - first + AT_ONCE - 1) / AT_ONCE;
  const bool waits = num_slices > PANEL_SLICES;
  const int64_t panel_slices = waits ? PANEL_SLICES : num_slices, num_sums = waits ? num_parts * num_groups : 1;
  uint8_t* panel = static_cast<uint8_t*>(panels.at_least(size_t(num_parts * panel_slices * PAIR_BYTES)));
  float* sums = static_cast<float*>(waiting.at_least(size_t(num_sums * AT_ONCE * AT_ONCE) * 4));
  if (panel == nullptr || sums == nullptr) {
    job.has_failed->store(true);
    return;
  }
  configure_tiles();
  for (int64_t k = 0; k < num_slices; k += panel_slices) {
    const int64_t count = num_slices - k < panel_slices ? num_slices - k : panel_slices;
    for (int64_t part = 0; part < num_parts; part++)
      dequantise_rows<Type>(p, first + part * AT_ONCE, k, count, panel + part * count * PAIR_BYTES);
    for (int64_t group = 0; group < num_groups; group++) {
      const int64_t left = p.tokens - group * AT_ONCE;
      for (int64_t part = 0; part < num_parts; part++) {
        float* of_part = waits ? sums + (group * num_parts + part) * AT_ONCE * AT_ONCE : sums;
        const uint8_t* x = job.x + (group * num_slices + k) * PAIR_BYTES;
        add_products(x, panel + part * count * PAIR_BYTES, count, int(left < AT_ONCE ? left : AT_ONCE), k == 0, of_part);
        if (k + count == num_slices) put_sums(p, of_part, group * AT_ONCE, first + part * AT_ONCE);
      }
    }
  }
  release_tiles();
}

struct PackJob {
  Product p;
  uint8_t* to;
};

// 32 tokens as AMX tiles, with zeros for those that are missing; tiles for fewer in all have fewer rows.
static void pack_chunk(const void* argument, int64_t group) {
  const PackJob& job = *static_cast<const PackJob*>(argument);
  const Product& p = job.p;
  uint8_t* to = job.to + group * p.slices() * PAIR_BYTES;
  for (int64_t t = 0; t < (p.tokens < AT_ONCE ? p.tokens : AT_ONCE); t++, to += 64) {
    const int64_t token = group * AT_ONCE + t;
    for (int64_t k = 0; k < p.slices(); k++) {
      const int64_t at = token * p.columns + k * SLICE_COLUMNS;
      uint16_t* numbers = reinterpret_cast<uint16_t*>(to + k * PAIR_BYTES);
      if (token >= p.tokens) memset(numbers, 0, 64);
      else if (p.is_bfloat16) memcpy(numbers, static_cast<const uint16_t*>(p.x) + at, 64);
      else
        for (int i = 0; i < SLICE_COLUMNS; i += LANES)
          store_first(numbers + i, load(static_cast<const float*>(p.x) + at + i), LANES);
    }
  }
}

template <class Type>
static bool multiply_tiles(const Product& p) {
  static thread_local Scratch inputs;
  const int64_t num_groups = (p.tokens + AT_ONCE - 1) / AT_ONCE;
  uint8_t* x = static_cast<uint8_t*>(inputs.at_least(size_t(num_groups * p.slices() * PAIR_BYTES)));
  if (x == nullptr) return false;
  const int num_threads = useful_threads<Type>(p);
  const PackJob packing{p, x};
  pool.run(pack_chunk, &packing, num_groups, num_threads);
  std::atomic<bool> has_failed{false};
  TilesJob job{p, x, chunk_rows(p, num_threads), &has_failed};
  Work work = multiply_chunk_by_many<Type>;
  if (p.tokens <= AT_ONCE) {
    if constexpr (std::is_same_v<Type, Numbers>) {
      work = multiply_chunk_of_numbers_by_few;
      job.chunk_rows = FEW_ROWS_OF_NUMBERS;
#ifndef __AMX_BF16__
      if (p.tokens <= FEWEST) work = multiply_chunk_of_numbers_by_fewest;
#endif
    }
#ifdef __AMX_BF16__
    else work = multiply_chunk_by_few<Type>;
#endif
  }
  const int64_t num_chunks = (p.rows + job.chunk_rows - 1) / job.chunk_rows;
  pool.run(work, &job, num_chunks, num_threads);
  return !has_failed;
}

}  // namespace herd
#endif
