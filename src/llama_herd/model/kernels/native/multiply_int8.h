// x @ W.T in whole numbers: x as bytes with a scale for each 32 columns, blocks as the bytes that they are.
//
// Each result is the same sum in the same order, however many tokens stand beside it.
#pragma once

#include "pool.h"
#include "types.h"

// Whether there is an instruction that multiplies bytes and adds four products to a word.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define HERD_HAS_VNNI
#endif

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
  if (!p.is_bfloat16) return load(static_cast<const float*>(p.x) + at);
  return low_numbers(load_shorts(reinterpret_cast<const uint8_t*>(static_cast<const uint16_t*>(p.x) + at)));
}

// A slice with an infinity or a NaN gets NaN as its scale. The largest size is found among bits, which no NaN escapes.
static inline void quantise_slice(const Product& p, int64_t at, int zero, Int8Slice& to) {
  constexpr int PARTS = SLICE_COLUMNS / LANES;
  Floats values[PARTS];
  Words sizes = all_words(0);
  for (int i = 0; i < PARTS; i++) {
    values[i] = load_inputs(p, at + i * LANES);
    sizes = larger_words(sizes, masked(as_words(values[i]), 0x7fffffff));
  }
  const uint32_t bits = largest_word(sizes);
  float largest;
  memcpy(&largest, &bits, 4);
  const bool is_finite = bits < 0x7f800000, is_zero = largest < 1e-30f;
  const Floats factor = all(is_finite && !is_zero ? 127.0f / largest : 0.0f);
  int32_t sums[2] = {0, 0};
  for (int i = 0; i < PARTS; i++) {
    const Words bytes = is_finite ? whole_words(multiply(values[i], factor)) : all_words(0);
    store_bytes(to.bytes + i * LANES, bytes);
    sums[2 * i / PARTS] += sum_of_words(bytes);
  }
  to.scale = !is_finite ? __builtin_nanf("") : is_zero ? 0.0f : largest / 127.0f;
  to.sums[0] = float(sums[0]);
  to.sums[1] = float(sums[1]);
  to.sum = float(sums[0] + sums[1]);
  to.starts[0] = -zero * sums[0];
  to.starts[1] = -zero * sums[1];
}

// A slice of a group of rows: its words, and what its numbers are scaled by.
template <class Type>
static inline Scales read_slice(const Group<Type>& group, int64_t k, Words* words) {
  if (group.first_row == 0) prefetch<Type, PREFETCHED_BYTES>(group.tiles, k);
  const Rows rows = group.rows(k);
  const int slice = int(k % slices_of_tile<Type>());
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    words[i] = Type::four(rows, slice, i);
    if (Type::BITS < 8) words[i] = masked(words[i], 0x01010101u * ((1u << Type::BITS) - 1));
#ifndef HERD_HAS_VNNI
    else words[i] = exclusive_or(words[i], all_words(0x80808080));  // signed, which takes 128 away
#endif
  }
  return Type::scales(rows, slice);
}

// A token's sum, with a slice's part by the sums of its halves.
template <class Type>
static inline Floats add_slice(Floats sum, const Int8Slice& x, const Scales& scales, Words first, Words second) {
  Floats part;
  if (Type::HAS_TWO_SCALES)
    part = add_product(as_numbers(first), scales.halves[0], multiply(as_numbers(second), scales.halves[1]));
  else
    part = multiply(as_numbers(add_words(first, second)), scales.halves[0]);
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
  return all_words(uint32_t(four));
}

// A slice of some groups of rows.
template <class Type, int GROUPS>
struct SliceOfGroups {
  Words words[GROUPS][8];
  Scales scales[GROUPS];

  SliceOfGroups(const Group<Type>* groups, int64_t k) {
#pragma GCC unroll 2
    for (int g = 0; g < GROUPS; g++) scales[g] = read_slice<Type>(groups[g], k, words[g]);
  }
};

// The products of half a slice, summed up from a token's start. Each input serves all groups.
#ifdef HERD_HAS_VNNI
// sum + the four products of each word's bytes; weights have no sign.
static inline Words add_byte_products(Words sum, Words weights, Words inputs) {
#ifdef __AVX512VNNI__
  return _mm512_dpbusd_epi32(sum, weights, inputs);
#else
  return _mm256_dpbusd_avx_epi32(sum, weights, inputs);
#endif
}

template <class Type, int GROUPS>
static inline void sum_half(const Int8Slice& x, int half, const SliceOfGroups<Type, GROUPS>& slice, Words* sums) {
#pragma GCC unroll 2
  for (int g = 0; g < GROUPS; g++) sums[g] = all_words(uint32_t(x.starts[half]));
#pragma GCC unroll 4
  for (int i = 4 * half; i < 4 * half + 4; i++) {
    const Words inputs = four_inputs(x, i);
#pragma GCC unroll 2
    for (int g = 0; g < GROUPS; g++) sums[g] = add_byte_products(sums[g], slice.words[g][i], inputs);
  }
}

