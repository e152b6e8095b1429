// Single rows of a matrix in tiles, as numbers: what an embedding is asked for.
//
// Products and sums are in the order of kernels/dequantize.py, so that their bits are equal.
#pragma once

#include "elementwise.h"
#include "types.h"

namespace herd {

struct LookUp {
  const uint8_t* tiles;
  int64_t rows, columns;
  const int64_t* ids;  // (count): of rows
  void* y;             // (count, columns)
  int64_t count;
  bool is_bfloat16;  // y; else float32
};

static inline bool are_rows(const LookUp& job) {
  for (int64_t i = 0; i < job.count; i++)
    if (job.ids[i] < 0 || job.ids[i] >= job.rows) return false;
  return true;
}

static inline float lane_of(Floats values, int lane) {
  float all_values[LANES];
  store(all_values, values);
  return all_values[lane];
}

static inline uint32_t lane_of(Words words, int lane) {
  uint32_t all_words[LANES];
  memcpy(all_words, &words, sizeof all_words);
  return all_words[lane];
}

// The values of a slice in one lane of its rows.
template <class Type>
static inline void slice_of_lane(Rows rows, int slice, int lane, float* values) {
  const Scales scales = Type::scales(rows, slice);
  for (int i = 0; i < 8; i++) {
    const int half = Type::HAS_TWO_SCALES ? i / 4 : 0;
    const float scale = lane_of(scales.halves[half], lane), minimum = lane_of(scales.minima[half], lane);
    const uint32_t four = lane_of(Type::four(rows, slice, i), lane);
    for (int column = 0; column < 4; column++) {
      const float value = scale * float(int(four >> 8 * column & ((1 << Type::BITS) - 1)) - Type::ZERO);
      values[4 * i + column] = Type::HAS_MINIMA ? value - minimum : value;
    }
  }
}

template <>
inline void slice_of_lane<Numbers>(Rows rows, int, int lane, float* values) {
  for (int word = 0; word < SLICE_COLUMNS / 2; word++) {
    const uint32_t two = lane_of(rows.word(word), lane);
    values[2 * word] = from_bfloat16(uint16_t(two));
    values[2 * word + 1] = from_bfloat16(uint16_t(two >> 16));
  }
}

template <class Type>
static void look_up_row(const void* argument, int64_t number) {
  const LookUp& job = *static_cast<const LookUp*>(argument);
  const int64_t id = job.ids[number];
  const uint8_t* tiles = job.tiles + id / TILE_ROWS * (job.columns / Type::BLOCK) * tile_bytes<Type>();
  const int lane = int(id % TILE_ROWS), first = lane / LANES * LANES;
  float values[SLICE_COLUMNS];
  for (int64_t k = 0; k < job.columns / SLICE_COLUMNS; k++) {
    const Rows rows{tiles + k / slices_of_tile<Type>() * tile_bytes<Type>(), first};
    slice_of_lane<Type>(rows, int(k % slices_of_tile<Type>()), lane - first, values);
    for (int at = 0; at < SLICE_COLUMNS; at += LANES) {
      const int64_t to = number * job.columns + k * SLICE_COLUMNS + at;
      if (job.is_bfloat16) store_numbers(static_cast<uint16_t*>(job.y) + to, load(values + at));
      else store_numbers(static_cast<float*>(job.y) + to, load(values + at));
    }
  }
}

// False if the matrix has no such row, or blocks of the type cannot be read.
static bool look_up(int type, const LookUp& job, int num_threads) {
  if (!are_rows(job)) return false;
  const auto read = [&](auto of_blocks) {
    run_rows(look_up_row<decltype(of_blocks)>, &job, job.count, job.columns, num_threads);
  };
  if (type != Numbers::TYPE) return with_type(type, read);
  read(Numbers());
  return true;
}

}  // namespace herd
