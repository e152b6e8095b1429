// x @ W.T in whole numbers: x as bytes with a scale for each 32 columns, blocks as the bytes that they are.
//
// Each result is the same sum in the same order, however many tokens stand beside it.
#pragma once

#include "pool.h"
#include "types.h"

#ifdef __AVX512VNNI__
namespace herd {

constexpr int64_t MAX_CHUNK_TILES = 16;  // a thread reads on from one to the next, so many are faster than few
// How far ahead of the words at work. The greater one is for Zen 5, where the smaller takes up to a tenth longer; on a
// Sapphire Rapids the greater does, by a twentieth.
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
constexpr int PREFETCHED_BYTES = 4608;
#else
constexpr int PREFETCHED_BYTES = 2304;
#endif
constexpr int64_t GROUP_TOKENS = 64;     // that one reading of the tiles serves: their bytes stay in the core's cache

// 32 columns of a token: value = scale x byte. Those of a group's tokens stand side by side, slice after slice.
struct Int8Slice {
  int8_t bytes[SLICE_COLUMNS];
  int32_t starts[2];  // minus what the zero of the weights adds to the sum of half a slice
  float scale, sums[2], sum;  // the sums are those of the bytes: of the halves, and of all
};

struct Int8Job {
  Product p;
  Int8Slice* x;
  int zero;  // of the weights
  int64_t chunk_tiles;

  int64_t num_groups() const { return (p.tokens + GROUP_TOKENS - 1) / GROUP_TOKENS; }
  int group_tokens(int64_t group) const {
    const int64_t left = p.tokens - group * GROUP_TOKENS;
    return int(left < GROUP_TOKENS ? left : GROUP_TOKENS);
  }
  Int8Slice* of_group(int64_t group) const { return x + group * GROUP_TOKENS * p.slices(); }
};

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

// A slice of a row of tiles: its words, and what its numbers are scaled by.
template <class Type>
static inline Scales read_slice(const uint8_t* tiles, int64_t k, Words* words) {
  prefetch<Type, PREFETCHED_BYTES>(tiles, k);
  const Words mask = all_words(0x01010101u * ((1u << Type::BITS) - 1));
  const Rows rows{tiles + k / slices_of_tile<Type>() * tile_bytes<Type>(), 0};
  const int slice = int(k % slices_of_tile<Type>());
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    words[i] = Type::four(rows, slice, i);
    if (Type::BITS < 8) words[i] = _mm512_and_si512(words[i], mask);
  }
  return Type::scales(rows, slice);
}

// A token's sum, with a slice's part by the sums of its halves.
template <class Type>
static inline Floats add_slice(Floats sum, const Int8Slice& x, const Scales& scales, Words first, Words second) {
  Floats part;
  if (Type::HAS_TWO_SCALES)
    part = add_product(_mm512_cvtepi32_ps(first), scales.halves[0],
                       multiply(_mm512_cvtepi32_ps(second), scales.halves[1]));
  else
    part = multiply(_mm512_cvtepi32_ps(_mm512_add_epi32(first, second)), scales.halves[0]);
  if (Type::HAS_MINIMA && Type::HAS_TWO_SCALES)
    part = subtract(part, add_product(scales.minima[0], all(x.sums[0]), multiply(scales.minima[1], all(x.sums[1]))));
  else if (Type::HAS_MINIMA)
    part = subtract(part, multiply(scales.minima[0], all(x.sum)));
  return add_product(part, all(x.scale), sum);
}

// Four columns of a token, for all rows.
static inline Words four_inputs(const Int8Slice& x, int i) {
  int32_t four;
  memcpy(&four, x.bytes + 4 * i, 4);
  return _mm512_set1_epi32(four);
}

static inline Words start_of(const Int8Slice& x, int half) { return _mm512_set1_epi32(x.starts[half]); }

// 16 rows for one token, whose sums stay in a register.
template <class Type>
static void multiply_tile_by_one(const Product& p, const Int8Slice* x, int64_t token, int64_t row_tile) {
  const uint8_t* tiles = row_of_tiles<Type>(p, row_tile);
  Floats sum = zeros();
  for (int64_t k = 0; k < p.slices(); k++, x++) {
    Words words[8];
    const Scales scales = read_slice<Type>(tiles, k, words);
    Words halves[2] = {start_of(*x, 0), start_of(*x, 1)};
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) halves[i / 4] = _mm512_dpbusd_epi32(halves[i / 4], words[i], four_inputs(*x, i));
    sum = add_slice<Type>(sum, *x, scales, halves[0], halves[1]);
  }
  put(p, token, row_tile * TILE_ROWS, sum);
}

