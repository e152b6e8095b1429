// The draw of a token by Gumbel-max: which tokens can have the largest logit plus noise.
//
// The noise (`noise.py`) is -log of an exponential of the hash's bits. Its logarithms are dear, and only a handful of
// tokens matter: a bound from the bits of a float tells which. Who calls computes the noise of these, so that the
// same token wins as among all.
#pragma once

#include <cmath>
#include <cstring>

#include "pool.h"

namespace herd {

constexpr int DRAW_LANES = 16;
typedef uint32_t DrawWords __attribute__((vector_size(4 * DRAW_LANES)));
typedef int32_t DrawInts __attribute__((vector_size(4 * DRAW_LANES)));
typedef float DrawFloats __attribute__((vector_size(4 * DRAW_LANES)));

struct Draw {
  const float* logits;       // (rows, tokens)
  const float* temperature;  // (rows)
  const float* least;        // (rows): how far below the largest a scaled logit may be
  const float* largest;      // (rows) of the logits
  const uint32_t* prefix;    // (rows): the hash's state before the token
  int64_t rows, tokens;
  int64_t* found;      // (rows, room): ids in order, as many as fit
  int64_t room;
  int64_t* num_found;  // (rows): also those that did not fit; 0 if no token has a number
};

// What the float's noise may be away from the exact one where it is coarsest, close to u = 1.
constexpr float NOISE_SLACK = 0.1f;
constexpr float LOG_2 = 0.693147180559945f;

template <class Words>
static inline Words hashed(Words word, uint32_t prefix) {
  word *= 0xCC9E2D51u;
  word = ((word << 15) | (word >> 17)) * 0x1B873593u;
  Words state = word ^ prefix;
  state = ((state << 13) | (state >> 19)) * 5u + 0xE6546B64u;
  state ^= 20u;
  state = (state ^ (state >> 16)) * 0x85EBCA6Bu;
  state = (state ^ (state >> 13)) * 0xC2B2AE35u;
  return state ^ (state >> 16);
}

// The noise is at most -log(u), u = (bits + 0.5) / 2^32. A float's bits as a number are its logarithm to base 2 but
// for 0.09, and never above it.
static inline DrawFloats most_noise(DrawWords bits) {
  const DrawFloats half = __builtin_convertvector((DrawInts)(bits >> 1), DrawFloats) + 0.25f;
  const DrawFloats log_2 = __builtin_convertvector((DrawInts)half, DrawFloats) * 0x1p-23f;
  return LOG_2 * (31.f + 127.f - log_2);
}

static inline double noise_of(uint32_t bits) {
  const double most = 0x1p32 - 0x1p8, unsigned_bits = bits < most ? bits : most;
  return -std::log(-std::log1p(-(unsigned_bits + 0.5) * 0x1p-32));
}

// The most that 16 tokens can reach from `first` on; those behind the last token, and those that are too far below
// the largest logit, reach nothing.
static inline DrawFloats most_of(const Draw& d, int64_t row, int64_t first, DrawFloats* scaled) {
  const DrawInts lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const DrawInts token = lane + int32_t(first);
  const float* logits = d.logits + row * d.tokens + first;
  const int64_t left = d.tokens - first;
  DrawFloats values = {};
  memcpy(&values, logits, size_t(left < DRAW_LANES ? left : DRAW_LANES) * sizeof(float));
  *scaled = values / d.temperature[row];
  const DrawFloats most = *scaled + most_noise(hashed((DrawWords)token, d.prefix[row]));
  const float top = d.largest[row] / d.temperature[row];
  const DrawInts may = (token < int32_t(d.tokens)) & ((*scaled - top) >= d.least[row]);
  const DrawFloats none = DrawFloats{} - INFINITY;
  return may ? most : none;
}

static void draw_row(const void* argument, int64_t row) {
  const Draw& d = *static_cast<const Draw*>(argument);
  DrawFloats best = DrawFloats{} - INFINITY, scaled, best_scaled = {};
  DrawInts best_first = {};
  for (int64_t first = 0; first < d.tokens; first += DRAW_LANES) {
    const DrawFloats most = most_of(d, row, first, &scaled);
    const DrawInts is_more = most > best;
    best = is_more ? most : best;
    best_scaled = is_more ? scaled : best_scaled;
    best_first = is_more ? DrawInts{} + int32_t(first) : best_first;
  }
  double reached = -INFINITY;  // what some token reaches for sure
  for (int lane = 0; lane < DRAW_LANES; lane++) {
    const double value = best_scaled[lane] + noise_of(hashed(uint32_t(best_first[lane] + lane), d.prefix[row]));
    if (best[lane] > -INFINITY && value > reached) reached = value;
  }
  const float needed = float(reached - NOISE_SLACK - 1e-5 * std::fabs(reached));
  int64_t count = 0;
  for (int64_t first = 0; first < d.tokens; first += DRAW_LANES) {
    const DrawInts can_win = most_of(d, row, first, &scaled) >= needed;
    for (int lane = 0; lane < DRAW_LANES; lane++)
      if (can_win[lane]) {
        if (count < d.room) d.found[row * d.room + count] = first + lane;
        count++;
      }
  }
  // Where no token has a number, those behind the last one reach as much: then none counts. A branch before the loop
  // would make that slower.
  d.num_found[row] = reached == -INFINITY ? 0 : count;
}

// The largest logit of each row, and the first token that has it; a NaN is larger than all.
struct Largest {
  const float* logits;  // (rows, tokens)
  int64_t rows, tokens;
  float* values;  // (rows)
  int64_t* ids;   // (rows)
};

static void find_largest(const void* argument, int64_t row) {
  const Largest& job = *static_cast<const Largest*>(argument);
  const float* logits = job.logits + row * job.tokens;
  DrawFloats best = DrawFloats{} - INFINITY;
  DrawInts is_nan = {};
  int64_t whole = 0;
  for (; whole + DRAW_LANES <= job.tokens; whole += DRAW_LANES) {
    DrawFloats values;
    memcpy(&values, logits + whole, sizeof values);
    best = values > best ? values : best;
    is_nan |= values != values;
  }
  float largest = -INFINITY;
  bool has_nan = false;
  for (int lane = 0; lane < DRAW_LANES; lane++) {
    largest = best[lane] > largest ? best[lane] : largest;
    has_nan |= is_nan[lane] != 0;
  }
  for (int64_t token = whole; token < job.tokens; token++) {
    largest = logits[token] > largest ? logits[token] : largest;
    has_nan |= logits[token] != logits[token];
  }
  int64_t id = 0;
  while (has_nan ? logits[id] == logits[id] : logits[id] != largest) id++;
  job.ids[row] = id;
  job.values[row] = logits[id];
}

}  // namespace herd
