// Attention of tokens over the cache: rows of a ragged batch, each over the keys and values of its own sequence.
//
// A part is a stretch of a row's keys, and a chunk one kv head of a part: its keys and values are read once for all
// its queries. Where parts begin depends on the row's own length alone, and each sum has its own order: so a row's
// result is the same alone and among others. Scores and sums are float32.
#pragma once

#include "attend_vector.h"
#include "pool.h"

namespace herd {

constexpr int PAGE_KEYS = 64;
constexpr int BLOCK_KEYS = 256;      // whose scores are weighed at once
constexpr int KEYS_AHEAD = 32;       // are on their way while others are at work
constexpr int MAX_PARTS = 16;        // of a row
constexpr int MAX_NUMBERS = 256;     // of a head
constexpr int QUERIES_AT_ONCE = LANES / 2;
constexpr int QUERIES_A_CHUNK = 16;  // of a kv head; what further ones read is in a cache
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

static inline void prefetch(const uint32_t* words) {
  _mm_prefetch(reinterpret_cast<const char*>(words), _MM_HINT_T0);
}

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
    for (int64_t q = 0; q < count; q++) {
      if (part.count == 1)
        put_found<Cached>(a, part.row, head + q, buffers.found[q]);
      else
        memcpy(&job.found_at(part.place, head + q), buffers.found + q, size_t(job.found_bytes));
    }
  }
}

// Bring what the parts of a row found about a head to one measure, and add it up.
template <class Cached>
static void join_chunk(const void* argument, int64_t chunk) {
  const AttentionJob& job = *static_cast<const AttentionJob*>(argument);
  const Attention& a = job.a;
  const Part& part = job.parts[chunk / a.heads];
  const int64_t head = chunk % a.heads, numbers = numbers_of<Cached>(a.head_dim);
  Found sum = {MINUS_INFINITY, 0, {}};
  for (int64_t i = 0; i < part.count; i++)
    sum.largest = job.found_at(part.place + i, head).largest > sum.largest ? job.found_at(part.place + i, head).largest
                                                                          : sum.largest;
  for (int64_t i = 0; i < part.count; i++) {
    const Found& found = job.found_at(part.place + i, head);
    const Floats shrink = exponential(all(found.largest - sum.largest));
    float factor[LANES];
    store(factor, shrink);
    sum.total += found.total * factor[0];
    for (int64_t n = 0; n < numbers; n += LANES)
      store(sum.sums + n, add_product(load(found.sums + n), shrink, load(sum.sums + n)));
  }
  put_found<Cached>(a, part.row, head, sum);
}

// The parts of a row: whole blocks but for the ends, as many as there may be.
static inline int64_t add_parts(const Attention& a, int64_t row, int64_t place, Part* parts) {
  const int64_t first = a.first_key(row), length = a.lengths[row], begin = first / PAGE_KEYS * PAGE_KEYS;
  const int64_t num_blocks = (length - begin + BLOCK_KEYS - 1) / BLOCK_KEYS;
  const int64_t step = (num_blocks + MAX_PARTS - 1) / MAX_PARTS * BLOCK_KEYS;
  const int64_t count = (length - begin + step - 1) / step;
  for (int64_t i = 0; i < count; i++) {
    const int64_t from = begin + i * step, to = from + step;
    parts[i] = {row, from > first ? from : first, to < length ? to : length, place + i, count};
  }
  return count;
}

// Threads that there is work for: to wake one takes as long as to read these bytes.
template <class Cached>
static inline int useful_threads(const Attention& a) {
  constexpr int64_t BYTES_A_THREAD = 100000;
  int64_t num_keys = 0;
  for (int64_t row = 0; row < a.num_rows; row++) num_keys += a.lengths[row] - a.first_key(row);
  const int64_t useful = 1 + num_keys * a.kv_heads * a.head_dim * 2 * (4 / Cached::PER_WORD) / BYTES_A_THREAD;
  return useful < a.num_threads ? int(useful) : a.num_threads;
}

template <class Cached>
static bool attend(const Attention& a) {
  static thread_local Scratch parts_of_thread, found_of_thread;
  Part* parts = static_cast<Part*>(parts_of_thread.at_least(size_t(a.num_rows) * 2 * MAX_PARTS * sizeof(Part)));
  if (parts == nullptr) return false;
  Part* joined = parts + a.num_rows * MAX_PARTS;  // the first ones of rows that have several
  int64_t num_parts = 0, num_joined = 0, num_places = 0;
  for (int64_t row = 0; row < a.num_rows; row++) {
    const int64_t count = add_parts(a, row, num_places, parts + num_parts);
    if (count > 1) {
      joined[num_joined++] = parts[num_parts];
      num_places += count;
    }
    num_parts += count;
  }
  const int64_t found_bytes = int64_t(sizeof(Found)) - 4 * (MAX_NUMBERS - numbers_of<Cached>(a.head_dim));
  void* found = found_of_thread.at_least(size_t(num_places * a.heads * found_bytes));
  if (num_places > 0 && found == nullptr) return false;
  AttentionJob job{a, parts, static_cast<uint8_t*>(found), found_bytes};
  const int num_threads = useful_threads<Cached>(a);
  pool.run(attend_chunk<Cached>, &job, num_parts * a.kv_heads, num_threads);
  job.parts = joined;
  pool.run(join_chunk<Cached>, &job, num_joined * a.heads, num_threads);
  return true;
}

}  // namespace herd
