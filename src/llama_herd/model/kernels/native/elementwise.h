// What a layer does with its rows besides products and attention: RMSNorm and gates, in float32, each row alone.
#pragma once

#include "attend_vector.h"
#include "pool.h"

namespace herd {

#ifdef __AVX512F__
static inline void store_numbers(uint16_t* p, Floats values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bfloat16(values));
}
#else
static inline void store_numbers(uint16_t* p, Floats values) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bfloat16(values));
}
#endif
static inline Floats load_numbers(const uint16_t* p) {
  return low_numbers(load_shorts(reinterpret_cast<const uint8_t*>(p)));
}
static inline Floats load_numbers(const float* p) { return load(p); }
static inline void store_numbers(float* p, Floats values) { store(p, values); }

// As many as there are up to a vector, zeros behind them.
template <class Number>
static inline Floats load_up_to(const Number* p, int64_t count) {
  if (count >= LANES) return load_numbers(p);
  Number numbers[LANES] = {};
  memcpy(numbers, p, size_t(count) * sizeof(Number));
  return load_numbers(numbers);
}

template <class Number>
static inline void store_up_to(Number* p, Floats values, int64_t count) {
  if (count >= LANES) return store_numbers(p, values);
  store_first(p, values, int(count));
}

// Rows of x and y, one after the other, and what to do with each.
struct RowsJob {
  const void* x;
  const float* weight;
  void* y;
  int64_t num_rows, columns;  // of y
  float eps;                  // of a norm
  float scale = 1;            // of what is added
};

// y = x / sqrt(mean(x^2) + eps) * weight, where y may be x.
template <class Number>
static inline void norm_numbers(const Number* x, const float* weight, Number* y, int64_t count, float eps) {
  Floats sums[4] = {zeros(), zeros(), zeros(), zeros()};
  for (int64_t at = 0; at < count;)
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, at += LANES) {
      const Floats values = at < count ? load_up_to(x + at, count - at) : zeros();
      sums[i] = add_product(values, values, sums[i]);
    }
  const float sum = sum_of(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  const Floats scale = all(1.0f / __builtin_sqrtf(sum / float(count) + eps));
  for (int64_t at = 0; at < count; at += LANES) {
    const int64_t left = count - at;
    const Floats values = multiply(load_up_to(x + at, left), scale);
    store_up_to(y + at, multiply(values, load_up_to(weight + at, left)), left);
  }
}

template <class Number>
static void norm_row(const void* argument, int64_t row) {
  const RowsJob& job = *static_cast<const RowsJob*>(argument);
  const int64_t first = row * job.columns;
  norm_numbers(static_cast<const Number*>(job.x) + first, job.weight, static_cast<Number*>(job.y) + first, job.columns,
               job.eps);
}

// 1 / (1 + e^-x)
static inline Floats sigmoid(Floats x) {
  const Words sign = all_words(0x80000000);
  const Floats one = all(1.0f), small = exponential(as_floats(masked_or(all_words(0xffffffff), as_words(x), sign)));
  const Floats part = as_floats(choose(spread_signs(as_words(x)), as_words(small), as_words(one)));
  return divide(part, add(one, small));
}

#ifdef __AVX512F__
// The same to 5e-6 of it, in a fifth of the time, for what is rounded to bfloat16 anyway.
static inline Floats rough_sigmoid(Floats x) {
  constexpr float LOG2_E = 1.44269504f, LARGEST = 126;  // beyond, a reciprocal is no normal number
  const Floats power = smaller(all(LARGEST), multiply(x, all(-LOG2_E)));
  const Floats below = add(all(1.0f), power_of_two<5>(power)), guess = _mm512_rcp14_ps(below);
  const Floats wrong = _mm512_fnmadd_ps(below, guess, all(1.0f));
  return add_product(guess, wrong, guess);
}
#else
static inline Floats rough_sigmoid(Floats x) { return sigmoid(x); }
#endif

static inline Floats sigmoid_of(Floats x, const float*) { return sigmoid(x); }
static inline Floats sigmoid_of(Floats x, const uint16_t*) { return rough_sigmoid(x); }

// An activation is x * sigmoid(this): of silu it is x, of gelu_pytorch_tanh 2 sqrt(2 / pi) (x + 0.044715 x^3).
enum class Activation : int64_t { SILU = 0, GELU_TANH = 1 };

template <Activation ACTIVATION>
static inline Floats steepened(Floats x) {
  constexpr float SLOPE = 1.59576912f, BEND = 0.07135482f;
  if (ACTIVATION == Activation::SILU) return x;
  return multiply(x, add_product(multiply(x, x), all(BEND), all(SLOPE)));
}

// y = activation(gate) * up
template <class Number, Activation ACTIVATION>
static void gated_row(const void* argument, int64_t row) {
  const RowsJob& job = *static_cast<const RowsJob*>(argument);
  const Number* gate = static_cast<const Number*>(job.x) + row * 2 * job.columns;
  const Number* up = gate + job.columns;
  Number* y = static_cast<Number*>(job.y) + row * job.columns;
  for (int64_t at = 0; at < job.columns; at += LANES) {
    const int64_t left = job.columns - at;
    const Floats x = load_up_to(gate + at, left);
    const Floats activated = multiply(x, sigmoid_of(steepened<ACTIVATION>(x), gate));
    store_up_to(y + at, multiply(activated, load_up_to(up + at, left)), left);
  }
}

template <class Number>
static inline Work gated_row_by(Activation activation) {
  return activation == Activation::SILU ? gated_row<Number, Activation::SILU> : gated_row<Number, Activation::GELU_TANH>;
}

// Threads that there is work for: to wake one takes as long as so many numbers.
static inline void run_rows(Work work, const void* job, int64_t num_rows, int64_t columns, int num_threads) {
  constexpr int64_t NUMBERS_A_THREAD = 1 << 15;
  const int64_t useful = 1 + num_rows * columns / NUMBERS_A_THREAD;
  pool.run(work, job, num_rows, useful < num_threads ? int(useful) : num_threads);
}

}  // namespace herd
