// Attention of tokens that decode, in float32, over a cache of either type.
//
// Keys are laid out number by number, as many as a vector has lanes: then a vector of scores is some keys of a query.
#pragma once

#include "attention.h"

namespace herd {

constexpr int QUERIES_AT_ONCE = LANES / 2;
constexpr int QUERIES_A_CHUNK = 16;  // of a kv head; what further ones read is in a cache

template <int COUNT>
struct Count {
  static constexpr int value = COUNT;
};

// Do what is to be done for a number of queries: as many at once as there are registers for, then what is left.
template <class Call>
static inline void for_queries(int64_t count, Call call) {
  int64_t q = 0;
  for (; q + QUERIES_AT_ONCE <= count; q += QUERIES_AT_ONCE) call(Count<QUERIES_AT_ONCE>(), q);
  if (q + 4 <= count) {
    call(Count<4>(), q);
    q += 4;
  }
  if (q + 2 <= count) {
    call(Count<2>(), q);
    q += 2;
  }
  if (q < count) call(Count<1>(), q);
}

// What one chunk works on. Numbers of a head stand in the order of lines.
struct alignas(64) HeadBuffers {
  float queries[QUERIES_A_CHUNK][MAX_NUMBERS];
  float keys[MAX_NUMBERS][LANES];  // of LANES tokens, number by number
  float scores[QUERIES_A_CHUNK][BLOCK_KEYS];
  Found found[QUERIES_A_CHUNK];
};

// LANES keys, number by number. Meanwhile others come near: `next` keys, and the values of these ones.
template <class Cached>
static void lay_out_keys(const uint32_t* words, const uint32_t* next, const uint32_t* values, int64_t head_dim,
                         float (*keys)[LANES]) {
  const int64_t num_words = head_dim / Cached::PER_WORD;
  for (int64_t at = 0; at < num_words; at += LANES, keys += LANES * Cached::PER_WORD) {
    const Lanes lanes = first_lanes(num_words - at);
    Words rows[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
      rows[i] = load_lanes(words + i * num_words + at, lanes);
      prefetch(next + i * num_words + at);
      prefetch(values + i * num_words + at);
    }
    transpose(rows);
#pragma GCC unroll 16
    for (int w = 0; w < LANES; w++)
#pragma GCC unroll 2
      for (int i = 0; i < Cached::PER_WORD; i++) store(keys[i * LANES + w], Cached::numbers(rows[w], i));
  }
}

template <int QUERIES>
static void score(const float (*queries)[MAX_NUMBERS], const float (*keys)[LANES], int64_t numbers,
                  float* scores) {
  Floats sums[QUERIES][2];
#pragma GCC unroll 8
  for (int q = 0; q < QUERIES; q++) sums[q][0] = sums[q][1] = zeros();
  for (int64_t n = 0; n < numbers; n += 2) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
      const Floats key = load(keys[n + i]);
#pragma GCC unroll 8
      for (int q = 0; q < QUERIES; q++) sums[q][i] = add_product(key, all(queries[q][n + i]), sums[q][i]);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < QUERIES; q++) store(scores + q * BLOCK_KEYS, add(sums[q][0], sums[q][1]));
}

// Add `count` rows of values, each as often as it weighs.
template <class Cached, int QUERIES>
static void add_values(const uint32_t* words, int64_t head_dim, int64_t count, const float* weights,
                       Found* found) {
  constexpr int PER_WORD = Cached::PER_WORD;
  const int64_t num_words = head_dim / PER_WORD;
  for (int64_t at = 0; at < num_words; at += LANES) {
    const Lanes lanes = first_lanes(num_words - at);
    Floats sums[QUERIES][PER_WORD];
#pragma GCC unroll 8
    for (int q = 0; q < QUERIES; q++)
#pragma GCC unroll 2
      for (int i = 0; i < PER_WORD; i++) sums[q][i] = load(found[q].sums + at * PER_WORD + i * LANES);
    const uint32_t* row = words + at;
    for (int64_t key = 0; key < count; key++, row += num_words) {
      const Words line = load_lanes(row, lanes);
#pragma GCC unroll 2
      for (int i = 0; i < PER_WORD; i++) {
        const Floats value = Cached::numbers(line, i);
#pragma GCC unroll 8
        for (int q = 0; q < QUERIES; q++) sums[q][i] = add_product(value, all(weights[q * BLOCK_KEYS + key]), sums[q][i]);
      }
    }
#pragma GCC unroll 8
    for (int q = 0; q < QUERIES; q++)
#pragma GCC unroll 2
      for (int i = 0; i < PER_WORD; i++) store(found[q].sums + at * PER_WORD + i * LANES, sums[q][i]);
  }
}

