// x @ W.T in whole numbers: x as bytes with a scale for each 32 columns, blocks as the bytes that they are.
//
// For few tokens: then the time is that of reading the tiles once. Each result is the same sum in the same order,
// however many tokens stand beside it.
#pragma once

#include "pool.h"
#include "types.h"

#ifdef __AVX512VNNI__
namespace herd {

constexpr int INT8_CHUNK_TILES = 4;
constexpr int PREFETCHED_BYTES = 2304;  // how far ahead of the words at work

// x by slices of 32 columns: value = scale x byte.
struct Int8Inputs {
  int8_t* bytes;    // (tokens, columns)
  float* scales;    // (tokens, slices)
  float* sums;      // (tokens, slices): of the bytes
  int32_t* starts;  // (tokens, slices, 2): minus what the zero of the weights adds to the sum of half a slice
};

struct Int8Job {
  Product p;
  Int8Inputs x;
};

static inline Floats load_inputs(const Product& p, int64_t at) {
  if (!p.is_bfloat16) return _mm512_loadu_ps(static_cast<const float*>(p.x) + at);
  const uint16_t* x = static_cast<const uint16_t*>(p.x) + at;
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// A slice with an infinity or a NaN gets NaN as its scale. The largest size is found among bits, which no NaN escapes.
static inline void quantise_slice(const Product& p, int64_t slice, int zero, const Int8Inputs& to) {
  const Floats low = load_inputs(p, slice * SLICE_COLUMNS), high = load_inputs(p, slice * SLICE_COLUMNS + 16);
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
  __m128i* bytes = reinterpret_cast<__m128i*>(to.bytes + slice * SLICE_COLUMNS);
  _mm_storeu_si128(bytes, _mm512_cvtsepi32_epi8(first));
  _mm_storeu_si128(bytes + 1, _mm512_cvtsepi32_epi8(second));
  to.scales[slice] = !is_finite ? __builtin_nanf("") : is_zero ? 0.0f : largest / 127.0f;
  const int32_t sums[2] = {_mm512_reduce_add_epi32(first), _mm512_reduce_add_epi32(second)};
  to.sums[slice] = float(sums[0] + sums[1]);
  to.starts[2 * slice] = -zero * sums[0];
  to.starts[2 * slice + 1] = -zero * sums[1];
}

// The sums of TOKENS tokens for the 16 rows of a row of tiles.
template <class Type, int TOKENS>
static void multiply_int8_tile(const Int8Job& job, int64_t token, int64_t row_tile) {
  const Product& p = job.p;
  const int64_t num_slices = p.slices();
  const uint8_t* tiles = row_of_tiles<Type>(p, row_tile);
  const int8_t* bytes = job.x.bytes + token * p.columns;
  const Words mask = all_words(0x01010101u * ((1u << Type::BITS) - 1));
  Floats sums[TOKENS];
  for (int t = 0; t < TOKENS; t++) sums[t] = zeros();
  for (int64_t k = 0; k < num_slices; k++, bytes += SLICE_COLUMNS) {
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
      const int64_t at = (token + t) * num_slices + k;
      Words halves[2] = {_mm512_set1_epi32(job.x.starts[2 * at]), _mm512_set1_epi32(job.x.starts[2 * at + 1])};
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        int32_t four, other;
        memcpy(&four, bytes + t * p.columns + 4 * i, 4);
        memcpy(&other, bytes + t * p.columns + 4 * i + 16, 4);
        halves[0] = _mm512_dpbusd_epi32(halves[0], weights[i], _mm512_set1_epi32(four));
        halves[1] = _mm512_dpbusd_epi32(halves[1], weights[i + 4], _mm512_set1_epi32(other));
      }
      Floats sum;
      if (Type::HAS_TWO_SCALES)
        sum = add_product(_mm512_cvtepi32_ps(halves[0]), scales.halves[0],
                          multiply(_mm512_cvtepi32_ps(halves[1]), scales.halves[1]));
      else
        sum = multiply(_mm512_cvtepi32_ps(_mm512_add_epi32(halves[0], halves[1])), scales.halves[0]);
      if (Type::HAS_MINIMA) sum = subtract(sum, multiply(scales.minimum, all(job.x.sums[at])));
      sums[t] = add_product(sum, all(job.x.scales[at]), sums[t]);
    }
  }
  for (int t = 0; t < TOKENS; t++) put(p, token + t, row_tile * TILE_ROWS, sums[t]);
}

template <class Type>
static void multiply_chunk_int8(const void* argument, int64_t chunk) {
  const Int8Job& job = *static_cast<const Int8Job*>(argument);
  const int64_t first = chunk * INT8_CHUNK_TILES, all_tiles = job.p.row_tiles();
  const int64_t end = first + INT8_CHUNK_TILES < all_tiles ? first + INT8_CHUNK_TILES : all_tiles;
  for (int64_t token = 0; token < job.p.tokens;) {
    const int64_t left = job.p.tokens - token;
    const int count = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    for (int64_t tile = first; tile < end; tile++) {
      if (count == 8) multiply_int8_tile<Type, 8>(job, token, tile);
      else if (count == 4) multiply_int8_tile<Type, 4>(job, token, tile);
      else if (count == 2) multiply_int8_tile<Type, 2>(job, token, tile);
      else multiply_int8_tile<Type, 1>(job, token, tile);
    }
    token += count;
  }
}

template <class Type>
static bool multiply_int8(const Product& p) {
  static thread_local Scratch scratch;
  const int64_t num_values = p.tokens * p.columns, num_slices = p.tokens * p.slices();
  int8_t* memory = static_cast<int8_t*>(scratch.at_least(size_t(num_values + 16 * num_slices)));
  if (memory == nullptr) return false;
  float* scales = reinterpret_cast<float*>(memory + num_values);
  const Int8Job job{p, {memory, scales, scales + num_slices, reinterpret_cast<int32_t*>(scales + 2 * num_slices)}};
  for (int64_t slice = 0; slice < num_slices; slice++) quantise_slice(p, slice, Type::ZERO, job.x);
  const int64_t num_chunks = (p.row_tiles() + INT8_CHUNK_TILES - 1) / INT8_CHUNK_TILES;
  pool.run(multiply_chunk_int8<Type>, &job, num_chunks, useful_threads<Type>(p));
  return true;
}

}  // namespace herd
#endif
