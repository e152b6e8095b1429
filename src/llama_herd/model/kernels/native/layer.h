// A decoder layer of the plain kind for few tokens: what model/llama2.py says of it, in one call.
//
// Every step is one that Python could call by itself, and gives the same bits. Here nothing lies between two
// products: a pause of 60 us makes the next one slower by half as long, besides.
#pragma once

#include <cstdlib>
#include <type_traits>

#include "attend.h"
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

  int64_t rows() const {
    int64_t sum = 0;
    for (int i = 0; i < count; i++) sum += matrix[i].rows;
    return sum;
  }
};

struct Layer {
  const float *attention_norm, *mlp_norm;  // (columns)
  Matrices qkv, output, gate_up, down;
  int64_t columns;
  float eps;
};

// The tokens of a step, and by what they are computed.
struct LayerStep {
  const void* x;  // (tokens, columns)
  void* y;        // (tokens, columns)
  int64_t tokens;
  const Rotation* rotation;    // but for qkv
  const Attention* attention;  // but for q and y
  int kernel, num_threads;
};

// Memory of a thread that it keeps for its next layer.
class Workspace {
 public:
  ~Workspace() { free(bytes_); }

  // False if there is none.
  bool reserve(size_t num_bytes) {
    used_ = 0;
    if (num_bytes <= size_) return true;
    free(bytes_);
    bytes_ = static_cast<uint8_t*>(aligned_alloc(LINE_BYTES, num_bytes));
    size_ = bytes_ ? num_bytes : 0;
    return bytes_;
  }

  void* take(size_t num_bytes) {
    void* taken = bytes_ + used_;
    used_ += rounded(num_bytes);
    return taken;
  }

  static size_t rounded(size_t num_bytes) { return (num_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES; }

 private:
  static constexpr size_t LINE_BYTES = 64;
  uint8_t* bytes_ = nullptr;
  size_t size_ = 0, used_ = 0;
};

static thread_local Workspace workspace;

// y = x + y
template <class Number>
static void add_row(const void* argument, int64_t row) {
  const RowsJob& job = *static_cast<const RowsJob*>(argument);
  const Number* x = static_cast<const Number*>(job.x) + row * job.columns;
  Number* y = static_cast<Number*>(job.y) + row * job.columns;
  for (int64_t at = 0; at < job.columns; at += LANES) {
    const int64_t left = job.columns - at;
    store_up_to(y + at, add(load_up_to(x + at, left), load_up_to(y + at, left)), left);
  }
}

template <class Number>
class LayerRun {
 public:
  LayerRun(const Layer& layer, const LayerStep& step) : layer_(layer), step_(step) {}

  bool run() {
    const Rotation& r = *step_.rotation;
    const int64_t qkv_rows = layer_.qkv.rows(), attended_columns = r.heads * r.head_dim;
    const int64_t gate_up_rows = layer_.gate_up.rows(), ffn = gate_up_rows / 2;
    const int64_t wider = qkv_rows > gate_up_rows ? qkv_rows : gate_up_rows;
    const int64_t widest = wider > layer_.columns ? wider : layer_.columns;
    const int64_t widths[] = {layer_.columns, layer_.columns, qkv_rows, attended_columns, gate_up_rows, ffn, widest};
    size_t num_bytes = 0;
    for (int64_t width : widths) num_bytes += Workspace::rounded(bytes_of(width));
    if (!workspace.reserve(num_bytes)) return false;
    void *normed = take(layer_.columns), *middle = take(layer_.columns), *qkv = take(qkv_rows);
    void *attended = take(attended_columns), *gate_up = take(gate_up_rows), *gated = take(ffn);
    part_ = take(widest);

    norm(step_.x, layer_.attention_norm, normed);
    if (!multiply_by(layer_.qkv, normed, layer_.columns, qkv)) return false;
    rotate(qkv);
    if (!attend_to(qkv, qkv_rows, attended)) return false;
    if (!multiply_by(layer_.output, attended, attended_columns, middle)) return false;
    rows(add_row<Number>, {step_.x, nullptr, middle, step_.tokens, layer_.columns, 0});
    norm(middle, layer_.mlp_norm, normed);
    if (!multiply_by(layer_.gate_up, normed, layer_.columns, gate_up)) return false;
    rows(swiglu_row<Number>, {gate_up, nullptr, gated, step_.tokens, ffn, 0});
    if (!multiply_by(layer_.down, gated, ffn, step_.y)) return false;
    rows(add_row<Number>, {middle, nullptr, step_.y, step_.tokens, layer_.columns, 0});
    return true;
  }

 private:
  static constexpr bool IS_BFLOAT16 = sizeof(Number) == 2;

  size_t bytes_of(int64_t width) const { return size_t(step_.tokens * width) * sizeof(Number); }
  void* take(int64_t width) const { return workspace.take(bytes_of(width)); }

  void rows(Work work, const RowsJob& job) const {
    run_rows(work, &job, job.num_rows, job.columns, step_.num_threads);
  }

  void norm(const void* x, const float* weight, void* y) const {
    rows(norm_row<Number>, {x, weight, y, step_.tokens, layer_.columns, layer_.eps});
  }

  // A matrix of several writes beside its rows: its place is in the middle of each token's.
  bool multiply_by(const Matrices& matrices, const void* x, int64_t columns, void* y) const {
    const int64_t all_rows = matrices.rows(), tokens = step_.tokens;
    int64_t first = 0;
    for (int i = 0; i < matrices.count; i++) {
      const Matrix& m = matrices.matrix[i];
      Number* to = static_cast<Number*>(y) + first;
      void* out = m.rows == all_rows || tokens == 1 ? to : part_;
      const Product product{m.tiles, m.rows, columns, x, out, tokens, IS_BFLOAT16, step_.num_threads};
      if (!multiply(product, int(m.type), step_.kernel)) return false;
      if (out == part_)
        for (int64_t token = 0; token < tokens; token++)
          memcpy(to + token * all_rows, static_cast<Number*>(part_) + token * m.rows, size_t(m.rows) * sizeof(Number));
      first += m.rows;
    }
    return true;
  }

  void rotate(void* qkv) const {
    Rotation r = *step_.rotation;
    r.qkv = qkv;
    run_rows(rotate_token<Number>, &r, r.tokens, layer_.qkv.rows(), step_.num_threads);
  }

  bool attend_to(const void* qkv, int64_t qkv_rows, void* attended) const {
    Attention a = *step_.attention;
    a.q = qkv;
    a.q_stride = qkv_rows;
    a.y = attended;
    return attend<std::conditional_t<IS_BFLOAT16, Bfloat16, Float32>>(a);
  }

  const Layer& layer_;
  const LayerStep& step_;
  void* part_ = nullptr;
};

}  // namespace herd