// Turn the scores of a block's lanes from `first` to `end` into weights, and what was found before to their measure.
static void weigh(float* scores, int64_t first, int64_t end, int64_t numbers, float cap, Found* found) {
  const Floats none = all(MINUS_INFINITY);
  Floats largest = none;
  for (int64_t at = first / LANES * LANES; at < end; at += LANES) {
    Floats score = load(scores + at);
    if (cap != 0) score = multiply(hyperbolic_tangent(score), all(cap));
    score = keep_lanes(score, first - at, end - at, none);
    store(scores + at, score);
    largest = larger(largest, score);
  }
  const float before = found->largest, now = largest_of(largest);
  found->largest = now > before ? now : before;
  Floats total = zeros();
  for (int64_t at = first / LANES * LANES; at < end; at += LANES) {
    const Floats weight = exponential(subtract(load(scores + at), all(found->largest)));
    store(scores + at, weight);
    total = add(total, keep_lanes(weight, first - at, end - at, zeros()));
  }
  const Floats shrink = exponential(all(before - found->largest));
  float factor[LANES];
  store(factor, shrink);
  found->total = found->total * factor[0] + sum_of(total);
  if (factor[0] != 1)
    for (int64_t n = 0; n < numbers; n += LANES) store(found->sums + n, multiply(load(found->sums + n), shrink));
}

template <class Cached>
static void read_queries(const Attention& a, int64_t row, int64_t head, int64_t count, HeadBuffers& buffers) {
  constexpr int PER_WORD = Cached::PER_WORD;
  const int64_t num_words = a.head_dim / PER_WORD;
  const uint32_t* words = static_cast<const uint32_t*>(a.q) + (a.rows[row] * a.q_stride) / PER_WORD + head * num_words;
  const Floats scale = all(a.cap != 0 ? a.scale / a.cap : a.scale);
  for (int64_t q = 0; q < count; q++, words += num_words)
    for (int64_t at = 0; at < num_words; at += LANES) {
      const Words line = load_lanes(words + at, first_lanes(num_words - at));
      for (int i = 0; i < PER_WORD; i++)
        store(buffers.queries[q] + at * PER_WORD + i * LANES, multiply(Cached::numbers(line, i), scale));
    }
}

// The keys from `first` to `end` of a row, which lie in one block, for some queries of a kv head.
template <class Cached>
static void attend_block(const Attention& a, int64_t row, int64_t kv_head, int64_t first, int64_t end, int64_t count,
                         HeadBuffers& buffers) {
  const int64_t numbers = numbers_of<Cached>(a.head_dim);
  const Tokens<Cached> keys(a, a.keys, row, kv_head), values(a, a.values, row, kv_head);
  const int64_t start = first / PAGE_KEYS * PAGE_KEYS;  // where the block begins
  for (int64_t key = first / LANES * LANES; key < end; key += LANES) {
    const int64_t next = key + KEYS_AHEAD < a.lengths[row] ? key + KEYS_AHEAD : key;
    lay_out_keys<Cached>(keys.at(key), keys.at(next), values.at(key), a.head_dim, buffers.keys);
    for_queries(count, [&](auto number, int64_t q) {
      score<decltype(number)::value>(buffers.queries + q, buffers.keys, numbers, buffers.scores[q] + key - start);
    });
  }
  for (int64_t q = 0; q < count; q++)
    weigh(buffers.scores[q], first - start, end - start, numbers, a.cap, &buffers.found[q]);
  for (int64_t key = first; key < end;) {
    const int64_t page_end = (key / PAGE_KEYS + 1) * PAGE_KEYS, num_keys = (page_end < end ? page_end : end) - key;
    for_queries(count, [&](auto number, int64_t q) {
      const float* weights = buffers.scores[q] + key - start;
      add_values<Cached, decltype(number)::value>(values.at(key), a.head_dim, num_keys, weights, buffers.found + q);
    });
    key += num_keys;
  }
}

template <class Cached>
static void attend_chunk(const void* argument, int64_t chunk) {
  const AttentionJob& job = *static_cast<const AttentionJob*>(argument);
  const Attention& a = job.a;
  const Part& part = job.parts[chunk / a.kv_heads];
  const int64_t kv_head = chunk % a.kv_heads, first_head = kv_head * a.group();
  HeadBuffers buffers;
  for (int64_t done = 0; done < a.group(); done += QUERIES_A_CHUNK) {
    const int64_t left = a.group() - done, count = left < QUERIES_A_CHUNK ? left : QUERIES_A_CHUNK;
    const int64_t head = first_head + done;
    read_queries<Cached>(a, part.row, head, count, buffers);
    for (int64_t q = 0; q < count; q++) {
      buffers.found[q].largest = MINUS_INFINITY;
      buffers.found[q].total = 0;
      memset(buffers.found[q].sums, 0, size_t(numbers_of<Cached>(a.head_dim)) * 4);
    }
    for (int64_t first = part.first; first < part.end;) {
      const int64_t block_end = first / PAGE_KEYS * PAGE_KEYS + BLOCK_KEYS;
      const int64_t end = block_end < part.end ? block_end : part.end;
      attend_block<Cached>(a, part.row, kv_head, first, end, count, buffers);
      first = end;
    }
    for (int64_t q = 0; q < count; q++) put_part<Cached>(job, part, head + q, buffers.found[q]);
  }
}

}  // namespace herd
