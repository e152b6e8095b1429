// Attention of spans, which are tokens of a prompt: bfloat16 times bfloat16, summed up in float32.
//
// A row is one head of one token; the rows of a kv head stand token after token. All is computed turned: scores are
// keys x rows, sums are numbers of a head x rows. So what belongs to a row, its largest score and the total of its
// weights, is a lane, and no vector is ever summed up across its lanes. Blocks of keys begin where their positions say,
// and each row has sums of its own: its result is the same however its prompt is cut, and whoever is beside it.
#pragma once

#include "attend.h"
#include "tile_products.h"

#ifdef __AVX512F__
namespace herd {

constexpr int SLICE_KEYS = 32;
constexpr int BLOCK_SLICES = BLOCK_KEYS / SLICE_KEYS;
constexpr int64_t PART_BYTES = 512 << 10;  // of queries and sums, most: they stay in the core's cache
constexpr int64_t FEWEST_ROWS = 4 * AT_ONCE;  // of a part: for fewer it does not pay to lay out keys and values

// What a thread works on. Keys and values are those of a block; of tokens that nobody sees they are zeros.
struct SpanBuffers {
  int64_t slices;    // of 32 numbers of a head
  uint8_t* queries;  // (32 rows, slice, 16 rows): an AMX tile each, number pairs x rows
  float* sums;       // (32 rows, slice, even and odd numbers, 16 rows): numbers x rows
  float* largest;    // (32 rows)
  float* totals;     // (32 rows), of weights
  int32_t* ends;     // (32 rows): keys that each may see, if there is no window
  uint8_t* keys;     // (32 keys, slice, 16 keys): keys x numbers
  uint8_t* values;   // (slice, 32 keys, even and odd numbers): numbers x key pairs
  float* scores;     // (16 keys, 16 rows): keys x rows
  uint8_t* weights;  // (32 keys, 16 rows): key pairs x rows

  static int64_t slices_of(int64_t head_dim) { return (head_dim + SLICE_COLUMNS - 1) / SLICE_COLUMNS; }

  static size_t bytes(int64_t slices, int64_t num_rows) {
    return size_t(num_rows * (slices * 3 * 64 + 3 * 4) + BLOCK_SLICES * (2 * slices + 3) * PAIR_BYTES);
  }

  SpanBuffers(Scratch& scratch, int64_t slices, int64_t num_rows) : slices(slices) {
    queries = scratch.take<uint8_t>(num_rows * slices * 64);
    sums = scratch.take<float>(num_rows * slices * 32);
    largest = scratch.take<float>(num_rows);
    totals = scratch.take<float>(num_rows);
    ends = scratch.take<int32_t>(num_rows);
    keys = scratch.take<uint8_t>(BLOCK_SLICES * slices * PAIR_BYTES);
    values = scratch.take<uint8_t>(BLOCK_SLICES * slices * PAIR_BYTES);
    scores = scratch.take<float>(BLOCK_SLICES * PAIR_BYTES / 2);
    weights = scratch.take<uint8_t>(BLOCK_SLICES * PAIR_BYTES);
    memset(sums, 0, size_t(num_rows * slices * 128));
    memset(totals, 0, size_t(num_rows * 4));
    for (int64_t row = 0; row < num_rows; row++) largest[row] = MINUS_INFINITY;
  }
};

// Some rows of a span, of each kv head.
struct SpanPart {
  int64_t span, first, count;
};

struct SpansJob {
  const Attention& a;
  const SpanPart* parts;
  std::atomic<bool>* has_failed;
};

// A part of a kv head.
struct SpanRows {
  const Attention& a;
  int64_t span, kv_head, first, count;

  int64_t token(int64_t row) const { return (first + row) / a.group(); }
  int64_t head(int64_t row) const { return kv_head * a.group() + (first + row) % a.group(); }
  int64_t end_key(int64_t row) const { return a.lengths[span] + token(row); }
  int64_t first_key(int64_t row) const { return a.window && end_key(row) > a.window ? end_key(row) - a.window : 0; }
  int64_t batch_row(int64_t row) const { return a.rows[span] + token(row); }
};

// A stretch of keys.
struct KeyRange {
  int64_t first, end;

