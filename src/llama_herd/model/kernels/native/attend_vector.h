// What attention does with vectors, beyond what products do: numbers of a cache by words, transposition, exponentials.
#pragma once

#include "vector.h"

namespace herd {

#ifdef __AVX512F__
typedef __mmask16 Lanes;
static inline Lanes first_lanes(int64_t count) { return count >= LANES ? Lanes(0xffff) : Lanes((1 << count) - 1); }
static inline Words load_lanes(const uint32_t* p, Lanes lanes) { return _mm512_maskz_loadu_epi32(lanes, p); }
static inline void store_lanes(uint32_t* p, Lanes lanes, Words words) { _mm512_mask_storeu_epi32(p, lanes, words); }
// The second where one of both is no number.
static inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
static inline Floats smaller(Floats a, Floats b) { return _mm512_min_ps(a, b); }
static inline Floats rounded(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT); }
static inline float sum_of(Floats a) { return _mm512_reduce_add_ps(a); }
static inline float largest_of(Floats a) { return _mm512_reduce_max_ps(a); }
static inline Words spread_signs(Words a) { return _mm512_srai_epi32(a, 31); }
static inline Words widened(__m256i halves) { return _mm512_cvtepu16_epi32(halves); }
static inline Words numbers_of_lanes() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
static inline Floats keep_lanes(Floats a, int64_t first, int64_t end, Floats others) {
  const Words lanes = numbers_of_lanes();
  const __mmask16 from = _mm512_cmpge_epi32_mask(lanes, _mm512_set1_epi32(int(first)));
  return _mm512_mask_mov_ps(others, _mm512_mask_cmplt_epi32_mask(from, lanes, _mm512_set1_epi32(int(end))), a);
}
// The first halves of two vectors in turn, and the second ones.
static inline void interleave(Words a, Words b, Words& low, Words& high) {
  const Words lanes = numbers_of_lanes(), halves = _mm512_srli_epi32(lanes, 1);
  const Words from_b = _mm512_slli_epi32(_mm512_and_si512(lanes, _mm512_set1_epi32(1)), 4);
  const Words order = _mm512_or_si512(halves, from_b);
  low = _mm512_permutex2var_epi32(a, order, b);
  high = _mm512_permutex2var_epi32(a, _mm512_add_epi32(order, _mm512_set1_epi32(8)), b);
}
#else
typedef __m256i Lanes;
static inline Words numbers_of_lanes() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
static inline Lanes first_lanes(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count >= LANES ? LANES : int(count)), numbers_of_lanes());
}
static inline Words load_lanes(const uint32_t* p, Lanes lanes) {
  return _mm256_maskload_epi32(reinterpret_cast<const int*>(p), lanes);
}
static inline void store_lanes(uint32_t* p, Lanes lanes, Words words) {
  _mm256_maskstore_epi32(reinterpret_cast<int*>(p), lanes, words);
}
static inline Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
static inline Floats rounded(Floats a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline float sum_of(Floats a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline float largest_of(Floats a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline Words spread_signs(Words a) { return _mm256_srai_epi32(a, 31); }
static inline Words widened(__m128i halves) { return _mm256_cvtepu16_epi32(halves); }
static inline Floats keep_lanes(Floats a, int64_t first, int64_t end, Floats others) {
  const Words lanes = numbers_of_lanes();
  const Words kept = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(int(first)), lanes),
                                         _mm256_cmpgt_epi32(_mm256_set1_epi32(int(end)), lanes));
  return _mm256_blendv_ps(others, a, _mm256_castsi256_ps(kept));
}
static inline void interleave(Words a, Words b, Words& low, Words& high) {
  const Words evens = _mm256_unpacklo_epi32(a, b), odds = _mm256_unpackhi_epi32(a, b);
  low = _mm256_permute2x128_si256(evens, odds, 0x20);
  high = _mm256_permute2x128_si256(evens, odds, 0x31);
}
#endif

// A line is LANES words of a token's keys or values: PER_WORD vectors of numbers, number i of each word in vector i.
struct Bfloat16 {
  static constexpr int PER_WORD = 2;
  static inline Floats numbers(Words words, int i) {
    return i == 0 ? low_numbers(words) : high_numbers(words);
  }
  static inline Words words_of(const Floats* numbers) {
    return masked_or(all_words(0xffffffff), widened(to_bfloat16(numbers[0])),
                     shift_left(widened(to_bfloat16(numbers[1])), 16));
  }
};

struct Float32 {
  static constexpr int PER_WORD = 1;
  static inline Floats numbers(Words words, int) { return as_floats(words); }
  static inline Words words_of(const Floats* numbers) { return as_words(numbers[0]); }
};

// Word w of row r becomes word r of row w. Rows i and i + LANES / 2, word by word in turn, are rows 2 i and 2 i + 1 of
// the next round: each round turns the bits of (row, word) by one.
static inline void transpose(Words* rows) {
#pragma GCC unroll 4
  for (int round = 1; round < LANES; round *= 2) {
    Words next[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < LANES / 2; i++) interleave(rows[i], rows[i + LANES / 2], next[2 * i], next[2 * i + 1]);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) rows[i] = next[i];
  }
}

// e^x for x <= 0, to about 1e-7 of it; what lies below -87 is as small as -87. Source: Cephes, expf
static inline Floats exponential(Floats x) {
  x = larger(all(-87.0f), x);
  const Floats power = rounded(multiply(x, all(1.44269504f)));  // of 2
  const Floats rest = add_product(power, all(2.12194440e-4f), add_product(power, all(-0.693359375f), x));
  Floats sum = all(1.9875691500e-4f);
  sum = add_product(sum, rest, all(1.3981999507e-3f));
  sum = add_product(sum, rest, all(8.3334519073e-3f));
  sum = add_product(sum, rest, all(4.1665795894e-2f));
  sum = add_product(sum, rest, all(1.6666665459e-1f));
  sum = add_product(sum, rest, all(5.0000001201e-1f));
  sum = add_product(sum, multiply(rest, rest), add(rest, all(1.0f)));
  return multiply(sum, as_floats(shift_left(add_words(whole_words(power), all_words(127)), 23)));
}

#ifdef __AVX512F__
// 2^x by a polynomial of this degree: to 8e-5 of it with 3, to 1e-7 with 5. Of minus infinity it is 0.
template <int DEGREE>
static inline Floats power_of_two(Floats x) {
  static_assert(DEGREE == 3 || DEGREE == 5);
  constexpr float CUBE[] = {0.999925196f, 0.695833564f, 0.226067156f, 0.0780245215f};
  constexpr float FIFTH[] = {0.99999994f, 0.693153083f, 0.240153611f, 0.0558263175f, 0.00898933969f, 0.00187757669f};
  const float* factors = DEGREE == 3 ? CUBE : FIFTH;
  const Floats rest = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // from 0 to 1
  Floats sum = all(factors[DEGREE]);
#pragma GCC unroll 5
  for (int i = DEGREE - 1; i >= 0; i--) sum = add_product(sum, rest, all(factors[i]));
  return _mm512_scalef_ps(sum, x);
}
#endif

static inline Floats hyperbolic_tangent(Floats x) {
  const Words sign = all_words(0x80000000);
  const Floats small = exponential(multiply(as_floats(masked_or(sign, all_words(0xffffffff), as_words(x))), all(2.0f)));
  const Floats size = divide(subtract(all(1.0f), small), add(all(1.0f), small));
  return as_floats(choose(sign, as_words(x), as_words(size)));
}

}  // namespace herd
