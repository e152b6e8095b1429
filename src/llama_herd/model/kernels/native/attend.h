// Attention of tokens over the cache: rows of a ragged batch, each over the keys and values of its own sequence.
//
// A part is a stretch of a row's keys, and a chunk one kv head of a part: its keys and values are read once for all
// its queries. Where parts begin depends on the row's own length alone, and each sum has its own order: so a row's
// result is the same alone and among others. Scores and sums are float32.
#pragma once

#include "attend_floats.h"
#include "attend_pairs.h"
#include "pool.h"

namespace herd {

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
  const int num_threads = useful_threads<Cached>(a);
  AttentionJob job{a, parts, num_parts, num_threads, static_cast<uint8_t*>(found), found_bytes};
  Work work = attend_chunk<Cached>;
#ifdef __AVX512BF16__
  if (Cached::PER_WORD == 2) work = attend_chunk_of_pairs;
#endif
  pool.run(work, &job, num_parts * a.kv_heads, num_threads);
  job.parts = joined;
  pool.run(join_chunk<Cached>, &job, num_joined * a.heads, num_threads);
  return true;
}

}  // namespace herd
