// The product of any type, by any kernel that this library has.
#pragma once

#include "multiply_float32.h"
#include "multiply_int8.h"
#include "multiply_tiles.h"

namespace herd {

enum Kernel { FLOAT32 = 0, INT8 = 1, TILES = 2, NUMBERS = 3 };

template <class T>
static bool multiply_type(const Product& p, int kernel) {
  switch (kernel) {
    case FLOAT32: return multiply_float32<T>(p);
    case INT8: return multiply_int8<T>(p);
#ifdef __AMX_BF16__
    case TILES: return multiply_tiles<T>(p);
#endif
    default: return false;
  }
}

// Plain numbers have one kernel.
static inline bool multiply_numbers(const Product& p) {
#ifdef __AVX512F__
  return multiply_tiles<Numbers>(p);
#else
  return multiply_float32<Numbers>(p);
#endif
}

// False if there is no such kernel, or no memory to work in.
static bool multiply(const Product& p, int type, int kernel) {
  if (p.tokens == 0) return true;
  if (type == Numbers::TYPE) return p.is_bfloat16 && multiply_numbers(p);
  bool is_done = false;
  with_type(type, [&](auto of_blocks) { is_done = multiply_type<decltype(of_blocks)>(p, kernel); });
  return is_done;
}

}  // namespace herd