  bool has(int64_t key) const { return first <= key && key < end; }
};

// What stands for rows beyond the last one is as the last one.
static inline void read_span_queries(const SpanRows& rows, int64_t num_rows, SpanBuffers& buffers) {
  const Attention& a = rows.a;
  const int64_t num_words = a.head_dim / 2;
  for (int64_t first = 0; first < num_rows; first += LANES) {
    const uint32_t* from[LANES];
    for (int i = 0; i < LANES; i++) {
      const int64_t row = first + i < rows.count ? first + i : rows.count - 1;
      from[i] = static_cast<const uint32_t*>(a.q) + rows.batch_row(row) * a.q_stride / 2 + rows.head(row) * num_words;
      buffers.ends[first + i] = int32_t(rows.end_key(row));
    }
    uint8_t* to = buffers.queries + first / AT_ONCE * buffers.slices * PAIR_BYTES + first % AT_ONCE * 64;
    for (int64_t slice = 0; slice < buffers.slices; slice++, to += PAIR_BYTES) {
      Words words[LANES];
      for (int i = 0; i < LANES; i++)
        words[i] = load_lanes(from[i] + slice * LANES, first_lanes(num_words - slice * LANES));
      transpose(words);
      for (int i = 0; i < LANES; i++) _mm512_store_si512(to + i * 64, words[i]);
    }
  }
}

// Keys or values of 16 tokens, which lie in one page, as rows of one slice of their numbers.
static inline void read_tokens(const Tokens<Bfloat16>& tokens, KeyRange seen, int64_t first, int64_t slice,
                               Words* rows) {
  const Lanes lanes = first_lanes(tokens.token_words - slice * LANES);
  const bool is_seen = first < seen.end && first + LANES > seen.first;
  const uint32_t* words = is_seen ? tokens.at(first) + slice * LANES : nullptr;
  for (int i = 0; i < LANES; i++)
    rows[i] = seen.has(first + i) ? load_lanes(words + i * tokens.token_words, lanes) : all_words(0);
}

// Number by number those of two tokens as a word, then as many pairs of tokens as a vector has lanes.
static inline void lay_out_values(const Words* tokens, uint8_t* to) {
  Words even[LANES], odd[LANES];
  for (int i = 0; i < LANES; i++) {
    const Words low = all_words(0xffff), a = tokens[2 * i], b = tokens[2 * i + 1];
    even[i] = choose(low, a, shift_left(b, 16));
    odd[i] = choose(low, shift_right(a, 16), b);
  }
  transpose(even);
  transpose(odd);
  for (int i = 0; i < LANES; i++) {
    _mm512_store_si512(to + i * 64, even[i]);
    _mm512_store_si512(to + AMX_TILE_BYTES + i * 64, odd[i]);
  }
}

// The block that begins at a key.
static inline void read_block(const SpanRows& rows, int64_t block, KeyRange seen, SpanBuffers& buffers) {
  const Attention& a = rows.a;
  const Tokens<Bfloat16> keys(a, a.keys, rows.span, rows.kv_head), values(a, a.values, rows.span, rows.kv_head);
  for (int64_t k = 0; k < BLOCK_SLICES && block + k * SLICE_KEYS < seen.end; k++) {
    const int64_t key = block + k * SLICE_KEYS;
    for (int64_t slice = 0; slice < buffers.slices; slice++) {
      Words tokens[2 * LANES];
      read_tokens(keys, seen, key, slice, tokens);
      read_tokens(keys, seen, key + LANES, slice, tokens + LANES);
      uint8_t* to = buffers.keys + (k * buffers.slices + slice) * PAIR_BYTES;
      for (int i = 0; i < 2 * LANES; i++) _mm512_store_si512(to + i * 64, tokens[i]);
      read_tokens(values, seen, key, slice, tokens);
      read_tokens(values, seen, key + LANES, slice, tokens + LANES);
      lay_out_values(tokens, buffers.values + (slice * BLOCK_SLICES + k) * PAIR_BYTES);
    }
  }
}

// Scores of 16 rows as they are compared: capped, and minus infinity where a row sees none of a key.
static inline void cap_scores(const Attention& a, float* scores) {
  const Floats factor = all(a.scale / a.cap);
  for (int i = 0; i < LANES * LANES; i += LANES)
    store(scores + i, multiply(hyperbolic_tangent(multiply(load(scores + i), factor)), all(a.cap)));
}

static inline void hide_scores(int64_t key, Words first_keys, Words end_keys, float* scores) {
  for (int i = 0; i < LANES; i++) {
    const Words number = all_words(uint32_t(key + i));
    const __mmask16 from = _mm512_cmple_epi32_mask(first_keys, number);
    const __mmask16 seen = _mm512_mask_cmplt_epi32_mask(from, number, end_keys);
    store(scores + i * LANES, _mm512_mask_mov_ps(all(MINUS_INFINITY), seen, load(scores + i * LANES)));
  }
}

// What 16 rows see.
struct SeenKeys {
  Words first_keys, end_keys;
  KeyRange by_some, by_all;

