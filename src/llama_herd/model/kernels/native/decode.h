// A step of single tokens through a whole plain model: from ids to logits, and the largest logit of each row.
//
// What lies between the parts of a step is Python's work where each part is a call: for a small model as much as the
// parts themselves. Each part is one that Python could call by itself, and gives the same bits.
#pragma once

#include "draw.h"
#include "layer.h"
#include "look_up.h"

namespace herd {

// A token to compute: its sequence's pages are consecutive.
struct Token {
  int64_t id, position, first_page;
};

// A model and its cache: all that steps have in common.
struct Decoder {
  Matrix embedding;
  const Layer* layers;
  int64_t num_layers;
  const float* norm;  // (columns)
  Matrices output;
  Rotation rotation;    // of all positions, but for qkv and cells
  Attention attention;  // of layer 0, but for q, y and the rows
  int64_t layer_stride;
};

struct DecodeStep {
  const Token* tokens;
  int64_t num_tokens;
  float* logits;   // (tokens, rows of the output)
  float* largest;  // (tokens)
  int64_t* ids;    // (tokens): the first that has the largest logit
  int kernel, num_threads;
};

enum Outcome { DONE = 0, NO_MEMORY = 1, NO_ROW = 2 };  // of the embedding

template <class Number>
class DecodeRun {
 public:
  DecodeRun(const Decoder& decoder, const DecodeStep& step)
      : decoder_(decoder), step_(step), tokens_(step.num_tokens), columns_(decoder.layers[0].columns) {}

  Outcome run() {
    if (!reserve()) return NO_MEMORY;
    place();
    const LookUp rows{decoder_.embedding.tiles, decoder_.embedding.rows, columns_, ids_, x_, tokens_, IS_BFLOAT16};
    if (!look_up(int(decoder_.embedding.type), rows, step_.num_threads)) return NO_ROW;
    if (!layers() || !head()) return NO_MEMORY;
    const Largest largest{step_.logits, tokens_, decoder_.output.rows(), step_.largest, step_.ids};
    run_rows(find_largest, &largest, tokens_, largest.tokens, step_.num_threads);
    return DONE;
  }

 private:
  static constexpr bool IS_BFLOAT16 = sizeof(Number) == 2;

  static int64_t pages_of(const Token& token) { return token.position / PAGE_KEYS + 1; }

  bool reserve() {
    static thread_local Scratch scratch;
    int64_t num_pages = 0;
    for (int64_t i = 0; i < tokens_; i++) num_pages += pages_of(step_.tokens[i]);
    const int64_t numbers = tokens_ * columns_, turns = tokens_ * decoder_.rotation.head_dim;
    const size_t num_bytes = Scratch::bytes_of<Number>(2 * numbers) + Scratch::bytes_of<float>(2 * turns) +
                             Scratch::bytes_of<int64_t>(5 * tokens_ + num_pages);
    if (scratch.at_least(num_bytes) == nullptr) return false;
    x_ = scratch.take<Number>(2 * numbers);
    y_ = x_ + numbers;
    cos_ = scratch.take<float>(2 * turns);
    sin_ = cos_ + turns;
    int64_t** const parts[] = {&ids_, &cells_, &rows_, &lengths_, &tables_, &pages_};
    int64_t* next = scratch.take<int64_t>(5 * tokens_ + num_pages);
    for (int64_t** part : parts) {
      *part = next;
      next += tokens_;
    }
    return true;
  }

  // Where each token stands, and what it sees.
  void place() const {
    const Rotation& r = decoder_.rotation;
    int64_t num_pages = 0;
    for (int64_t i = 0; i < tokens_; i++) {
      const Token& token = step_.tokens[i];
      const size_t head_bytes = size_t(r.head_dim) * sizeof(float);
      memcpy(cos_ + i * r.head_dim, r.cos + token.position * r.head_dim, head_bytes);
      memcpy(sin_ + i * r.head_dim, r.sin + token.position * r.head_dim, head_bytes);
      ids_[i] = token.id;
      cells_[i] = token.first_page * PAGE_KEYS + token.position;
      rows_[i] = i;
      lengths_[i] = token.position + 1;
      tables_[i] = num_pages;
      for (int64_t page = 0; page < pages_of(token); page++) pages_[num_pages++] = token.first_page + page;
    }
  }

  bool layers() const {
    Rotation r = decoder_.rotation;
    r.cos = cos_;
    r.sin = sin_;
    r.cells = cells_;
    r.tokens = tokens_;
    Attention a = decoder_.attention;
    a.rows = rows_;
    a.lengths = lengths_;
    a.tables = tables_;
    a.pages = pages_;
    a.num_rows = tokens_;
    a.num_threads = step_.num_threads;
    const Attention no_spans{};
    const LayerStep step{x_, y_, tokens_, &r, &r, &a, &no_spans, nullptr, decoder_.layer_stride, step_.kernel,
                         step_.num_threads};
    return run_layers<Number>(decoder_.layers, 0, decoder_.num_layers, step);
  }

  bool head() const {
    const RowsJob norm{y_, decoder_.norm, x_, tokens_, columns_, decoder_.layers[0].eps};
    run_rows(norm_row<Number>, &norm, tokens_, columns_, step_.num_threads);
    return multiply_all<Number, float>(decoder_.output, x_, columns_, step_.logits, tokens_, step_.kernel,
                                       step_.num_threads);
  }

  const Decoder& decoder_;
  const DecodeStep& step_;
  const int64_t tokens_, columns_;
  Number *x_ = nullptr, *y_ = nullptr;
  float *cos_ = nullptr, *sin_ = nullptr;
  int64_t *ids_ = nullptr, *cells_ = nullptr, *rows_ = nullptr, *lengths_ = nullptr, *tables_ = nullptr,
          *pages_ = nullptr;
};

}  // namespace herd
