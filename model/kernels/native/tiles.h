// How the blocks of a matrix lie in memory: tiles of 16 rows x 32 columns, a row of tiles after the other.
//
// Word v (4 bytes) of row n stands at 64 v + 4 n, and behind all words stand the 16 scales, in float16. So one load
// of 64 bytes is the same columns of 16 rows. No byte is added: a tile is 16 blocks of the file.
#pragma once

#include <cstdint>

namespace herd {

constexpr int TILE_ROWS = 16;
constexpr int TILE_COLUMNS = 32;

// 16 bytes a row: values 0-15 in their low nibbles, 16-31 above; 8 is zero.
struct Q4_0 {
  static constexpr int WORDS = 4;
  static constexpr int PARTS = 8;  // values in a word
  static constexpr int ZERO = 8;
  static constexpr int column(int word, int part) { return 16 * (part / 4) + 4 * word + part % 4; }
  static constexpr int shift(int part) { return 8 * (part % 4) + 4 * (part / 4); }
};

template <class Type>
constexpr int64_t tile_bytes() {
  return 64 * Type::WORDS + 2 * TILE_ROWS;
}

// A matrix in tiles, and one product with it.
struct Product {
  const uint8_t* tiles;
  int64_t rows, columns;  // of the matrix
  const void* x;          // (tokens, columns)
  void* y;                // (tokens, rows)
  int64_t tokens;
  bool is_bfloat16;  // x and y; else float32
  int num_threads;

  int64_t row_tiles() const { return (rows + TILE_ROWS - 1) / TILE_ROWS; }
  int64_t column_tiles() const { return columns / TILE_COLUMNS; }
};

}  // namespace herd
