// Attention of tokens that decode, in bfloat16: what the processor multiplies are pairs of numbers.
//
// A vector holds the queries of a kv head side by side, an equal stretch of each: of 8 queries 4 numbers, of one 32. A
// stretch of a key is spread over all of them by its load, so nothing is transposed, and a vector of scores is some
// keys of each query. Values are added a pair of keys at a time. The number of queries alone says in which order a sum
// is taken.
#pragma once

#include "attention.h"

#ifdef __AVX512F__
namespace herd {

constexpr int MOST_QUERIES = 8;  // side by side

// Queries of a kv head, and what they have found. Each has WORDS neighbouring lanes of a vector.
struct alignas(64) QuerySet {
  uint32_t words[MAX_NUMBERS / 2 * MOST_QUERIES];  // stretch after stretch, of each query after query
  float scores[BLOCK_KEYS * MOST_QUERIES];         // of a block: some keys of each query, then the next ones
  uint16_t weights[BLOCK_KEYS * MOST_QUERIES];     // bfloat16, as the scores
  float largest[LANES], totals[LANES];             // a query's largest stands in all of its lanes
  float sums[MOST_QUERIES][MAX_NUMBERS];           // in the order of lines
};

// The keys and values of a chunk.
struct ChunkTokens {
  const Part& part;
  int64_t kv_head;
  Tokens<Bfloat16> keys, values;

  ChunkTokens(const AttentionJob& job, int64_t chunk)
      : part(job.parts[chunk / job.a.kv_heads]),
        kv_head(chunk % job.a.kv_heads),
        keys(job.a, job.a.keys, part.row, kv_head),
        values(job.a, job.a.values, part.row, kv_head) {}

  int64_t begin() const { return part.first / PAGE_KEYS * PAGE_KEYS; }
};

// Of which a thread has one chunk at work, and most likely `next` after it.
struct Chunks {
  const Attention& a;
  ChunkTokens now, next;

  Chunks(const AttentionJob& job, int64_t chunk)
      : a(job.a),
        now(job, chunk),
        next(job, chunk + job.num_threads < job.num_parts * job.a.kv_heads ? chunk + job.num_threads : chunk) {}

  int64_t num_words() const { return now.keys.token_words; }

  // The keys of a page that is at work a block after this one; nullptr if there are none.
  const uint32_t* keys_a_block_after(int64_t page) const {
    if (page + BLOCK_KEYS < now.part.end) return now.keys.at(page + BLOCK_KEYS);
    const int64_t there = next.begin() + (page - now.begin()) % BLOCK_KEYS;
    return there < next.part.end ? next.keys.at(there) : nullptr;
  }
};

// A stretch of a key, for each query.
template <int WORDS>
static inline Words spread(const uint32_t* words, Lanes lanes) {
  if constexpr (WORDS == 16) return load_lanes(words, lanes);
  else if constexpr (WORDS == 8)
    return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)));
  else if constexpr (WORDS == 4)
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)));
  else {
    int64_t two;
    memcpy(&two, words, 8);
    return _mm512_set1_epi64(two);
  }
}