  SeenKeys(int64_t window, const int32_t* ends) {
    const int32_t hidden = window && window < INT32_MAX ? int32_t(window) : INT32_MAX;  // from so many before the end on
    end_keys = _mm512_loadu_si512(ends);
    first_keys = _mm512_max_epi32(_mm512_sub_epi32(end_keys, _mm512_set1_epi32(hidden)), all_words(0));
    const int32_t last = ends[LANES - 1];
    by_some = {ends[0] > hidden ? ends[0] - hidden : 0, last};
    by_all = {last > hidden ? last - hidden : 0, ends[0]};
  }
};

// Turn the scores of 16 rows into weights, key pair by key pair, and give the factor that brings what was found
// before to their measure.
static inline Floats weigh_tiles(const Attention& a, const SeenKeys& seen, int64_t block, int64_t first, int64_t end,
                                 float* scores, float* largest, float* totals, uint8_t* weights) {
  constexpr int TILE = LANES * LANES, APART = 2 * TILE;
  constexpr float LOG2_E = 1.44269504f;
  const float scale = LOG2_E * (a.cap != 0 ? 1 : a.scale);
  const Floats none = all(MINUS_INFINITY);
  Floats most[4] = {load(largest), none, none, none};
  for (int64_t tile = 2 * first; tile < 2 * end; tile++) {
    float* of_tile = scores + tile * APART;
    const int64_t key = block + tile * LANES;
    if (a.cap != 0) cap_scores(a, of_tile);
    if (key < seen.by_all.first || key + LANES > seen.by_all.end)
      hide_scores(key, seen.first_keys, seen.end_keys, of_tile);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) most[i % 4] = larger(most[i % 4], load(of_tile + i * LANES));
  }
  const Floats before = load(largest), now = larger(larger(most[0], most[1]), larger(most[2], most[3]));
  store(largest, now);
  // A row that has seen no key yet has no largest score either.
  const __mmask16 has_seen = _mm512_cmp_ps_mask(now, none, _CMP_NEQ_UQ);
  const Floats start = _mm512_maskz_sub_ps(has_seen, zeros(), multiply(now, all(scale)));
  // Exactly 1 where the largest score stays: a block of which a row sees nothing must change none of its bits, and a
  // long prompt has many blocks, each of which would take a little from the weights of those before it.
  const __mmask16 has_grown = _mm512_cmp_ps_mask(now, before, _CMP_NEQ_UQ);
  const Floats less = power_of_two<5>(multiply(subtract(before, now), all(scale)));
  const Floats shrink = _mm512_mask_mov_ps(all(1.0f), has_grown, less);
  Floats total[2] = {multiply(load(totals), shrink), zeros()};
  for (int64_t tile = 2 * first; tile < 2 * end; tile++) {
    const float* of_tile = scores + tile * APART;
    uint8_t* to = weights + tile / 2 * PAIR_BYTES + tile % 2 * AMX_TILE_BYTES / 2;
#pragma GCC unroll 8
    for (int i = 0; i < LANES / 2; i++) {
      const Floats even = power_of_two<WEIGHT_DEGREE>(add_product(load(of_tile + 2 * i * LANES), all(scale), start));
      const Floats odd = power_of_two<WEIGHT_DEGREE>(add_product(load(of_tile + (2 * i + 1) * LANES), all(scale), start));
      total[0] = add(total[0], even);
      total[1] = add(total[1], odd);
      const Words half = all_words(0x8000);
      const Words low = shift_right(add_words(as_words(even), half), 16), high = add_words(as_words(odd), half);
      _mm512_store_si512(to + i * 64, choose(all_words(0xffff), low, high));
    }
  }
  store(totals, add(total[0], total[1]));
  return shrink;
}

