// How the blocks of a matrix lie in memory: tiles of 16 rows x 32 columns, a row of tiles after the other.
//
// Word v (4 bytes) of row n stands at 64 v + 4 n, and behind all words stand the 16 scales, in float16. So one load
// of 64 bytes is the same columns of 16 rows. No byte is added: a tile is 16 blocks of the file.
#pragma once

#include <cstdint>

namespace herd {

constexpr int TILE_ROWS = 16;
constexpr int TILE_COLUMNS = 32;

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
