// The C interface of the native kernels. `native.py` is its one caller.
//
// All of it is one object, compiled once for each instruction set. Nothing is shared between two of them: a linker
// that kept one copy of a function might keep the one that this processor cannot run.

#include "attend.h"
#include "elementwise.h"
#include "multiply_float32.h"
#include "multiply_int8.h"
#include "multiply_tiles.h"
#include "rotate.h"

namespace {

enum Type { Q4_0 = 2, Q8_0 = 8, Q4_K = 12, Q6_K = 14 };  // as GGUF numbers them
enum Kernel { FLOAT32 = 0, INT8 = 1, TILES = 2 };

template <class T>
bool multiply(const herd::Product& p, int kernel) {
  switch (kernel) {
    case FLOAT32:
      return herd::multiply_float32<T>(p);
#ifdef __AVX512VNNI__
    case INT8:
      return herd::multiply_int8<T>(p);
#endif
#ifdef __AMX_BF16__
    case TILES:
      return herd::multiply_tiles<T>(p);
#endif
    default:
      return false;
  }
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

// Which of its kernels this library has: bit 1 << number for each.
API int herd_kernels() {
  int found = 1 << FLOAT32;
#ifdef __AVX512VNNI__
  found |= 1 << INT8;
#endif
#ifdef __AMX_BF16__
  found |= 1 << TILES;
#endif
  return found;
}

// y (tokens, rows) = x (tokens, columns) @ W.T. False if there is no such kernel, or no memory to work in.
API bool herd_multiply(int type, int kernel, const uint8_t* tiles, int64_t rows, int64_t columns, const void* x,
                       void* y, int64_t tokens, bool is_bfloat16, int num_threads) {
  if (tokens == 0) return true;
  const herd::Product p{tiles, rows, columns, x, y, tokens, is_bfloat16, num_threads};
  switch (type) {
    case Q4_0:
      return multiply<herd::Q4_0>(p, kernel);
    case Q8_0:
      return multiply<herd::Q8_0>(p, kernel);
    case Q4_K:
      return multiply<herd::Q4_K>(p, kernel);
    case Q6_K:
      return multiply<herd::Q6_K>(p, kernel);
    default:
      return false;
  }
}

// The attention of `a`. False if there is no memory to work in.
API bool herd_attend(const herd::Attention* a, bool is_bfloat16) {
  return is_bfloat16 ? herd::attend<herd::Bfloat16>(*a) : herd::attend<herd::Float32>(*a);
}

// y = x / sqrt(mean(x^2) + eps) * weight, row by row.
API void herd_norm(const void* x, const float* weight, void* y, int64_t rows, int64_t columns, float eps,
                   bool is_bfloat16, int num_threads) {
  const herd::RowsJob job{x, weight, y, rows, columns, eps};
  herd::run_rows(is_bfloat16 ? herd::norm_row<uint16_t> : herd::norm_row<float>, &job, rows, columns,
                 num_threads);
}

// y (rows, columns) = silu(gate) * up, where x has a row of both.
API void herd_swiglu(const void* x, void* y, int64_t rows, int64_t columns, bool is_bfloat16, int num_threads) {
  const herd::RowsJob job{x, nullptr, y, rows, columns, 0};
  herd::run_rows(is_bfloat16 ? herd::swiglu_row<uint16_t> : herd::swiglu_row<float>, &job, rows, columns,
                 num_threads);
}

// Turn queries and keys, and put keys and values into the cache.
API void herd_rotate(const herd::Rotation* r, bool is_bfloat16, int num_threads) {
  herd::run_rows(is_bfloat16 ? herd::rotate_token<uint16_t> : herd::rotate_token<float>, r, r->tokens,
                 (r->heads + 2 * r->kv_heads) * r->head_dim, num_threads);
}
