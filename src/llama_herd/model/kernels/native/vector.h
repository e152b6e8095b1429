// Vectors of float32 as wide as the instruction set has them, and the numbers of 16 bits that go in and out.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tiles.h"

namespace herd {

#ifdef __AVX512F__
constexpr int LANES = 16;
typedef __m512 Floats;
typedef __m512i Words;
static inline Floats zeros() { return _mm512_setzero_ps(); }
static inline Floats all(float value) { return _mm512_set1_ps(value); }
static inline Floats add_product(Floats a, Floats b, Floats sum) { return _mm512_fmadd_ps(a, b, sum); }
static inline Floats load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, Floats values) { _mm512_storeu_ps(p, values); }
static inline Words load_words(const uint8_t* p) { return _mm512_loadu_si512(p); }
static inline Words load_shorts(const uint8_t* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static inline Words load_bytes(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline Words all_words(uint32_t value) { return _mm512_set1_epi32(int(value)); }
static inline Words add_words(Words a, Words b) { return _mm512_add_epi32(a, b); }
static inline Words shift_left(Words words, int count) { return _mm512_sllv_epi32(words, all_words(uint32_t(count))); }
static inline Words shift_right(Words words, int count) { return _mm512_srlv_epi32(words, all_words(uint32_t(count))); }
static inline Words rotate_left(Words words, int count) { return _mm512_rolv_epi32(words, all_words(uint32_t(count))); }
static inline Words exclusive_or(Words a, Words b) { return _mm512_xor_si512(a, b); }
static inline Words masked(Words words, uint32_t mask) { return _mm512_and_si512(words, all_words(mask)); }
static inline Words multiply_words(Words a, Words b) { return _mm512_mullo_epi32(a, b); }
// For each byte, a place below 16, what stands there in the table.
static inline Words look_up(const uint8_t* table, Words places) {
  const __m128i row = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(row), places);
}
static inline Words masked_or(Words mask, Words a, Words b) { return _mm512_ternarylogic_epi32(mask, a, b, 0xea); }
// Bits of a where the mask has ones, of b elsewhere.
static inline Words choose(Words mask, Words a, Words b) { return _mm512_ternarylogic_epi32(mask, a, b, 0xca); }
static inline Floats as_floats(Words bits) { return _mm512_castsi512_ps(bits); }
static inline Words as_words(Floats a) { return _mm512_castps_si512(a); }
static inline Words whole_words(Floats a) { return _mm512_cvtps_epi32(a); }
static inline Floats whole(Words words, uint32_t mask) { return _mm512_cvtepi32_ps(masked(words, mask)); }
static inline Floats signed_byte(Words words, int number) {
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(shift_left(words, 24 - 8 * number), 24));
}
static inline Floats as_numbers(Words words) { return _mm512_cvtepi32_ps(words); }
// What has no sign.
static inline Words larger_words(Words a, Words b) { return _mm512_max_epu32(a, b); }
static inline uint32_t largest_word(Words a) { return _mm512_reduce_max_epu32(a); }
static inline int32_t sum_of_words(Words a) { return _mm512_reduce_add_epi32(a); }
// The lowest byte of each word.
static inline void store_bytes(int8_t* p, Words words) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(words));
}
#else
constexpr int LANES = 8;
typedef __m256 Floats;
typedef __m256i Words;
static inline Floats zeros() { return _mm256_setzero_ps(); }
static inline Floats all(float value) { return _mm256_set1_ps(value); }
static inline Floats add_product(Floats a, Floats b, Floats sum) { return _mm256_fmadd_ps(a, b, sum); }
static inline Floats load_halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, Floats values) { _mm256_storeu_ps(p, values); }
static inline Words load_words(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
static inline Words load_shorts(const uint8_t* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline Words load_bytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
static inline Words all_words(uint32_t value) { return _mm256_set1_epi32(int(value)); }
static inline Words add_words(Words a, Words b) { return _mm256_add_epi32(a, b); }
static inline Words shift_left(Words words, int count) { return _mm256_slli_epi32(words, count); }
static inline Words shift_right(Words words, int count) { return _mm256_srli_epi32(words, count); }
static inline Words rotate_left(Words words, int count) {
  return _mm256_or_si256(shift_left(words, count), shift_right(words, 32 - count));
}
static inline Words exclusive_or(Words a, Words b) { return _mm256_xor_si256(a, b); }
static inline Words masked(Words words, uint32_t mask) { return _mm256_and_si256(words, all_words(mask)); }
static inline Words multiply_words(Words a, Words b) { return _mm256_mullo_epi32(a, b); }
// For each byte, a place below 16, what stands there in the table.
static inline Words look_up(const uint8_t* table, Words places) {
  const __m128i row = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(row), places);
}
static inline Words masked_or(Words mask, Words a, Words b) { return _mm256_or_si256(_mm256_and_si256(mask, a), b); }
static inline Words choose(Words mask, Words a, Words b) {
  return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}
static inline Floats as_floats(Words bits) { return _mm256_castsi256_ps(bits); }
static inline Words as_words(Floats a) { return _mm256_castps_si256(a); }
static inline Words whole_words(Floats a) { return _mm256_cvtps_epi32(a); }
static inline Floats whole(Words words, uint32_t mask) { return _mm256_cvtepi32_ps(masked(words, mask)); }
static inline Floats signed_byte(Words words, int number) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(shift_left(words, 24 - 8 * number), 24));
}
static inline Floats as_numbers(Words words) { return _mm256_cvtepi32_ps(words); }
static inline Words larger_words(Words a, Words b) { return _mm256_max_epu32(a, b); }
static inline uint32_t largest_word(Words a) {
  uint32_t words[LANES], largest = 0;
  memcpy(words, &a, sizeof words);
  for (uint32_t word : words) largest = word > largest ? word : largest;
  return largest;
}
static inline int32_t sum_of_words(Words a) {
  int32_t words[LANES], sum = 0;
  memcpy(words, &a, sizeof words);
  for (int32_t word : words) sum += word;
  return sum;
}
static inline void store_bytes(int8_t* p, Words words) {
  int32_t numbers[LANES];
  memcpy(numbers, &words, sizeof numbers);
  for (int i = 0; i < LANES; i++) p[i] = int8_t(numbers[i]);
}
#endif