static inline void shrink_sums(float* sums, int64_t slices, const Floats* shrink) {
  const Floats one = all(1.0f);
  if ((_mm512_cmp_ps_mask(shrink[0], one, _CMP_EQ_OQ) & _mm512_cmp_ps_mask(shrink[1], one, _CMP_EQ_OQ)) == 0xffff) return;
  for (int64_t tile = 0; tile < 2 * slices; tile++)
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++, sums += LANES * LANES)
#pragma GCC unroll 16
      for (int i = 0; i < LANES * LANES; i += LANES) store(sums + i, multiply(load(sums + i), shrink[half]));
}

// 32 rows and a block of keys.
static inline void attend_tiles(const SpanRows& rows, int64_t row, int64_t block, SpanBuffers& buffers) {
  const int64_t window = rows.a.window;
  const SeenKeys seen[2] = {SeenKeys(window, buffers.ends + row), SeenKeys(window, buffers.ends + row + LANES)};
  const int64_t first_key = seen[0].by_some.first - block, end_key = seen[1].by_some.end - block;
  const int64_t first = first_key > 0 ? first_key / SLICE_KEYS : 0;
  const int64_t end = end_key < BLOCK_KEYS ? (end_key + SLICE_KEYS - 1) / SLICE_KEYS : BLOCK_SLICES;
  if (first >= end) return;
  const int64_t slices = buffers.slices;
  for (int64_t k = first; k < end; k++) {
    add_products(buffers.keys + k * slices * PAIR_BYTES, buffers.queries + row * slices * 64, slices, AT_ONCE, true,
                 buffers.scores + k * AT_ONCE * AT_ONCE);
  }
  Floats shrink[2];
  for (int half = 0; half < 2; half++) {
    const int64_t at = row + half * LANES;
    shrink[half] = weigh_tiles(rows.a, seen[half], block, first, end, buffers.scores + half * LANES * LANES,
                               buffers.largest + at, buffers.totals + at, buffers.weights + half * AMX_TILE_BYTES);
  }
  float* sums = buffers.sums + row * slices * 32;
  shrink_sums(sums, slices, shrink);
  for (int64_t slice = 0; slice < slices; slice++, sums += AT_ONCE * AT_ONCE)
    add_products(buffers.values + (slice * BLOCK_SLICES + first) * PAIR_BYTES, buffers.weights + first * PAIR_BYTES,
                 end - first, AT_ONCE, false, sums);
}

static inline void put_rows(const SpanRows& rows, const SpanBuffers& buffers) {
  const Attention& a = rows.a;
  const int64_t num_words = a.head_dim / 2;
  for (int64_t row = 0; row < rows.count; row += LANES) {
    const Floats share = divide(all(1.0f), load(buffers.totals + row));
    const float* sums = buffers.sums + row / AT_ONCE * AT_ONCE * buffers.slices * 32 + row % AT_ONCE * LANES;
    uint32_t* to[LANES];
    for (int64_t i = 0; i < LANES && row + i < rows.count; i++)
      to[i] = static_cast<uint32_t*>(a.y) + (rows.batch_row(row + i) * a.heads + rows.head(row + i)) * num_words;
    for (int64_t slice = 0; slice < buffers.slices; slice++, sums += AT_ONCE * AT_ONCE) {
      Words even[LANES], odd[LANES];
      for (int i = 0; i < LANES; i++) {
        even[i] = as_words(multiply(load(sums + i * LANES), share));
        odd[i] = as_words(multiply(load(sums + (2 * LANES + i) * LANES), share));
      }
      transpose(even);
      transpose(odd);
      const Lanes lanes = first_lanes(num_words - slice * LANES);
      for (int i = 0; i < LANES && row + i < rows.count; i++) {
        const Floats numbers[2] = {as_floats(even[i]), as_floats(odd[i])};
        store_lanes(to[i] + slice * LANES, lanes, Bfloat16::words_of(numbers));
      }
    }
  }
}