// 32 rows for a group of tokens: a slice of them stays in registers, and the tokens pass by. Each input serves both
// rows of tiles; the last may stand alone, and then its sums are computed twice.
template <class Type>
static void multiply_tiles_by_many(const Product& p, const Int8Slice* x, int64_t token, int count, int64_t row_tile) {
  const int64_t other_tile = row_tile + 1 < p.row_tiles() ? row_tile + 1 : row_tile;
  const uint8_t *tiles = row_of_tiles<Type>(p, row_tile), *other_tiles = row_of_tiles<Type>(p, other_tile);
  alignas(64) float sums[GROUP_TOKENS][2][LANES];
  memset(sums, 0, size_t(count) * sizeof sums[0]);
  for (int64_t k = 0; k < p.slices(); k++, x += count) {
    Words words[8], others[8];
    const Scales scales = read_slice<Type>(tiles, k, words), other_scales = read_slice<Type>(other_tiles, k, others);
    for (int t = 0; t < count; t++) {
      Words halves[2] = {start_of(x[t], 0), start_of(x[t], 1)}, other_halves[2] = {halves[0], halves[1]};
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) {
        const Words inputs = four_inputs(x[t], i);
        halves[i / 4] = _mm512_dpbusd_epi32(halves[i / 4], words[i], inputs);
        other_halves[i / 4] = _mm512_dpbusd_epi32(other_halves[i / 4], others[i], inputs);
      }
      const Floats sum = _mm512_load_ps(sums[t][0]), other_sum = _mm512_load_ps(sums[t][1]);
      store(sums[t][0], add_slice<Type>(sum, x[t], scales, halves[0], halves[1]));
      store(sums[t][1], add_slice<Type>(other_sum, x[t], other_scales, other_halves[0], other_halves[1]));
    }
  }
  for (int t = 0; t < count; t++) {
    put(p, token + t, row_tile * TILE_ROWS, _mm512_load_ps(sums[t][0]));
    if (other_tile != row_tile) put(p, token + t, other_tile * TILE_ROWS, _mm512_load_ps(sums[t][1]));
  }
}

template <class Type>
static void multiply_chunk_int8(const void* argument, int64_t chunk) {
  const Int8Job& job = *static_cast<const Int8Job*>(argument);
  const int64_t first = chunk * job.chunk_tiles, all_tiles = job.p.row_tiles();
  const int64_t end = first + job.chunk_tiles < all_tiles ? first + job.chunk_tiles : all_tiles;
  for (int64_t group = 0; group < job.num_groups(); group++) {
    const int count = job.group_tokens(group);
    const int64_t token = group * GROUP_TOKENS;
    if (count == 1)
      for (int64_t tile = first; tile < end; tile++)
        multiply_tile_by_one<Type>(job.p, job.of_group(group), token, tile);
    else
      for (int64_t tile = first; tile < end; tile += 2)
        multiply_tiles_by_many<Type>(job.p, job.of_group(group), token, count, tile);
  }
}

static void quantise_group(const void* argument, int64_t group) {
  const Int8Job& job = *static_cast<const Int8Job*>(argument);
  const Product& p = job.p;
  const int count = job.group_tokens(group);
  Int8Slice* to = job.of_group(group);
  for (int t = 0; t < count; t++)
    for (int64_t k = 0; k < p.slices(); k++)
      quantise_slice(p, (group * GROUP_TOKENS + t) * p.columns + k * SLICE_COLUMNS, job.zero, to[k * count + t]);
}

template <class Type>
static bool multiply_int8(const Product& p) {
  static thread_local Scratch scratch;
  Int8Slice* x = static_cast<Int8Slice*>(scratch.at_least(size_t(p.tokens * p.slices()) * sizeof(Int8Slice)));
  if (x == nullptr) return false;
  const int num_threads = useful_threads<Type>(p);
  const int64_t share = p.row_tiles() / (CHUNKS_A_THREAD * num_threads) / 2 * 2;
  const Int8Job job{p, x, Type::ZERO, share < 2 ? 2 : share < MAX_CHUNK_TILES ? share : MAX_CHUNK_TILES};
  pool.run(quantise_group, &job, job.num_groups(), num_threads);
  pool.run(multiply_chunk_int8<Type>, &job, (p.row_tiles() + job.chunk_tiles - 1) / job.chunk_tiles, num_threads);
  return true;
}

}  // namespace herd
#endif
