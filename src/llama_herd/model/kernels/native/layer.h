// Decoder layers: what model/llama2.py says of them, in one call.
//
// Every step is one that Python could call by itself, and gives the same bits. Here nothing lies between two
// products: a pause of 60 us makes the next one slower by half as long, besides.
#pragma once

#include <type_traits>

#include "attend_tiles.h"
#include "elementwise.h"
#include "multiply.h"
#include "rotate.h"

namespace herd {

struct Matrix {
  const uint8_t* tiles;
  int64_t rows;
  int64_t type;
};

// Matrices of one input, their outputs one behind the other.
struct Matrices {
  Matrix matrix[3];
  int64_t count;
  const float* bias;  // (rows), or none

  int64_t rows() const {
    int64_t sum = 0;
    for (int i = 0; i < count; i++) sum += matrix[i].rows;
    return sum;
  }
};

struct Layer {
  const float *attention_norm, *mlp_norm;            // (columns)
  const float *attention_post_norm, *mlp_post_norm;  // (columns) of what is added, or none
  const float* head_norm;                            // as a Rotation has it
  Matrices qkv, output, gate_up, down;
  int64_t columns;
  int64_t window;  // keys that a token sees; 0: all
  Activation activation;
  float eps, residual_scale;
};

// The tokens of a step, and by what they are computed. Keys and values are those of layer 0.
struct LayerStep {
  const void* x;  // (tokens, columns)
  void* y;        // (tokens, columns)
  int64_t tokens;
  const Rotation *rotation, *local_rotation;  // but for qkv; the local one of layers with a window
  const Attention* attention;                 // of single tokens, but for q and y
  const Attention* spans;                     // of prompts, likewise
  const int64_t* span_counts;                 // their tokens
  int64_t layer_stride;                       // numbers from the keys of a layer to those of the next
  int kernel, num_threads;
};

// y = x + scale * y
template <class Number>
static void add_row(const void* argument, int64_t row) {
  const RowsJob& job = *static_cast<const RowsJob*>(argument);
  const Number* x = static_cast<const Number*>(job.x) + row * job.columns;
  Number* y = static_cast<Number*>(job.y) + row * job.columns;
  Number scales[LANES];  // rounded as torch rounds a scale
  store_numbers(scales, all(job.scale));
  const Floats scale = load_numbers(scales);
  for (int64_t at = 0; at < job.columns; at += LANES) {
    const int64_t left = job.columns - at;
    store_up_to(y + at, add_product(load_up_to(y + at, left), scale, load_up_to(x + at, left)), left);
  }
}

// y = y + bias
template <class Number>
static void add_bias(const void* argument, int64_t row) {
  const RowsJob& job = *static_cast<const RowsJob*>(argument);
  Number* y = static_cast<Number*>(job.y) + row * job.columns;
  for (int64_t at = 0; at < job.columns; at += LANES) {
    const int64_t left = job.columns - at;
    store_up_to(y + at, add(load_up_to(y + at, left), load_up_to(job.weight + at, left)), left);
  }
}

static inline int64_t larger_of(int64_t a, int64_t b) { return a > b ? a : b; }

// x (tokens, columns) times each matrix, their outputs side by side in rows of y, and a bias. False as in `multiply`.
template <class Input, class Output>
static bool multiply_all(const Matrices& matrices, const void* x, int64_t columns, void* y, int64_t tokens, int kernel,
                         int num_threads) {
  const int64_t all_rows = matrices.rows();
  Output* to = static_cast<Output*>(y);
  for (int i = 0; i < matrices.count; i++) {
    const Matrix& m = matrices.matrix[i];
    const Product p{m.tiles, m.rows, columns, x, to, all_rows, tokens, sizeof(Input) == 2, sizeof(Output) == 2,
                    num_threads};
    if (!multiply(p, int(m.type), kernel)) return false;
    to += m.rows;
  }
  const RowsJob biases{nullptr, matrices.bias, y, tokens, all_rows, 0};
  if (matrices.bias != nullptr) run_rows(add_bias<Output>, &biases, tokens, all_rows, num_threads);
  return true;
}

// One layer of a step, `x` to `y`, which may be the same.
template <class Number>
class LayerRun {
 public:
  LayerRun(const Layer& layer, const LayerStep& step, int64_t number, const void* x)
      : layer_(layer), step_(step), offset_(number * step.layer_stride), x_(x) {}

