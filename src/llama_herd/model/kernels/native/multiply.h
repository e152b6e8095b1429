// The product of any type, by any kernel that this library has.
#pragma once

#include "multiply_float32.h"
#include "multiply_int8.h"
#include "multiply_tiles.h"

namespace herd {

// As GGUF numbers them.
enum Type {
  Q4_0_TYPE = 2,
  Q4_1_TYPE = 3,
  Q5_0_TYPE = 6,
  Q8_0_TYPE = 8,
  Q2_K_TYPE = 10,
  Q3_K_TYPE = 11,
  Q4_K_TYPE = 12,
  Q5_K_TYPE = 13,
  Q6_K_TYPE = 14,
  IQ4_NL_TYPE = 20,
  IQ4_XS_TYPE = 23,
  BF16_TYPE = 30,
};
enum Kernel { FLOAT32 = 0, INT8 = 1, TILES = 2, NUMBERS = 3 };

template <class T>
static bool multiply_type(const Product& p, int kernel) {
  switch (kernel) {
    case FLOAT32:
      return multiply_float32<T>(p);
#ifdef __AVX512VNNI__
    case INT8:
      return multiply_int8<T>(p);
#endif
#ifdef __AMX_BF16__
    case TILES:
      return multiply_tiles<T>(p);
#endif
    default:
      return false;
  }
}

// False if there is no such kernel, or no memory to work in.
static bool multiply(const Product& p, int type, int kernel) {
  if (p.tokens == 0) return true;
  switch (type) {
    case Q4_0_TYPE:
      return multiply_type<Q4_0>(p, kernel);
    case Q4_1_TYPE:
      return multiply_type<Q4_1>(p, kernel);
    case Q5_0_TYPE:
      return multiply_type<Q5_0>(p, kernel);
    case Q8_0_TYPE:
      return multiply_type<Q8_0>(p, kernel);
    case Q2_K_TYPE:
      return multiply_type<Q2_K>(p, kernel);
    case Q3_K_TYPE:
      return multiply_type<Q3_K>(p, kernel);
    case Q4_K_TYPE:
      return multiply_type<Q4_K>(p, kernel);
    case Q5_K_TYPE:
      return multiply_type<Q5_K>(p, kernel);
    case Q6_K_TYPE:
      return multiply_type<Q6_K>(p, kernel);
    case IQ4_NL_TYPE:
      return multiply_type<IQ4_NL>(p, kernel);
    case IQ4_XS_TYPE:
      return multiply_type<IQ4_XS>(p, kernel);
#ifdef __AVX512BF16__
    case BF16_TYPE:  // which has one kernel
      return p.is_bfloat16 && multiply_tiles<Numbers>(p);
#endif
    default:
      return false;
  }
}

}  // namespace herd
