// What the words of a tile mean, by the type of the blocks.
#pragma once

#include "vector.h"

namespace herd {

// 16 bytes a row: values 0-15 in their low nibbles, 16-31 above; 8 is zero.
struct Q4_0 {
  static constexpr int WORDS = 4;
  static constexpr int PARTS = 8;  // values in a word
  static constexpr int ZERO = 8;

  static constexpr int column(int word, int part) { return 16 * (part / 4) + 4 * word + part % 4; }

  // One value of each row, without its scale.
  static inline Floats value(Words words, int part) {
    const int shift = 8 * (part % 4) + 4 * (part / 4);
#ifdef __AVX512F__
    const Floats table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(words, shift), table);  // by the lowest 4 bits
#else
    const Words nibbles = _mm256_and_si256(_mm256_srli_epi32(words, shift), _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(nibbles, _mm256_set1_epi32(ZERO)));
#endif
  }

#ifdef __AVX512F__
  // Of each row columns 4 i to 4 i + 3, as bytes from 0 on.
  static inline void unpack(const uint8_t* tile, Words bytes[8]) {
    const Words low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int v = 0; v < WORDS; v++) {
      const Words words = load_words(tile + 64 * v);
      bytes[v] = _mm512_and_si512(words, low);
      bytes[v + 4] = _mm512_and_si512(_mm512_srli_epi16(words, 4), low);
    }
  }
#endif
};

// 32 signed bytes a row.
struct Q8_0 {
  static constexpr int WORDS = 8;
  static constexpr int PARTS = 4;
  static constexpr int ZERO = 128;

  static constexpr int column(int word, int part) { return 4 * word + part; }

  static inline Floats value(Words words, int part) {
#ifdef __AVX512F__
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 24 - 8 * part), 24));
#else
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 24 - 8 * part), 24));
#endif
  }

#ifdef __AVX512F__
  static inline void unpack(const uint8_t* tile, Words bytes[8]) {
    const Words sign = _mm512_set1_epi8(-128);
#pragma GCC unroll 8
    for (int v = 0; v < WORDS; v++) bytes[v] = _mm512_xor_si512(load_words(tile + 64 * v), sign);
  }
#endif
};

template <class Type>
constexpr int64_t tile_bytes() {
  return 64 * Type::WORDS + 2 * TILE_ROWS;
}

// Threads that a product has work for: to wake one takes as long as to multiply these bytes by one token.
template <class Type>
static inline int useful_threads(const Product& p) {
  constexpr int64_t BYTES_A_THREAD = 600000, TOKENS_A_READING = 8;  // so many tokens cost as much as to read the tiles
  const int64_t num_bytes = p.row_tiles() * p.column_tiles() * tile_bytes<Type>();
  const int64_t useful = 1 + num_bytes * (TOKENS_A_READING + p.tokens) / TOKENS_A_READING / BYTES_A_THREAD;
  return useful < p.num_threads ? int(useful) : p.num_threads;
}

}  // namespace herd
