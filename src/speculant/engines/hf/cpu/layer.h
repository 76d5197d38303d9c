// The parts of a decoder layer: its weights, RMSNorm, products of rows with biases, and rotated heads.
//
// Each row's result is the same for any number of rows.

#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "quantized.h"
#include "vectors.h"

extern "C" void linear(const float *x, const void *weights, float *y, int64_t n, int64_t outs, int64_t k, int is_bf16,
                       int threads);
extern "C" void linear_bf16(const void *x, const void *weights, float *y, int64_t n, int64_t outs, int64_t k,
                            int threads);

struct Linear {
  const void *weight, *bias;  // [outs, k]; [outs] or null
  int narrow;  // whether the weight (not the bias) is bfloat16 in a float layer
  int keep;    // whether inputs of a quantised product stay unrounded
  const Quantized *quantized;  // the weight, if it is quantised; null if not
};

struct Layer {
  // RMSNorm weights: before attention, or null; before the MLP; per head, or null
  const void *input_norm, *post_norm, *q_norm, *k_norm;
  Linear q, k, v, o, gate, up, down;
  int64_t hidden, inner, given;  // given: width of the input of the q, k, v projections
  float input_eps, post_eps, q_eps, k_eps;
  int is_bf16;      // whether weights, inputs and outputs are bfloat16; otherwise they are float
  int native_bf16;  // whether products use the processor's bfloat16 instructions (linear_bf16.cpp)
  int only;         // 0: attention and MLP, ATTENTION or MLP: that one alone
};

constexpr int ATTENTION = 1, MLP = 2;

struct Positions {
  const void *cos, *sin;  // [batch, n, head], or [n, head] if `shared`, or tables [positions, head]
  int shared;
  const int64_t *rows;  // [batch * n], places in tables; null where cos and sin are not
};

// Thread-local memory kept between calls, because fresh memory costs more than the computation in it.
template <int WHICH>
static float *scratch(int64_t count) {
  static thread_local std::unique_ptr<float[]> buffer;
  static thread_local int64_t size = 0;
  if (size < count) buffer.reset(), buffer.reset(new float[count]), size = count;
  return buffer.get();
}

// Adds the bias to the sums y[rows, outs] and rounds them.
template <class T>
static void add_bias(const Linear &l, float *y, int64_t rows, int64_t outs) {
  const T *bias = (const T *)l.bias;
  for (int64_t r = 0; bias && r < rows; r++)
#pragma omp simd
    for (int64_t i = 0; i < outs; i++) y[r * outs + i] += to_float(bias[i]);
#pragma omp simd
  for (int64_t i = 0; i < rows * outs; i++) y[i] = rounded<T>(y[i]);
}

template <class T>
static void project(const Layer *layer, const Linear &l, const float *x, float *y, int64_t rows, int64_t outs,
                    int64_t k, int threads) {
  if (l.quantized) {
    quantized_linear(l.quantized, x, nullptr, y, rows, l.keep, threads);
  } else if (layer->native_bf16) {
    BFloat16 *narrow = (BFloat16 *)scratch<2>((rows * k + 1) / 2);
    for (int64_t i = 0; i < rows * k; i++) narrow[i] = convert<BFloat16>(x[i]);  // exact: x is already rounded
    linear_bf16(narrow, l.weight, y, rows, outs, k, threads);
  } else {
    linear(x, l.weight, y, rows, outs, k, l.narrow || std::is_same_v<T, BFloat16>, threads);
  }
  add_bias<T>(l, y, rows, outs);
}

struct Output {
  const Linear *linear;
  float *y;  // [rows, outs]
  int64_t outs;
};

// Several products of the same inputs: quantised ones together, so that the inputs are rounded once.
template <class T, int COUNT>
static void project_all(const Layer *layer, const Output (&outputs)[COUNT], const float *x, int64_t rows, int64_t k,
                        int threads) {
  const Quantized *weights[COUNT];
  float *ys[COUNT];
  int together = 0, keep = 0;
  for (const Output &o : outputs)
    if (o.linear->quantized) weights[together] = o.linear->quantized, ys[together++] = o.y, keep = o.linear->keep;
  if (together) quantized_linears(weights, nullptr, ys, together, x, rows, keep, threads);
  for (const Output &o : outputs)
    if (o.linear->quantized) add_bias<T>(*o.linear, o.y, rows, o.outs);
    else project<T>(layer, *o.linear, x, o.y, rows, o.outs, k, threads);
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
    for (int64_t i = 0; i < size; i++) y[i] = rounded<T>(to_float(w[i]) * rounded<T>(x[i] * scale));
  }
}

// Writes x[rows, heads * head], rows `first` and following of [batch * n], to rows of y by heads, normalised (`norm`)
// and rotated to their positions (`p`) if these are given.
template <class T>
static void write_heads(const float *x, void *y, int64_t batch_step, int64_t head_step, const void *norm, float eps,
                        const Positions *p, int64_t first, int64_t rows, int64_t n, int64_t heads, int64_t head) {
  const int64_t half = head / 2;
  std::vector<float> normed(norm ? head : 0);
  for (int64_t row = first; row < first + rows; row++) {
    for (int64_t h = 0; h < heads; h++, x += head) {
      T *to = (T *)y + row / n * batch_step + h * head_step + row % n * head;
      const float *from = x;
      if (norm) rms_norm<T>(x, norm, eps, normed.data(), 1, head), from = normed.data();
      if (!p) {
        for (int64_t i = 0; i < head; i++) to[i] = convert<T>(from[i]);
        continue;
      }
      const int64_t place = (p->rows ? p->rows[row] : p->shared ? row % n : row) * head;
      const T *c = (const T *)p->cos + place, *s = (const T *)p->sin + place;
#pragma omp simd
      for (int64_t i = 0; i < half; i++) {
        const float low = from[i], high = from[i + half];
        to[i] = convert<T>(rounded<T>(low * to_float(c[i])) - rounded<T>(high * to_float(s[i])));
        to[i + half] = convert<T>(rounded<T>(high * to_float(c[i + half])) + rounded<T>(low * to_float(s[i + half])));
      }
    }
  }
}
