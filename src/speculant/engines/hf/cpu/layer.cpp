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
  const void *weight, *bias;  // [outs, k]; [outs] or null
};

struct Layer {
  const void *before, *after, *q_norm, *k_norm;  // weights of RMSNorm: before attention and MLP, of each head or null
  Linear q, k, v, o, gate, up, down;
  int64_t hidden, inner;
  float before_eps, after_eps, q_norm_eps, k_norm_eps;
  int narrow;  // whether all of these, what goes in and what comes out are bfloat16, otherwise float
};

struct Positions {
  const void *cos, *sin;  // [batch, n, head], or [n, head] if `shared`
  int shared;
};

template <class T>
static void project(const Linear &l, const float *x, float *y, int64_t rows, int64_t outs, int64_t k, int threads) {
  linear(x, l.weight, y, rows, outs, k, std::is_same_v<T, Brain>, threads);
  const T *bias = (const T *)l.bias;
  for (int64_t r = 0; bias && r < rows; r++)
#pragma omp simd
    for (int64_t i = 0; i < outs; i++) y[r * outs + i] += wide(bias[i]);
#pragma omp simd
  for (int64_t i = 0; i < rows * outs; i++) y[i] = rounded<T>(y[i]);
}

template <class T>
static void rms_norm(const float *x, const void *weight, float eps, float *y, int64_t rows, int64_t size) {
  const T *w = (const T *)weight;
  for (int64_t r = 0; r < rows; r++, x += size, y += size) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) sum += x[i] * x[i];
    const float scale = 1 / std::sqrt(sum / size + eps);
#pragma omp simd
    for (int64_t i = 0; i < size; i++) y[i] = rounded<T>(wide(w[i]) * rounded<T>(x[i] * scale));
  }
}

// From x[batch * n, heads * head] to rows of y by heads, normed and turned to their positions where that is wanted.
template <class T>
static void by_heads(const float *x, void *y, int64_t batch_step, int64_t head_step, const void *norm, float eps,
                     const Positions *p, int64_t batch, int64_t n, int64_t heads, int64_t head) {
  const int64_t half = head / 2;
  std::vector<float> normed(norm ? head : 0);
  for (int64_t row = 0; row < batch * n; row++) {
    for (int64_t h = 0; h < heads; h++, x += head) {
      T *to = (T *)y + row / n * batch_step + h * head_step + row % n * head;
      const float *from = x;
      if (norm) rms_norm<T>(x, norm, eps, normed.data(), 1, head), from = normed.data();
      if (!p) {
        for (int64_t i = 0; i < head; i++) to[i] = as<T>(from[i]);
        continue;
      }
      const int64_t place = (p->shared ? row % n : row) * head;
      const T *c = (const T *)p->cos + place, *s = (const T *)p->sin + place;
#pragma omp simd
      for (int64_t i = 0; i < half; i++) {
        const float low = from[i], high = from[i + half];
        to[i] = as<T>(rounded<T>(low * wide(c[i])) - rounded<T>(high * wide(s[i])));
        to[i + half] = as<T>(rounded<T>(high * wide(c[i + half])) + rounded<T>(low * wide(s[i + half])));
      }
    }
  }
}

// What one thread needs for a while; kept, for fresh memory costs more than what is done with it.
template <int WHICH>
static float *scratch(int64_t count) {
  static thread_local std::vector<float> kept;
  if ((int64_t)kept.size() < count) kept.resize(count);
  return kept.data();
}