static inline Floats add(Floats a, Floats b) { return a + b; }
static inline Floats subtract(Floats a, Floats b) { return a - b; }
static inline Floats multiply(Floats a, Floats b) { return a * b; }
static inline Floats divide(Floats a, Floats b) { return a / b; }

// Of the numbers of bfloat16 that are pairs in words the lower ones, and the higher ones.
static inline Floats low_numbers(Words pairs) { return as_floats(shift_left(pairs, 16)); }
static inline Floats high_numbers(Words pairs) { return as_floats(masked(pairs, 0xffff0000)); }

// sum + the products of both numbers of each pair.
static inline Floats add_pair_products(Floats sum, Words a, Words b) {
#ifdef __AVX512BF16__
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
  sum = add_product(low_numbers(a), low_numbers(b), sum);
  return add_product(high_numbers(a), high_numbers(b), sum);
#endif
}

static inline float from_bfloat16(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

// To the nearest, halves to the even one, in the lower halves of the words; NaN stays NaN.
#ifdef __AVX512BF16__
static inline __m256i to_bfloat16(Floats values) { return (__m256i)_mm512_cvtneps_pbh(values); }
#elif defined(__AVX512F__)
static inline __m256i to_bfloat16(Floats values) {
  const Words bits = _mm512_castps_si512(values);
  const Words odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const Words rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  const Words kept = _mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc00000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}
#endif

#ifdef __AVX512F__
static inline void store_first(float* y, Floats values, int count) {
  _mm512_mask_storeu_ps(y, __mmask16((1 << count) - 1), values);
}
static inline void store_first(uint16_t* y, Floats values, int count) {
  _mm256_mask_storeu_epi16(y, __mmask16((1 << count) - 1), to_bfloat16(values));
}
#else
static inline __m128i to_bfloat16(Floats values) {
  const Words bits = _mm256_castps_si256(values);
  const Words odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const Words rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const Words is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  const Words kept = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), is_nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(kept), _mm256_extracti128_si256(kept, 1));
}

static inline void store_first(float* y, Floats values, int count) {
  float all_values[LANES];
  store(all_values, values);
  memcpy(y, all_values, size_t(count) * 4);
}
static inline void store_first(uint16_t* y, Floats values, int count) {
  uint16_t all_values[LANES];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(all_values), to_bfloat16(values));
  memcpy(y, all_values, size_t(count) * 2);
}
#endif

// The results of one token for the rows from `row` on, as many as the matrix has.
static inline void put(const Product& p, int64_t token, int64_t row, Floats values) {
  const int64_t left = p.rows - row;
  const int count = left >= LANES ? LANES : left > 0 ? int(left) : 0;
  if (p.gives_bfloat16)
    store_first(static_cast<uint16_t*>(p.y) + token * p.y_stride + row, values, count);
  else
    store_first(static_cast<float*>(p.y) + token * p.y_stride + row, values, count);
}

// Memory of one thread that grows and is kept, aligned to 64 bytes; nullptr when there is none to have.
struct Scratch {
  void* memory = nullptr;
  size_t size = 0, used = 0;

  ~Scratch() { free(memory); }

  void* at_least(size_t num_bytes) {
    used = 0;
    if (num_bytes > size || memory == nullptr) {
      free(memory);
      size = (num_bytes / 4096 + 1) * 4096;
      memory = aligned_alloc(64, size);
      if (memory == nullptr) size = 0;
    }
    return memory;
  }

  // The next piece of it, aligned likewise, and the bytes that one takes.
  template <class T>
  T* take(int64_t count) {
    T* taken = reinterpret_cast<T*>(static_cast<uint8_t*>(memory) + used);
    used += bytes_of<T>(count);
    return taken;
  }

  template <class T>
  static size_t bytes_of(int64_t count) {
    return (size_t(count) * sizeof(T) + 63) / 64 * 64;
  }
};

}  // namespace herd
