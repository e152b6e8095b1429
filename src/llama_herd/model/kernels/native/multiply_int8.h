// x @ W.T in whole numbers: x as bytes with a scale for each 32 columns, blocks as the bytes that they are.
//
// For few tokens: then the time is that of reading the tiles once. Each result is the same sum in the same order,
// however many tokens stand beside it.
#pragma once

#include "pool.h"
#include "types.h"

#ifdef __AVX512VNNI__
namespace herd {

constexpr int64_t MAX_CHUNK_TILES = 16;  // a thread reads on from one to the next, so many are faster than few
constexpr int PREFETCHED_BYTES = 2304;  // how far ahead of the words at work

// 32 columns of a token: value = scale x byte. Those of up to 8 tokens stand side by side, slice after slice.
struct Int8Slice {
  int8_t bytes[SLICE_COLUMNS];
  int32_t starts[2];  // minus what the zero of the weights adds to the sum of half a slice
  float scale, sums[2], sum;  // the sums are those of the bytes: of the halves, and of all
};

constexpr int MAX_TOKENS = 64;  // of one reading of the tiles: their slices stay in the core's cache

struct Int8Job {
  Product p;
  const Int8Slice* x;
  int64_t chunk_tiles;
};

// How many tokens are multiplied at once when so many are left.
static inline int tokens_at_once(int64_t left) {
  return left > 8 ? int(left < MAX_TOKENS ? left : MAX_TOKENS) : left == 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

static inline Floats load_inputs(const Product& p, int64_t at) {
  if (!p.is_bfloat16) return _mm512_loadu_ps(static_cast<const float*>(p.x) + at);
  const uint16_t* x = static_cast<const uint16_t*>(p.x) + at;
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// A slice with an infinity or a NaN gets NaN as its scale. The largest size is found among bits, which no NaN escapes.
static inline void quantise_slice(const Product& p, int64_t at, int zero, Int8Slice& to) {
  const Floats low = load_inputs(p, at), high = load_inputs(p, at + 16);
  const Words no_sign = _mm512_set1_epi32(0x7fffffff);
  const Words sizes = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(low), no_sign),
                                       _mm512_and_si512(_mm512_castps_si512(high), no_sign));
  const uint32_t bits = _mm512_reduce_max_epu32(sizes);
  float largest;
  memcpy(&largest, &bits, 4);
  const bool is_finite = bits < 0x7f800000, is_zero = largest < 1e-30f;
  const Floats factor = all(is_finite && !is_zero ? 127.0f / largest : 0.0f);
  Words first = _mm512_setzero_si512(), second = first;
  if (is_finite) {
    first = _mm512_cvtps_epi32(_mm512_mul_ps(low, factor));
    second = _mm512_cvtps_epi32(_mm512_mul_ps(high, factor));
  }
  __m128i* bytes = reinterpret_cast<__m128i*>(to.bytes);
  _mm_storeu_si128(bytes, _mm512_cvtsepi32_epi8(first));
  _mm_storeu_si128(bytes + 1, _mm512_cvtsepi32_epi8(second));
  to.scale = !is_finite ? __builtin_nanf("") : is_zero ? 0.0f : largest / 127.0f;
  const int32_t sums[2] = {_mm512_reduce_add_epi32(first), _mm512_reduce_add_epi32(second)};
  to.sums[0] = float(sums[0]);
  to.sums[1] = float(sums[1]);
  to.sum = float(sums[0] + sums[1]);
  to.starts[0] = -zero * sums[0];
  to.starts[1] = -zero * sums[1];
}

// The sums of TOKENS tokens for the 16 rows of a row of tiles.
template <class Type, int TOKENS>
static void multiply_int8_tile(const Int8Job& job, int64_t token, int64_t row_tile) {
  const Product& p = job.p;
  const int64_t num_slices = p.slices();
  const uint8_t* tiles = row_of_tiles<Type>(p, row_tile);
  const Int8Slice* x = job.x + token * num_slices;
  const Words mask = all_words(0x01010101u * ((1u << Type::BITS) - 1));
  Floats sums[TOKENS];
  for (int t = 0; t < TOKENS; t++) sums[t] = zeros();
  for (int64_t k = 0; k < num_slices; k++, x += TOKENS) {
    prefetch<Type, PREFETCHED_BYTES>(tiles, k);
    const Rows rows{tiles + k / slices_of_tile<Type>() * tile_bytes<Type>(), 0};
    const int slice = int(k % slices_of_tile<Type>());
    Words weights[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
      weights[i] = Type::four(rows, slice, i);
      if (Type::BITS < 8) weights[i] = _mm512_and_si512(weights[i], mask);
    }
    const Scales scales = Type::scales(rows, slice);
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; t++) {
      Words halves[2] = {_mm512_set1_epi32(x[t].starts[0]), _mm512_set1_epi32(x[t].starts[1])};
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        int32_t four, other;
        memcpy(&four, x[t].bytes + 4 * i, 4);
        memcpy(&other, x[t].bytes + 4 * i + 16, 4);
        halves[0] = _mm512_dpbusd_epi32(halves[0], weights[i], _mm512_set1_epi32(four));
        halves[1] = _mm512_dpbusd_epi32(halves[1], weights[i + 4], _mm512_set1_epi32(other));
      }
      Floats sum;
      if (Type::HAS_TWO_SCALES)
        sum = add_product(_mm512_cvtepi32_ps(halves[0]), scales.halves[0],
                          multiply(_mm512_cvtepi32_ps(halves[1]), scales.halves[1]));
      else
        sum = multiply(_mm512_cvtepi32_ps(_mm512_add_epi32(halves[0], halves[1])), scales.halves[0]);
      if (Type::HAS_MINIMA && Type::HAS_TWO_SCALES) {
        const Floats second = multiply(scales.minima[1], all(x[t].sums[1]));
        sum = subtract(sum, add_product(scales.minima[0], all(x[t].sums[0]), second));
      } else if (Type::HAS_MINIMA) {
        sum = subtract(sum, multiply(scales.minima[0], all(x[t].sum)));
      }
      sums[t] = add_product(sum, all(x[t].scale), sums[t]);
    }
  }
  for (int t = 0; t < TOKENS; t++) put(p, token + t, row_tile * TILE_ROWS, sums[t]);
}

