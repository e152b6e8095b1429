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
static inline Words load_words(const uint8_t* p) { return _mm512_loadu_si512(p); }
static inline void store(float* p, Floats values) { _mm512_storeu_ps(p, values); }
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
static inline Words load_words(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
static inline void store(float* p, Floats values) { _mm256_storeu_ps(p, values); }
#endif

static inline float from_bfloat16(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

// To the nearest, halves to the even one; NaN stays NaN.
static inline uint16_t to_bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The results of one token for the rows from `row` on, as many as the matrix has.
static inline void put(const Product& p, int64_t token, int64_t row, const float* values, int count) {
  const int64_t at = token * p.rows + row;
  if (row + count > p.rows) count = row < p.rows ? int(p.rows - row) : 0;
  if (!p.is_bfloat16) {
    memcpy(static_cast<float*>(p.y) + at, values, size_t(count) * 4);
    return;
  }
  uint16_t* y = static_cast<uint16_t*>(p.y) + at;
  for (int i = 0; i < count; i++) y[i] = to_bfloat16(values[i]);
}

// Memory of one thread that grows and is kept, aligned to 64 bytes; nullptr when there is none to have.
struct Scratch {
  void* memory = nullptr;
  size_t size = 0;

  void* at_least(size_t num_bytes) {
    if (num_bytes > size) {
      free(memory);
      size = (num_bytes + 4095) / 4096 * 4096;
      memory = aligned_alloc(64, size);
      if (memory == nullptr) size = 0;
    }
    return memory;
  }
};

}  // namespace herd
