// How the blocks of a matrix lie in memory: tiles of 16 rows x one block, a row of tiles after the other.
//
// Word v (4 bytes) of row n stands at 64 v + 4 n, and behind all words stand the block's numbers of 16 bits, those of
// 16 rows side by side, or its one byte. So one load of 64 bytes is the same columns of 16 rows. No byte is added: a tile
// is 16 blocks of the file. It is read by slices of 32 columns.
#pragma once

#include <cstdint>

namespace herd {

constexpr int TILE_ROWS = 16;
constexpr int SLICE_COLUMNS = 32;

// A matrix in tiles, and one product with it.
struct Product {
  const uint8_t* tiles;
  int64_t rows, columns;  // of the matrix
  const void* x;          // (tokens, columns)
  void* y;                // (tokens, rows), those of a token `y_stride` numbers behind those of the one before
  int64_t y_stride;
  int64_t tokens;
  bool is_bfloat16;      // x; else float32
  bool gives_bfloat16;   // y; else float32
  int num_threads;

  int64_t row_tiles() const { return (rows + TILE_ROWS - 1) / TILE_ROWS; }
  int64_t slices() const { return columns / SLICE_COLUMNS; }
};

}  // namespace herd