// What a slice of a row of tiles adds to the sum of a token.
template <class Type>
static inline Floats int8_sum(const Int8Slice& x, const Scales& scales, Words first, Words second) {
  Floats sum;
  if (Type::HAS_TWO_SCALES)
    sum = add_product(_mm512_cvtepi32_ps(first), scales.halves[0], multiply(_mm512_cvtepi32_ps(second), scales.halves[1]));
  else
    sum = multiply(_mm512_cvtepi32_ps(_mm512_add_epi32(first, second)), scales.halves[0]);
  if (Type::HAS_MINIMA && Type::HAS_TWO_SCALES)
    sum = subtract(sum, add_product(scales.minima[0], all(x.sums[0]), multiply(scales.minima[1], all(x.sums[1]))));
  else if (Type::HAS_MINIMA)
    sum = subtract(sum, multiply(scales.minima[0], all(x.sum)));
  return sum;
}

template <class Type>
static void multiply_int8_many(const Int8Job& job, int64_t token, int count, int64_t row_tile) {
  const Product& p = job.p;
  const int64_t num_slices = p.slices();
  const int64_t second = row_tile + 1 < p.row_tiles() ? row_tile + 1 : row_tile;
  const uint8_t* tiles[2] = {row_of_tiles<Type>(p, row_tile), row_of_tiles<Type>(p, second)};
  const Int8Slice* x = job.x + token * num_slices;
  const Words mask = all_words(0x01010101u * ((1u << Type::BITS) - 1));
  alignas(64) float sums[MAX_TOKENS][2][LANES];
  memset(sums, 0, size_t(count) * sizeof sums[0]);
  for (int64_t k = 0; k < num_slices; k++, x += count) {
    const int slice = int(k % slices_of_tile<Type>());
    Words weights[2][8];
    Scales scales[2];
#pragma GCC unroll 2
    for (int tile = 0; tile < 2; tile++) {
      prefetch<Type, PREFETCHED_BYTES>(tiles[tile], k);
      const Rows rows{tiles[tile] + k / slices_of_tile<Type>() * tile_bytes<Type>(), 0};
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) {
        weights[tile][i] = Type::four(rows, slice, i);
        if (Type::BITS < 8) weights[tile][i] = _mm512_and_si512(weights[tile][i], mask);
      }
      scales[tile] = Type::scales(rows, slice);
    }
    for (int t = 0; t < count; t++) {
      const Words starts[2] = {_mm512_set1_epi32(x[t].starts[0]), _mm512_set1_epi32(x[t].starts[1])};
      Words halves[2][2] = {{starts[0], starts[1]}, {starts[0], starts[1]}};
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) {
        int32_t four;
        memcpy(&four, x[t].bytes + 4 * i, 4);
        const Words inputs = _mm512_set1_epi32(four);
        halves[0][i / 4] = _mm512_dpbusd_epi32(halves[0][i / 4], weights[0][i], inputs);
        halves[1][i / 4] = _mm512_dpbusd_epi32(halves[1][i / 4], weights[1][i], inputs);
      }
#pragma GCC unroll 2
      for (int tile = 0; tile < 2; tile++) {
        const Floats sum = int8_sum<Type>(x[t], scales[tile], halves[tile][0], halves[tile][1]);
        store(sums[t][tile], add_product(sum, all(x[t].scale), _mm512_load_ps(sums[t][tile])));
      }
    }
  }
  for (int t = 0; t < count; t++) {
    put(p, token + t, row_tile * TILE_ROWS, _mm512_load_ps(sums[t][0]));
    if (second != row_tile) put(p, token + t, second * TILE_ROWS, _mm512_load_ps(sums[t][1]));
  }
}

