// Queries and keys turned by RoPE where they stand, and keys and values put into the cache. Before that the heads of
// queries and keys are normalised, where a model has that.
#pragma once

#include "elementwise.h"

namespace herd {

struct Rotation {
  void* qkv;                // (tokens, heads + 2 kv_heads, head_dim)
  const float *cos, *sin;   // (tokens, head_dim), sin negative in the first half
  const int64_t* cells;     // (tokens): where keys and values go
  void *keys, *values;      // (kv_heads, cells, head_dim), the heads `head_stride` numbers apart
  int64_t head_stride;
  int64_t tokens, heads, kv_heads, head_dim;
  const float* norm;        // (heads + kv_heads, head_dim), or none
  float eps;                // of the norm
};

template <class Number>
static inline void rotate_head(Number* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t at = 0; at < half; at += LANES) {
    const int64_t left = half - at, other = at + half;
    const Floats a = load_up_to(x + at, left), b = load_up_to(x + other, left);
    const Floats first = multiply(a, load_up_to(cos + at, left)), second = multiply(b, load_up_to(cos + other, left));
    store_up_to(x + at, add_product(b, load_up_to(sin + at, left), first), left);
    store_up_to(x + other, add_product(a, load_up_to(sin + other, left), second), left);
  }
}

template <class Number>
static void rotate_token(const void* argument, int64_t token) {
  const Rotation& r = *static_cast<const Rotation*>(argument);
  const size_t head_bytes = size_t(r.head_dim) * sizeof(Number);
  Number* x = static_cast<Number*>(r.qkv) + token * (r.heads + 2 * r.kv_heads) * r.head_dim;
  for (int64_t at = 0; at < (r.heads + r.kv_heads) * r.head_dim; at += r.head_dim) {
    if (r.norm != nullptr) norm_numbers(x + at, r.norm + at, x + at, r.head_dim, r.eps);
    rotate_head(x + at, r.cos + token * r.head_dim, r.sin + token * r.head_dim, r.head_dim / 2);
  }
  const Number *keys = x + r.heads * r.head_dim, *values = keys + r.kv_heads * r.head_dim;
  for (int64_t head = 0; head < r.kv_heads; head++) {
    const int64_t to = head * r.head_stride + r.cells[token] * r.head_dim;
    memcpy(static_cast<Number*>(r.keys) + to, keys + head * r.head_dim, head_bytes);
    memcpy(static_cast<Number*>(r.values) + to, values + head * r.head_dim, head_bytes);
  }
}

}  // namespace herd