  bool run() {
    static thread_local Scratch scratch;
    const Rotation& r = *step_.rotation;
    const int64_t columns = layer_.columns, qkv_rows = layer_.qkv.rows(), attended_columns = r.heads * r.head_dim;
    const int64_t gate_up_rows = layer_.gate_up.rows(), ffn = gate_up_rows / 2;
    const int64_t widths[] = {columns, columns, larger_of(qkv_rows, gate_up_rows), larger_of(attended_columns, ffn)};
    size_t num_bytes = 0;
    for (int64_t width : widths) num_bytes += Scratch::bytes_of<Number>(step_.tokens * width);
    if (scratch.at_least(num_bytes) == nullptr) return false;
    const auto take = [&](int64_t width) { return scratch.take<Number>(step_.tokens * width); };
    Number *normed = take(widths[0]), *middle = take(widths[1]);
    Number *qkv = take(widths[2]), *gate_up = qkv, *attended = take(widths[3]), *gated = attended;

    norm(x_, layer_.attention_norm, normed);
    if (!multiply_by(layer_.qkv, normed, columns, qkv)) return false;
    rotate(qkv);
    if (!attend_to(qkv, qkv_rows, attended)) return false;
    if (!multiply_by(layer_.output, attended, attended_columns, middle)) return false;
    add(x_, layer_.attention_post_norm, middle);
    norm(middle, layer_.mlp_norm, normed);
    if (!multiply_by(layer_.gate_up, normed, columns, gate_up)) return false;
    rows(gated_row_by<Number>(layer_.activation), {gate_up, nullptr, gated, step_.tokens, ffn, 0});
    if (!multiply_by(layer_.down, gated, ffn, step_.y)) return false;
    add(middle, layer_.mlp_post_norm, step_.y);
    return true;
  }

 private:
  static constexpr bool IS_BFLOAT16 = sizeof(Number) == 2;

  void rows(Work work, const RowsJob& job) const {
    run_rows(work, &job, job.num_rows, job.columns, step_.num_threads);
  }

  void norm(const void* x, const float* weight, void* y) const {
    rows(norm_row<Number>, {x, weight, y, step_.tokens, layer_.columns, layer_.eps});
  }

  // y = x + scale * y, where y is normalised before if it has a weight for that.
  void add(const void* x, const float* post_norm, void* y) const {
    if (post_norm != nullptr) norm(y, post_norm, y);
    rows(add_row<Number>, {x, nullptr, y, step_.tokens, layer_.columns, 0, layer_.residual_scale});
  }

  bool multiply_by(const Matrices& matrices, const void* x, int64_t columns, void* y) const {
    return multiply_all<Number, Number>(matrices, x, columns, y, step_.tokens, step_.kernel, step_.num_threads);
  }

  void* of_layer(void* first) const { return static_cast<Number*>(first) + offset_; }
  const void* of_layer(const void* first) const { return static_cast<const Number*>(first) + offset_; }

  void rotate(void* qkv) const {
    Rotation r = layer_.window ? *step_.local_rotation : *step_.rotation;
    r.qkv = qkv;
    r.keys = of_layer(r.keys);
    r.values = of_layer(r.values);
    r.norm = layer_.head_norm;
    r.eps = layer_.eps;
    run_rows(rotate_token<Number>, &r, r.tokens, layer_.qkv.rows(), step_.num_threads);
  }

  Attention attention_of(const Attention& of_step, const void* qkv, int64_t qkv_rows, void* attended) const {
    Attention a = of_step;
    a.q = qkv;
    a.q_stride = qkv_rows;
    a.y = attended;
    a.keys = of_layer(a.keys);
    a.values = of_layer(a.values);
    a.window = layer_.window;
    return a;
  }

  bool attend_to(const void* qkv, int64_t qkv_rows, void* attended) const {
    const Attention single = attention_of(*step_.attention, qkv, qkv_rows, attended);
    if (single.num_rows && !attend<std::conditional_t<IS_BFLOAT16, Bfloat16, Float32>>(single)) return false;
    const Attention spans = attention_of(*step_.spans, qkv, qkv_rows, attended);
    return !spans.num_rows || attend_prompts(spans);
  }

  bool attend_prompts(const Attention& spans) const {
#ifdef __AVX512F__
    if (IS_BFLOAT16) return attend_spans(spans, step_.span_counts);
#endif
    return false;
  }

  const Layer& layer_;
  const LayerStep& step_;
  const int64_t offset_;
  const void* x_;
};

template <class Number>
static bool run_layers(const Layer* layers, int64_t first, int64_t count, const LayerStep& step) {
  for (int64_t number = first; number < first + count; number++)
    if (!LayerRun<Number>(layers[number], step, number, number ? step.y : step.x).run()) return false;
  return true;
}

}  // namespace herd