template <class Type>
static void multiply_chunk_int8(const void* argument, int64_t chunk) {
  const Int8Job& job = *static_cast<const Int8Job*>(argument);
  const int64_t first = chunk * job.chunk_tiles, all_tiles = job.p.row_tiles();
  const int64_t end = first + job.chunk_tiles < all_tiles ? first + job.chunk_tiles : all_tiles;
  for (int64_t token = 0; token < job.p.tokens;) {
    const int count = tokens_at_once(job.p.tokens - token);
    if (count > 8) {
      for (int64_t tile = first; tile < end; tile += 2) multiply_int8_many<Type>(job, token, count, tile);
      token += count;
      continue;
    }
    for (int64_t tile = first; tile < end; tile++) {
      if (count == 8) multiply_int8_tile<Type, 8>(job, token, tile);
      else if (count == 4) multiply_int8_tile<Type, 4>(job, token, tile);
      else if (count == 2) multiply_int8_tile<Type, 2>(job, token, tile);
      else multiply_int8_tile<Type, 1>(job, token, tile);
    }
    token += count;
  }
}

struct QuantiseJob {
  Product p;
  Int8Slice* to;
  int zero;
};

// The tokens of one group, which are multiplied at once.
static void quantise_group(const void* argument, int64_t group) {
  const QuantiseJob& job = *static_cast<const QuantiseJob*>(argument);
  const Product& p = job.p;
  const int64_t first = group * MAX_TOKENS, num_slices = p.slices();
  const int64_t end = first + MAX_TOKENS < p.tokens ? first + MAX_TOKENS : p.tokens;
  for (int64_t token = first; token < end;) {
    const int count = tokens_at_once(end - token);
    Int8Slice* to = job.to + token * num_slices;
    for (int t = 0; t < count; t++)
      for (int64_t k = 0; k < num_slices; k++)
        quantise_slice(p, (token + t) * p.columns + k * SLICE_COLUMNS, job.zero, to[k * count + t]);
    token += count;
  }
}

template <class Type>
static bool multiply_int8(const Product& p) {
  static thread_local Scratch scratch;
  Int8Slice* x = static_cast<Int8Slice*>(scratch.at_least(size_t(p.tokens * p.slices()) * sizeof(Int8Slice)));
  if (x == nullptr) return false;
  const int num_threads = useful_threads<Type>(p);
  const QuantiseJob quantising{p, x, Type::ZERO};
  pool.run(quantise_group, &quantising, (p.tokens + MAX_TOKENS - 1) / MAX_TOKENS, num_threads);
  const int64_t share = p.row_tiles() / (CHUNKS_A_THREAD * num_threads);
  const Int8Job job{p, x, share < 1 ? 1 : share < MAX_CHUNK_TILES ? share : MAX_CHUNK_TILES};
  pool.run(multiply_chunk_int8<Type>, &job, (p.row_tiles() + job.chunk_tiles - 1) / job.chunk_tiles, num_threads);
  return true;
}

}  // namespace herd
#endif
