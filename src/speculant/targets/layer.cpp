// A decoder layer of the Llama family in one call, `layer`; or in two, around an attention of somebody else's.
//
// PyTorch does the same in some forty operations. Each is small, but between any two the weights have passed through
// the caches and thrown out the operation's own code, so together they take as long as a fifth of a pass over few rows.
//
// Every row is computed in the same way whatever rows are beside it.

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention.h"
#include "vectors.h"

extern "C" void linear(const float *x, const void *weights, float *y, int64_t n, int64_t outs, int64_t k, int narrow,
                       int threads);

struct Linear {
  const float *weight, *bias;  // [outs, k]; [outs] or null
};

struct Layer {
  const float *before, *after, *q_norm, *k_norm;  // weights of RMSNorm: before attention and MLP, of each head or null
  Linear q, k, v, o, gate, up, down;
  int64_t hidden, inner;
  float before_eps, after_eps, q_norm_eps, k_norm_eps;
};

struct Positions {
  const float *cos, *sin;  // [batch, n, head], or [n, head] if `shared`
  int shared;
};

static void project(const Linear &l, const float *x, float *y, int64_t rows, int64_t outs, int64_t k, int threads) {
  linear(x, l.weight, y, rows, outs, k, 0, threads);
  for (int64_t r = 0; l.bias && r < rows; r++)
    for (int64_t i = 0; i < outs; i++) y[r * outs + i] += l.bias[i];
}

static void rms_norm(const float *x, const float *weight, float eps, float *y, int64_t rows, int64_t size) {
  for (int64_t r = 0; r < rows; r++, x += size, y += size) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) sum += x[i] * x[i];
    const float scale = 1 / std::sqrt(sum / size + eps);
#pragma omp simd
    for (int64_t i = 0; i < size; i++) y[i] = weight[i] * (x[i] * scale);
  }
}

// From x[batch * n, heads * head] to rows of y by heads, normed and turned to their positions where that is wanted.
static void by_heads(const float *x, float *y, int64_t batch_step, int64_t head_step, const float *norm, float eps,
                     const Positions *p, int64_t batch, int64_t n, int64_t heads, int64_t head) {
  const int64_t half = head / 2;
  std::vector<float> normed(norm ? head : 0);
  for (int64_t row = 0; row < batch * n; row++) {
    for (int64_t h = 0; h < heads; h++, x += head) {
      float *to = y + row / n * batch_step + h * head_step + row % n * head;
      const float *from = x;
      if (norm) rms_norm(x, norm, eps, normed.data(), 1, head), from = normed.data();
      if (!p) {
        std::copy_n(from, head, to);
        continue;
      }
      const int64_t place = (p->shared ? row % n : row) * head;
      const float *c = p->cos + place, *s = p->sin + place;
#pragma omp simd
      for (int64_t i = 0; i < half; i++) {
        to[i] = from[i] * c[i] - from[i + half] * s[i];
        to[i + half] = from[i + half] * c[i + half] + from[i] * s[i + half];
      }
    }
  }
}

// What one thread needs for a while; kept, for fresh memory costs more than what is done with it.
template <int WHICH>
static float *scratch(int64_t floats) {
  static thread_local std::vector<float> kept;
  if ((int64_t)kept.size() < floats) kept.resize(floats);
  return kept.data();
}

// Queries, keys and values of x[batch, n, hidden]: a's queries, and the last n rows of its keys and values.
extern "C" void enter(const Layer *l, const float *x, const Positions *p, const Attention *a, int threads) {
  const int64_t rows = a->batch * a->n, head = a->head, past = (a->length - a->n) * head;
  float *normed = scratch<0>(rows * (l->hidden + std::max(a->heads, a->kv_heads) * head));
  float *wide = normed + rows * l->hidden;
  rms_norm(x, l->before, l->before_eps, normed, rows, l->hidden);
  project(l->q, normed, wide, rows, a->heads * head, l->hidden, threads);
  by_heads(wide, a->q, a->heads * a->n * head, a->n * head, l->q_norm, l->q_norm_eps, p, a->batch, a->n, a->heads,
           head);
  project(l->k, normed, wide, rows, a->kv_heads * head, l->hidden, threads);
  by_heads(wide, a->k + past, a->k_batch_step, a->k_head_step, l->k_norm, l->k_norm_eps, p, a->batch, a->n,
           a->kv_heads, head);
  project(l->v, normed, wide, rows, a->kv_heads * head, l->hidden, threads);
  by_heads(wide, a->v + past, a->v_batch_step, a->v_head_step, nullptr, 0, nullptr, a->batch, a->n, a->kv_heads, head);
}

// y[rows, hidden], the layer's answer, of its x and of what its attention gave, [rows, width].
extern "C" void leave(const Layer *l, const float *x, const float *attended, float *y, int64_t rows, int64_t width,
                      int threads) {
  const int64_t wide = rows * l->inner, narrow = rows * l->hidden;
  float *gate = scratch<0>(2 * (wide + WIDTH) + narrow), *up = gate + wide + WIDTH, *normed = up + wide + WIDTH;
  project(l->o, attended, y, rows, l->hidden, width, threads);
#pragma omp simd
  for (int64_t i = 0; i < narrow; i++) y[i] += x[i];
  rms_norm(y, l->after, l->after_eps, normed, rows, l->hidden);
  project(l->gate, normed, gate, rows, l->inner, l->hidden, threads);
  project(l->up, normed, up, rows, l->inner, l->hidden, threads);
#pragma omp parallel for num_threads(threads) if (wide >= 1 << 14)
  for (int64_t i = 0; i < wide; i += WIDTH) {  // up to a vector beyond the end, where nothing lies
    Vector *g = (Vector *)(gate + i);
    *g = *g / (1 + exponential(-*g)) * *(const Vector *)(up + i);
  }
  project(l->down, gate, normed, rows, l->hidden, l->inner, threads);
#pragma omp simd
  for (int64_t i = 0; i < narrow; i++) y[i] += normed[i];
}

// The whole layer, attention by `attention.cpp`; a's queries and answer need no place.
extern "C" void layer(const Layer *l, const float *x, const Positions *p, const Attention *given, float *y,
                      int threads) {
  Attention a = *given;
  const int64_t rows = a.batch * a.n, width = a.heads * a.head;
  a.q = scratch<1>(2 * rows * width), a.y = a.q + rows * width;
  enter(l, x, p, &a, threads);
  attention(&a, threads);
  leave(l, x, a.y, y, rows, width, threads);
}