static void attend_part(const void* argument, int64_t chunk) {
  static thread_local Scratch scratch;
  const SpansJob& job = *static_cast<const SpansJob*>(argument);
  const Attention& a = job.a;
  const SpanPart& part = job.parts[chunk / a.kv_heads];
  const SpanRows rows{a, part.span, chunk % a.kv_heads, part.first, part.count};
  const int64_t slices = SpanBuffers::slices_of(a.head_dim), num_rows = (part.count + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
  if (scratch.at_least(SpanBuffers::bytes(slices, num_rows)) == nullptr) {
    job.has_failed->store(true);
    return;
  }
  SpanBuffers buffers(scratch, slices, num_rows);
  read_span_queries(rows, num_rows, buffers);
  configure_tiles();
  const KeyRange seen{rows.first_key(0), rows.end_key(part.count - 1)};
  for (int64_t block = seen.first / BLOCK_KEYS * BLOCK_KEYS; block < seen.end; block += BLOCK_KEYS) {
    read_block(rows, block, seen, buffers);
    for (int64_t row = 0; row < num_rows; row += AT_ONCE) attend_tiles(rows, row, block, buffers);
  }
  release_tiles();
  put_rows(rows, buffers);
}

// Rows of a part: so many that what is known of them stays near, but a part for each thread, and some to spare.
static inline int64_t rows_of_part(const Attention& a, int64_t num_rows) {
  const int64_t most = PART_BYTES / (SpanBuffers::slices_of(a.head_dim) * 3 * 64);
  const int64_t share = num_rows * a.kv_heads / (CHUNKS_A_THREAD * a.num_threads);
  const int64_t wanted = share < FEWEST_ROWS ? FEWEST_ROWS : share;
  return (wanted < most ? wanted : most) / AT_ONCE * AT_ONCE;
}

// `counts` tokens of each span, of which the first one stands in `rows` and sees `lengths` keys, and each next one more.
static bool attend_spans(const Attention& a, const int64_t* counts) {
  static thread_local Scratch parts_of_thread;
  constexpr int64_t SCORES_A_THREAD = 1 << 17;  // take as long as to wake one
  int64_t num_rows = 0, num_scores = 0, num_parts = 0;
  for (int64_t span = 0; span < a.num_rows; span++) {
    num_rows += counts[span] * a.group();
    num_scores += counts[span] * a.heads * (a.lengths[span] + counts[span] / 2 - a.first_key(span));
  }
  const int64_t most_rows = rows_of_part(a, num_rows);
  void* memory = parts_of_thread.at_least(size_t(num_rows / most_rows + a.num_rows) * sizeof(SpanPart));
  if (memory == nullptr) return false;
  SpanPart* parts = static_cast<SpanPart*>(memory);
  for (int64_t span = a.num_rows - 1; span >= 0; span--) {  // what takes longest, the end of a prompt, comes first
    const int64_t rows = counts[span] * a.group();
    for (int64_t first = (rows - 1) / most_rows * most_rows; first >= 0; first -= most_rows)
      parts[num_parts++] = {span, first, rows - first < most_rows ? rows - first : most_rows};
  }
  std::atomic<bool> has_failed{false};
  const SpansJob job{a, parts, &has_failed};
  const int64_t useful = 1 + num_scores / SCORES_A_THREAD;
  pool.run(attend_part, &job, num_parts * a.kv_heads, useful < a.num_threads ? int(useful) : a.num_threads);
  return !has_failed;
}

}  // namespace herd
#endif
