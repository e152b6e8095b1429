// The C interface of the native kernels. `native.py` is its one caller.
//
// All of it is one object, compiled once for each instruction set. Nothing is shared between two of them: a linker
// that kept one copy of a function might keep the one that this processor cannot run.

#include "decode.h"
#include "draw.h"
#include "lay_out.h"
#include "layer.h"
#include "look_up.h"

#define API extern "C" __attribute__((visibility("default")))

// Which of its kernels this library has: bit 1 << number for each.
API int herd_kernels() {
  int found = 1 << herd::FLOAT32 | 1 << herd::INT8 | 1 << herd::NUMBERS;
#ifdef __AMX_BF16__
  found |= 1 << herd::TILES;
#endif
  return found;
}

// Write rows of blocks into tiles.
API void herd_lay_out(const herd::Blocks* blocks, uint8_t* tiles) { herd::lay_out(*blocks, tiles); }

// y (tokens, rows) = x (tokens, columns) @ W.T. False if there is no such kernel, or no memory to work in.
API bool herd_multiply(int type, int kernel, const uint8_t* tiles, int64_t rows, int64_t columns, const void* x,
                       void* y, int64_t tokens, bool is_bfloat16, bool gives_bfloat16, int num_threads) {
  return herd::multiply({tiles, rows, columns, x, y, rows, tokens, is_bfloat16, gives_bfloat16, num_threads}, type,
                        kernel);
}

// Write rows of a matrix as numbers. False if it has no such row, or blocks of the type cannot be read.
API bool herd_look_up(int type, const herd::LookUp* job, int num_threads) {
  return herd::look_up(type, *job, num_threads);
}

// The attention of `a`. False if there is no memory to work in.
API bool herd_attend(const herd::Attention* a, bool is_bfloat16) {
  return is_bfloat16 ? herd::attend<herd::Bfloat16>(*a) : herd::attend<herd::Float32>(*a);
}

// The attention of spans of tokens, of which the rows of `a` are the first ones, in bfloat16. False if this library
// does not attend to spans, or there is no memory to work in.
API bool herd_attend_spans(const herd::Attention* a, const int64_t* counts) {
#ifdef __AVX512F__
  return herd::attend_spans(*a, counts);
#else
  return false;
#endif
}

// y = x / sqrt(mean(x^2) + eps) * weight, row by row.
API void herd_norm(const void* x, const float* weight, void* y, int64_t rows, int64_t columns, float eps,
                   bool is_bfloat16, int num_threads) {
  const herd::RowsJob job{x, weight, y, rows, columns, eps};
  herd::run_rows(is_bfloat16 ? herd::norm_row<uint16_t> : herd::norm_row<float>, &job, rows, columns,
                 num_threads);
}

// y (rows, columns) = activation(gate) * up, where x has a row of both.
API void herd_gate(const void* x, void* y, int64_t rows, int64_t columns, herd::Activation activation,
                   bool is_bfloat16, int num_threads) {
  const herd::RowsJob job{x, nullptr, y, rows, columns, 0};
  const herd::Work work = is_bfloat16 ? herd::gated_row_by<uint16_t>(activation) : herd::gated_row_by<float>(activation);
  herd::run_rows(work, &job, rows, columns, num_threads);
}

// Turn queries and keys, and put keys and values into the cache.
API void herd_rotate(const herd::Rotation* r, bool is_bfloat16, int num_threads) {
  herd::run_rows(is_bfloat16 ? herd::rotate_token<uint16_t> : herd::rotate_token<float>, r, r->tokens,
                 (r->heads + 2 * r->kv_heads) * r->head_dim, num_threads);
}

// Find the tokens that a draw can end with.
API void herd_draw(const herd::Draw* d, int num_threads) {
  herd::run_rows(herd::draw_row, d, d->rows, d->tokens, num_threads);
}

// Find the largest logit of each row.
API void herd_largest(const herd::Largest* job, int num_threads) {
  herd::run_rows(herd::find_largest, job, job->rows, job->tokens, num_threads);
}

// Decoder layers, one after the other. False if a matrix has no such kernel, or there is no memory to work in.
API bool herd_layers(const herd::Layer* layers, int64_t first, int64_t count, const herd::LayerStep* step,
                     bool is_bfloat16) {
  return (is_bfloat16 ? herd::run_layers<uint16_t> : herd::run_layers<float>)(layers, first, count, *step);
}

// A step of single tokens through a whole model. Says how it went.
API int herd_decode(const herd::Decoder* decoder, const herd::DecodeStep* step, bool is_bfloat16) {
  return is_bfloat16 ? herd::DecodeRun<uint16_t>(*decoder, *step).run() : herd::DecodeRun<float>(*decoder, *step).run();
}