template <class T>
static void enter(const Layer *l, const void *x, const Positions *p, const Attention *a, int threads) {
  const int64_t rows = a->batch * a->n, head = a->head, past = (a->length - a->n) * head, size = rows * l->hidden;
  float *normed = scratch<0>(2 * size + rows * std::max(a->heads, a->kv_heads) * head);
  float *projected = normed + size, *given = projected + rows * std::max(a->heads, a->kv_heads) * head;
  rms_norm<T>(floats((const T *)x, given, size), l->before, l->before_eps, normed, rows, l->hidden);
  project<T>(l->q, normed, projected, rows, a->heads * head, l->hidden, threads);
  by_heads<T>(projected, a->q, a->heads * a->n * head, a->n * head, l->q_norm, l->q_norm_eps, p, a->batch, a->n,
              a->heads, head);
  project<T>(l->k, normed, projected, rows, a->kv_heads * head, l->hidden, threads);
  by_heads<T>(projected, (T *)a->k + past, a->k_batch_step, a->k_head_step, l->k_norm, l->k_norm_eps, p, a->batch, a->n,
              a->kv_heads, head);
  project<T>(l->v, normed, projected, rows, a->kv_heads * head, l->hidden, threads);
  by_heads<T>(projected, (T *)a->v + past, a->v_batch_step, a->v_head_step, nullptr, 0, nullptr, a->batch, a->n,
              a->kv_heads, head);
}

template <class T>
static void leave(const Layer *l, const void *given, const void *attended, void *answer, int64_t rows, int64_t width,
                  int threads) {
  const int64_t inner = rows * l->inner, hidden = rows * l->hidden;
  const T *x = (const T *)given;
  T *y = (T *)answer;
  float *gate = scratch<0>(2 * (inner + WIDTH) + 2 * hidden + rows * width), *up = gate + inner + WIDTH;
  float *normed = up + inner + WIDTH, *sum = normed + hidden, *seen = sum + hidden;
  project<T>(l->o, floats((const T *)attended, seen, rows * width), sum, rows, l->hidden, width, threads);
#pragma omp simd
  for (int64_t i = 0; i < hidden; i++) sum[i] = rounded<T>(sum[i] + wide(x[i]));
  rms_norm<T>(sum, l->after, l->after_eps, normed, rows, l->hidden);
  project<T>(l->gate, normed, gate, rows, l->inner, l->hidden, threads);
  project<T>(l->up, normed, up, rows, l->inner, l->hidden, threads);
#pragma omp parallel for num_threads(threads) if (inner >= 1 << 14)
  for (int64_t i = 0; i < inner; i += WIDTH) {  // up to a vector beyond the end, where nothing lies
    Vector *g = (Vector *)(gate + i);
    *g = rounded<T>(rounded<T>(*g / (1 + exponential(-*g))) * *(const Vector *)(up + i));
  }
  project<T>(l->down, gate, normed, rows, l->hidden, l->inner, threads);
#pragma omp simd
  for (int64_t i = 0; i < hidden; i++) y[i] = as<T>(sum[i] + normed[i]);
}

template <class T>
static void whole(const Layer *l, const void *x, const Positions *p, const Attention *given, void *y, int threads) {
  Attention a = *given;
  const int64_t rows = a.batch * a.n, width = a.heads * a.head;
  a.q = scratch<1>(2 * rows * width), a.y = (T *)a.q + rows * width;
  enter<T>(l, x, p, &a, threads);
  attention(&a, threads);
  leave<T>(l, x, a.y, y, rows, width, threads);
}

// Queries, keys and values of x[batch, n, hidden]: a's queries, and the last n rows of its keys and values.
extern "C" void enter(const Layer *l, const void *x, const Positions *p, const Attention *a, int threads) {
  l->narrow ? enter<Brain>(l, x, p, a, threads) : enter<float>(l, x, p, a, threads);
}

// y[rows, hidden], the layer's answer, of its x and of what its attention gave, [rows, width].
extern "C" void leave(const Layer *l, const void *x, const void *attended, void *y, int64_t rows, int64_t width,
                      int threads) {
  l->narrow ? leave<Brain>(l, x, attended, y, rows, width, threads)
            : leave<float>(l, x, attended, y, rows, width, threads);
}

// The whole layer, attention by `attention.cpp`; a's queries and answer need no place.
extern "C" void layer(const Layer *l, const void *x, const Positions *p, const Attention *a, void *y, int threads) {
  l->narrow ? whole<Brain>(l, x, p, a, y, threads) : whole<float>(l, x, p, a, y, threads);
}
