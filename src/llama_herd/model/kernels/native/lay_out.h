// Blocks as their file has them, in the order of tiles (`tiles.py`): 16 rows side by side, word by word.
#pragma once

#include <cstring>

#include "tiles.h"

namespace herd {

// A block is words of 4 bytes, but for its numbers of 16 bits, or a single byte, which stand together somewhere between
// them.
struct Blocks {
  const uint8_t* rows;  // one after the other, as many as fill tiles
  int64_t num_rows, row_bytes, block_bytes;
  int64_t halves_at, halves_bytes;
};

// Write `size` bytes of 16 blocks side by side, each `size` bytes of a block after the last.
template <int size>
static inline uint8_t* interleave(const uint8_t* block, int64_t row_bytes, int64_t num_bytes, uint8_t* out) {
  for (int64_t at = 0; at < num_bytes; at += size)
    for (int lane = 0; lane < TILE_ROWS; lane++, out += size)
      memcpy(out, block + lane * row_bytes + at, size);
  return out;
}

static inline void lay_out(const Blocks& b, uint8_t* out) {
  const int64_t rest_at = b.halves_at + b.halves_bytes;
  for (int64_t row = 0; row < b.num_rows; row += TILE_ROWS)
    for (int64_t at = 0; at < b.row_bytes; at += b.block_bytes) {
      const uint8_t* block = b.rows + row * b.row_bytes + at;
      out = interleave<4>(block, b.row_bytes, b.halves_at, out);
      out = interleave<4>(block + rest_at, b.row_bytes, b.block_bytes - rest_at, out);
      out = (b.halves_bytes == 1 ? interleave<1> : interleave<2>)(block + b.halves_at, b.row_bytes, b.halves_bytes, out);
    }
}

}  // namespace herd
