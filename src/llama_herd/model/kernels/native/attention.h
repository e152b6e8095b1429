// What attention over the cache is asked for, and what a part of it finds.
//
// A part is a stretch of a row's keys. A row that has several joins what they find.
#pragma once

#include "attend_vector.h"

namespace herd {

constexpr int PAGE_KEYS = 64;
constexpr int BLOCK_KEYS = 256;      // whose scores are weighed at once
constexpr int KEYS_AHEAD = 32;       // are on their way while others are at work
constexpr int MAX_PARTS = 16;        // of a row
constexpr int MAX_NUMBERS = 256;     // of a head
constexpr int WEIGHT_DEGREE = 3;     // of a weight's polynomial in bfloat16: rounding it changes 50 times as much
constexpr float MINUS_INFINITY = -__builtin_inff();

// Rows of queries, and where their keys are. Sizes of the cache in numbers.
struct Attention {
  const void* q;  // (any, heads, head_dim), the rows `q_stride` numbers apart
  int64_t q_stride;
  void* y;  // (any, heads, head_dim)
  const void *keys, *values;  // (kv_heads, pages, PAGE_KEYS, head_dim), the heads `head_stride` numbers apart
  int64_t head_stride;
  int64_t heads, kv_heads, head_dim;
  const int64_t *rows, *lengths, *tables;  // of q and y; keys that each may see; where its pages begin in `pages`
  const int64_t* pages;
  int64_t num_rows;
  int64_t window;    // keys that a token sees, its own one of them; 0: all
  float scale, cap;  // scores become cap * tanh(score / cap); 0: they stay
  int num_threads;

  int64_t group() const { return heads / kv_heads; }
  int64_t first_key(int64_t row) const { return window && lengths[row] > window ? lengths[row] - window : 0; }
};

// A stretch of a row's keys. A row of several has a place for what each of them found.
struct Part {
  int64_t row, first, end;
  int64_t place;  // number of the row's parts from here on, the first of them has them all
  int64_t count;
};

// What is known of one query: the sum of weights x values over `total`, the weights being e^(score - largest).
// In the order of lines, and no longer than these.
struct Found {
  float largest, total;
  float sums[MAX_NUMBERS];
};

struct AttentionJob {
  Attention a;
  const Part* parts;
  int64_t num_parts;
  int num_threads;
  uint8_t* found;  // (places, heads)
  int64_t found_bytes;

  Found& found_at(int64_t place, int64_t head) const {
    return *reinterpret_cast<Found*>(found + (place * a.heads + head) * found_bytes);
  }
};

// Numbers of a head in whole lines.
template <class Cached>
static inline int64_t numbers_of(int64_t head_dim) {
  constexpr int LINE = LANES * Cached::PER_WORD;
  return (head_dim + LINE - 1) / LINE * LINE;
}

static inline __attribute__((always_inline)) void prefetch(const uint32_t* words) {
  _mm_prefetch(reinterpret_cast<const char*>(words), _MM_HINT_T0);
}

// A kv head's keys or values of the tokens of a row.
template <class Cached>
struct Tokens {
  const uint32_t* words;
  const int64_t* pages;
  int64_t token_words;

  Tokens(const Attention& a, const void* numbers, int64_t row, int64_t kv_head)
      : words(static_cast<const uint32_t*>(numbers) + kv_head * (a.head_stride / Cached::PER_WORD)),
        pages(a.pages + a.tables[row]),
        token_words(a.head_dim / Cached::PER_WORD) {}

  const uint32_t* at(int64_t token) const {
    return words + (pages[token / PAGE_KEYS] * PAGE_KEYS + token % PAGE_KEYS) * token_words;
  }
};

template <class Cached>
static void put_found(const Attention& a, int64_t row, int64_t head, const Found& found) {
  constexpr int PER_WORD = Cached::PER_WORD;
  const int64_t num_words = a.head_dim / PER_WORD;
  uint32_t* words = static_cast<uint32_t*>(a.y) + (a.rows[row] * a.heads + head) * num_words;
  const Floats total = all(found.total);
  for (int64_t at = 0; at < num_words; at += LANES) {
    Floats numbers[PER_WORD];
    for (int i = 0; i < PER_WORD; i++) numbers[i] = divide(load(found.sums + at * PER_WORD + i * LANES), total);
    store_lanes(words + at, first_lanes(num_words - at), Cached::words_of(numbers));
  }
}

// What a part of a row found about a head: all there is, or what is to be joined.
template <class Cached>
static inline void put_part(const AttentionJob& job, const Part& part, int64_t head, const Found& found) {
  if (part.count == 1)
    put_found<Cached>(job.a, part.row, head, found);
  else
    memcpy(&job.found_at(part.place, head), &found, size_t(job.found_bytes));
}

}  // namespace herd