// Where each group of 2 * STEP lanes has two halves: those of a, added up, and then those of b.
template <int STEP>
static inline Floats add_halves(Floats a, Floats b) {
  if constexpr (STEP == 1) return add(_mm512_mask_moveldup_ps(a, 0xaaaa, b), _mm512_mask_movehdup_ps(b, 0x5555, a));
  else if constexpr (STEP == 2) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return add(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  } else if constexpr (STEP == 4) {
    const Words low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
    const Words high = add_words(low, all_words(4));
    return add(_mm512_permutex2var_ps(a, low, b), _mm512_permutex2var_ps(a, high, b));
  } else return add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

// Of COUNT vectors the sum of each query's lanes, each in the lane of its number: one vector.
template <int COUNT, int STEP = 1>
static inline Floats sums_of(Floats* vectors) {
  if constexpr (COUNT == 1) return vectors[0];
  else {
#pragma GCC unroll 8
    for (int i = 0; i < COUNT / 2; i++) vectors[i] = add_halves<STEP>(vectors[2 * i], vectors[2 * i + 1]);
    return sums_of<COUNT / 2, 2 * STEP>(vectors);
  }
}

// Each lane's neighbour, STEP lanes away.
template <int STEP>
static inline Floats neighbours(Floats a) {
  if constexpr (STEP == 1) return _mm512_permute_ps(a, 0xb1);
  else if constexpr (STEP == 2) return _mm512_permute_ps(a, 0x4e);
  else if constexpr (STEP == 4) return _mm512_shuffle_f32x4(a, a, 0xb1);
  else return _mm512_shuffle_f32x4(a, a, 0x4e);
}

// What a query's lanes have in common, in each of them.
template <int WORDS, class Join>
static inline Floats joined(Floats a, Join join) {
  a = join(a, neighbours<1>(a));
  if constexpr (WORDS > 2) a = join(a, neighbours<2>(a));
  if constexpr (WORDS > 4) a = join(a, neighbours<4>(a));
  if constexpr (WORDS > 8) a = join(a, neighbours<8>(a));
  return a;
}

template <int WORDS, int COUNT>
static inline void read_queries(const Attention& a, int64_t row, int64_t head, QuerySet& set) {
  const int64_t num_words = a.head_dim / 2;
  const uint32_t* words = static_cast<const uint32_t*>(a.q) + a.rows[row] * a.q_stride / 2 + head * num_words;
  memset(set.words, 0, size_t((num_words + WORDS - 1) / WORDS * LANES) * 4);
  for (int q = 0; q < COUNT; q++, words += num_words)
    for (int64_t at = 0; at < num_words; at++) set.words[at / WORDS * LANES + q * WORDS + at % WORDS] = words[at];
}

// The scores of as many keys as a vector has lanes, in the order of memory. Meanwhile the values of these come near,
// and `next` keys if there are any. What is fetched is spread over the work: a core waits for few lines at a time.
template <int WORDS>
static inline void score(const QuerySet& set, const uint32_t* keys, const uint32_t* next, const uint32_t* values,
                         int64_t num_words, float* scores) {
  constexpr int KEYS_AT_ONCE = WORDS == 2 ? 4 : 1;  // one by one is the order of memory; here that is too many loads
  Floats sums[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i += KEYS_AT_ONCE) {
#pragma GCC unroll 4
    for (int j = i; j < i + KEYS_AT_ONCE; j++) sums[j] = zeros();
    for (int64_t line = 0; line < num_words; line += LANES) {
      for (int64_t at = i * num_words + line; at < (i + KEYS_AT_ONCE) * num_words; at += num_words) {
        if (next) prefetch(next + at);
        prefetch(values + at);
      }
      const Lanes lanes = first_lanes(num_words - line);
      for (int64_t at = line; at < line + LANES && at < num_words; at += WORDS) {
        const Words queries = _mm512_load_si512(set.words + at / WORDS * LANES);
#pragma GCC unroll 4
        for (int j = i; j < i + KEYS_AT_ONCE; j++)
          sums[j] = add_pair_products(sums[j], queries, spread<WORDS>(keys + j * num_words + at, lanes));
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < LANES; i += WORDS, scores += LANES) store(scores, sums_of<WORDS>(sums + i));
}

// Minus infinity for keys that are not from `first` to `end`, the first lane of each query being number `key`.
template <int WORDS>
static inline Floats hide_keys(Floats scores, int64_t key, int64_t first, int64_t end) {
  const Words keys = add_words(masked(numbers_of_lanes(), WORDS - 1), all_words(uint32_t(key)));
  const __mmask16 from = _mm512_cmpge_epi32_mask(keys, all_words(uint32_t(first)));
  const __mmask16 seen = _mm512_mask_cmplt_epi32_mask(from, keys, all_words(uint32_t(end)));
  return _mm512_mask_mov_ps(all(MINUS_INFINITY), seen, scores);
}

// Turn the scores of a block's keys from `first` to `end` into weights, and what was found before to their measure.
template <int WORDS, int COUNT>
static void weigh(const Attention& a, int64_t first, int64_t end, QuerySet& set) {
  constexpr float LOG2_E = 1.44269504f;
  constexpr int QUERIES = LANES / WORDS;
  const float scale = LOG2_E * (a.cap != 0 ? 1 : a.scale);
  const int64_t begin = first / LANES * LANES, stop = (end + LANES - 1) / LANES * LANES;
  const Floats before = load(set.largest);
  Floats most[2] = {before, before};
  for (int64_t key = begin; key < stop; key += WORDS) {
    float* at = set.scores + key * QUERIES;
    Floats scores = load(at);
    if (a.cap != 0) scores = multiply(hyperbolic_tangent(multiply(scores, all(a.scale / a.cap))), all(a.cap));
    if (key < first || key + WORDS > end) scores = hide_keys<WORDS>(scores, key, first, end);
    store(at, scores);
    most[key / WORDS % 2] = larger(most[key / WORDS % 2], scores);
  }
  const Floats now = joined<WORDS>(larger(most[0], most[1]), larger);
  store(set.largest, now);
  const Floats start = subtract(zeros(), multiply(now, all(scale)));
  // Exactly 1 where the largest score stays: a long row has many blocks, each of which would take a little away.
  const Floats less = power_of_two<5>(multiply(subtract(before, now), all(scale)));
  const Floats shrink = _mm512_mask_mov_ps(all(1.0f), _mm512_cmp_ps_mask(now, before, _CMP_NEQ_UQ), less);
  Floats totals[2] = {multiply(load(set.totals), shrink), zeros()};
  for (int64_t key = begin; key < stop; key += WORDS) {
    const Floats scores = load(set.scores + key * QUERIES);
    const Floats weights = power_of_two<WEIGHT_DEGREE>(add_product(scores, all(scale), start));
    totals[key / WORDS % 2] = add(totals[key / WORDS % 2], weights);
    _mm256_store_si256(reinterpret_cast<__m256i*>(set.weights + key * QUERIES), to_bfloat16(weights));
  }
  store(set.totals, add(totals[0], totals[1]));
  float factors[LANES];
  store(factors, shrink);
  for (int q = 0; q < COUNT; q++)
    if (factors[q * WORDS] != 1)
      for (int64_t n = 0; n < numbers_of<Bfloat16>(a.head_dim); n += LANES)
        store(set.sums[q] + n, multiply(load(set.sums[q] + n), all(factors[q * WORDS])));
}

// LINES lines of the values of a page's keys.
template <int WORDS, int COUNT, int LINES>
static inline void add_lines(const uint32_t* values, const uint32_t* next, int64_t num_words, int64_t at, int64_t first,
                             int64_t end, const uint16_t* weights, QuerySet& set) {
  const Words low = all_words(0xffff);
  const Lanes lanes = first_lanes(num_words - at - (LINES - 1) * LANES);  // of the last line
  Floats sums[COUNT][LINES][2];
#pragma GCC unroll 8
  for (int q = 0; q < COUNT; q++)
#pragma GCC unroll 8
    for (int i = 0; i < 2 * LINES; i++) sums[q][i / 2][i % 2] = load(set.sums[q] + at * 2 + i * LANES);
  for (int64_t key = first / 2 * 2; key < end; key += 2) {
    const uint32_t* words = values + key * num_words + at;
    const uint16_t* of_pair = weights + key / WORDS * LANES + key % WORDS;
#pragma GCC unroll 4
    for (int line = 0; line < LINES; line++, words += LANES) {
      if (next) {
        prefetch(next + (words - values));
        prefetch(next + (words - values) + num_words);
      }
      const Lanes seen = line + 1 < LINES ? Lanes(0xffff) : lanes;
      const Words one = load_lanes(words, key < first ? Lanes(0) : seen);
      const Words other = load_lanes(words + num_words, key + 1 < end ? seen : Lanes(0));
      const Words even = choose(low, one, shift_left(other, 16));
      const Words odd = choose(low, shift_right(one, 16), other);
#pragma GCC unroll 8
      for (int q = 0; q < COUNT; q++) {
        uint32_t pair;
        memcpy(&pair, of_pair + q * WORDS, 4);
        sums[q][line][0] = add_pair_products(sums[q][line][0], all_words(pair), even);
        sums[q][line][1] = add_pair_products(sums[q][line][1], all_words(pair), odd);
      }
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < COUNT; q++)
#pragma GCC unroll 8
    for (int i = 0; i < 2 * LINES; i++) store(set.sums[q] + at * 2 + i * LANES, sums[q][i / 2][i % 2]);
}

// Add the values of a page's keys from `first` to `end`, numbers in the page, each as often as it weighs. A key of a
// pair that nobody sees counts as zeros. Meanwhile `next` keys come near, if there are any.
template <int WORDS, int COUNT>
static void add_values(const uint32_t* values, const uint32_t* next, int64_t num_words, int64_t first, int64_t end,
                       const uint16_t* weights, QuerySet& set) {
  constexpr int LINES = COUNT > 4 ? 1 : COUNT > 2 ? 2 : 4;  // so many as there are registers for
  int64_t at = 0;
  for (; at + LINES * LANES <= num_words; at += LINES * LANES)
    add_lines<WORDS, COUNT, LINES>(values, next, num_words, at, first, end, weights, set);
  for (; at < num_words; at += LANES)
    add_lines<WORDS, COUNT, 1>(values, next, num_words, at, first, end, weights, set);
}

// The keys from `first` to `end` of a chunk, which lie in one block. Those of the block after it come near beside values.
template <int WORDS, int COUNT>
static void attend_block(const Chunks& chunks, int64_t first, int64_t end, QuerySet& set) {
  constexpr int QUERIES = LANES / WORDS;
  const ChunkTokens& tokens = chunks.now;
  const int64_t start = first / PAGE_KEYS * PAGE_KEYS;  // where the block begins
  for (int64_t key = first / LANES * LANES; key < end; key += LANES) {
    const bool fetches = first == tokens.part.first && key + KEYS_AHEAD < end;
    score<WORDS>(set, tokens.keys.at(key), fetches ? tokens.keys.at(key + KEYS_AHEAD) : nullptr, tokens.values.at(key),
                 chunks.num_words(), set.scores + (key - start) * QUERIES);
  }
  weigh<WORDS, COUNT>(chunks.a, first - start, end - start, set);
  for (int64_t page = start; page < end; page += PAGE_KEYS)
    add_values<WORDS, COUNT>(tokens.values.at(page), chunks.keys_a_block_after(page), chunks.num_words(),
                             first > page ? first - page : 0, end < page + PAGE_KEYS ? end - page : PAGE_KEYS,
                             set.weights + (page - start) * QUERIES, set);
}

// A chunk, for COUNT queries from `head` on.
template <int WORDS, int COUNT>
static void attend_set(const AttentionJob& job, const Chunks& chunks, int64_t head) {
  const Attention& a = job.a;
  const Part& part = chunks.now.part;
  QuerySet set;
  read_queries<WORDS, COUNT>(a, part.row, head, set);
  memset(set.sums, 0, sizeof set.sums[0] * COUNT);
  store(set.largest, all(MINUS_INFINITY));
  store(set.totals, zeros());
  for (int64_t first = part.first; first < part.end;) {
    const int64_t block_end = first / PAGE_KEYS * PAGE_KEYS + BLOCK_KEYS;
    const int64_t end = block_end < part.end ? block_end : part.end;
    attend_block<WORDS, COUNT>(chunks, first, end, set);
    first = end;
  }
  float totals[LANES];
  store(totals, joined<WORDS>(load(set.totals), add));
  for (int q = 0; q < COUNT; q++) {
    Found found;
    found.largest = set.largest[q * WORDS] * (a.cap != 0 ? 1 : a.scale);
    found.total = totals[q * WORDS];
    memcpy(found.sums, set.sums[q], sizeof found.sums);
    put_part<Bfloat16>(job, part, head + q, found);
  }
}

// As many queries of a kv head as are left, but 8 at most.
static inline void attend_some(const AttentionJob& job, const Chunks& chunks, int64_t head, int64_t count) {
  switch (count) {
    case 1: return attend_set<16, 1>(job, chunks, head);
    case 2: return attend_set<8, 2>(job, chunks, head);
    case 3: return attend_set<4, 3>(job, chunks, head);
    case 4: return attend_set<4, 4>(job, chunks, head);
    case 5: return attend_set<2, 5>(job, chunks, head);
    case 6: return attend_set<2, 6>(job, chunks, head);
    case 7: return attend_set<2, 7>(job, chunks, head);
    default: return attend_set<2, MOST_QUERIES>(job, chunks, head);
  }
}

static void attend_chunk_of_pairs(const void* argument, int64_t chunk) {
  const AttentionJob& job = *static_cast<const AttentionJob*>(argument);
  const Chunks chunks(job, chunk);
  const int64_t first = chunks.now.kv_head * job.a.group(), end = first + job.a.group();
  const int64_t most = job.a.head_dim % 16 == 0 ? MOST_QUERIES : 1;  // else a head is no whole stretches
  for (int64_t head = first; head < end; head += most)
    attend_some(job, chunks, head, end - head < most ? end - head : most);
}

}  // namespace herd
#endif