template <class Type>
constexpr int zero_of() {
  return Type::ZERO;
}
#else
// Pairs of products are summed up in 16 bits, and as many of these as cannot overflow. For that a weight of 8 bits must
// be signed, and its sign goes to the input.
template <class Type, int GROUPS>
static inline void sum_half(const Int8Slice& x, int half, const SliceOfGroups<Type, GROUPS>& slice, Words* sums) {
  constexpr int FIT = Type::BITS < 6 ? 4 : Type::BITS == 6 ? 2 : 1;
#pragma GCC unroll 2
  for (int g = 0; g < GROUPS; g++) sums[g] = all_words(uint32_t(x.starts[half]));
#pragma GCC unroll 4
  for (int i = 4 * half; i < 4 * half + 4; i += FIT) {
    Words pairs[GROUPS];
#pragma GCC unroll 4
    for (int j = i; j < i + FIT; j++) {
      const Words inputs = four_inputs(x, j);
#pragma GCC unroll 2
      for (int g = 0; g < GROUPS; g++) {
        const Words weights = slice.words[g][j];
        const Words both = Type::BITS < 8 ? _mm256_maddubs_epi16(weights, inputs)
                                          : _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(inputs, weights));
        pairs[g] = j == i ? both : _mm256_add_epi16(pairs[g], both);
      }
    }
#pragma GCC unroll 2
    for (int g = 0; g < GROUPS; g++)
      sums[g] = add_words(sums[g], _mm256_madd_epi16(pairs[g], _mm256_set1_epi16(1)));
  }
}

template <class Type>
constexpr int zero_of() {
  return Type::BITS < 8 ? Type::ZERO : Type::ZERO - 128;
}
#endif

// Add a token's products with a slice to its sums.
template <class Type, int GROUPS>
static inline void add_products(const Int8Slice& x, const SliceOfGroups<Type, GROUPS>& slice, Floats* sums) {
  Words first[GROUPS], second[GROUPS];
  sum_half(x, 0, slice, first);
  sum_half(x, 1, slice, second);
#pragma GCC unroll 2
  for (int g = 0; g < GROUPS; g++) sums[g] = add_slice<Type>(sums[g], x, slice.scales[g], first[g], second[g]);
}

// A row of tiles for one token, whose sums stay in registers.
template <class Type>
static void multiply_tile_by_one(const Product& p, const Int8Slice* x, int64_t token, int64_t row_tile) {
  Group<Type> groups[PARTS_OF_TILE];
  Floats sums[PARTS_OF_TILE];
  for (int g = 0; g < PARTS_OF_TILE; g++) {
    groups[g] = group_of<Type>(p, row_tile * PARTS_OF_TILE + g);
    sums[g] = zeros();
  }
  for (int64_t k = 0; k < p.slices(); k++, x++) add_products(*x, SliceOfGroups<Type, PARTS_OF_TILE>(groups, k), sums);
  for (int g = 0; g < PARTS_OF_TILE; g++) put(p, token, row_tile * TILE_ROWS + g * LANES, sums[g]);
}

// Two groups of rows for a group of tokens: a slice of them stays in registers, and the tokens pass by. The last may
// stand alone, and then its sums are computed twice.
template <class Type>
static void multiply_rows_by_many(const Product& p, const Int8Slice* x, int64_t token, int count, int64_t number) {
  const bool is_last = number + 1 == p.row_tiles() * PARTS_OF_TILE;
  const Group<Type> groups[2] = {group_of<Type>(p, number), group_of<Type>(p, is_last ? number : number + 1)};
  alignas(64) float sums[GROUP_TOKENS][2][LANES];
  memset(sums, 0, size_t(count) * sizeof sums[0]);
  for (int64_t k = 0; k < p.slices(); k++, x += count) {
    const SliceOfGroups<Type, 2> slice(groups, k);
    for (int t = 0; t < count; t++) {
      Floats both[2] = {load(sums[t][0]), load(sums[t][1])};
      add_products(x[t], slice, both);
      store(sums[t][0], both[0]);
      store(sums[t][1], both[1]);
    }
  }
  for (int t = 0; t < count; t++) {
    put(p, token + t, number * LANES, load(sums[t][0]));
    if (!is_last) put(p, token + t, (number + 1) * LANES, load(sums[t][1]));
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
      for (int64_t rows = first * PARTS_OF_TILE; rows < end * PARTS_OF_TILE; rows += 2)
        multiply_rows_by_many<Type>(job.p, job.of_group(group), token, count, rows);
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
  const Int8Job job{p, x, zero_of<Type>(), share < 2 ? 2 : share < MAX_CHUNK_TILES ? share : MAX_CHUNK_TILES};
  pool.run(quantise_group, &job, job.num_groups(), num_threads);
  pool.run(multiply_chunk_int8<Type>, &job, (p.row_tiles() + job.chunk_tiles - 1) / job.chunk_tiles, num_threads);
  return true;
}

}  // namespace herd
