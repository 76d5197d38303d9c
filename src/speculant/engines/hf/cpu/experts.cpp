// Quantised experts of a layer, run for the rows routed to them: only selected experts are read, each once.
//
// Each row's result is the same for any number of rows: its experts' outputs are added in expert order.

#include <algorithm>

#include "layer.h"

struct Experts {
  const Quantized *gate, *up, *down;    // [count]
  const void *gate_up_bias, *down_bias; // [count, 2 inner], [count, hidden], or null
  int64_t count, hidden, inner;
  float alpha, limit;                   // parameters of the limited gate
  int limited;      // gate sigmoid(alpha gate) (up + 1) clamped to the limits, as in GPT-OSS; otherwise silu(gate) up
  int interleaved;  // whether the biases of gate and up alternate; otherwise they are concatenated
  int keep, is_bf16;
};

// gate = the gated product of both, [count]; both arrays have room for a vector beyond their end.
template <class T>
static void apply_gate(const Experts *e, float *gate, const float *up, int64_t count) {
  const Vector high = Vector{} + e->limit, low = Vector{} - e->limit;
  for (int64_t i = 0; i < count; i += WIDTH) {
    Vector g = *(Vector *)(gate + i), u = *(const Vector *)(up + i);
    if (e->limited) {
      g = g > high ? high : g;
      u = u > high ? high : u < low ? low : u;
      const Vector bent = rounded<T>(1 / (1 + exponential(-rounded<T>(g * e->alpha))));
      g = rounded<T>(rounded<T>(u + 1) * rounded<T>(g * bent));
    } else {
      g = rounded<T>(rounded<T>(g / (1 + exponential(-g))) * u);
    }
    *(Vector *)(gate + i) = g;
  }
}

template <class T>
static void add(const T *bias, int64_t step, float *y, int64_t rows, int64_t size) {
  for (int64_t r = 0; bias && r < rows; r++)
    for (int64_t i = 0; i < size; i++) y[r * size + i] = rounded<T>(y[r * size + i] + to_float(bias[i * step]));
}

template <class T>
static void run(const Experts *e, const T *x, const int64_t *chosen, const float *weights, T *y, int64_t rows,
                int64_t top_k, int threads) {
  const int64_t hidden = e->hidden, inner = e->inner, most = rows * top_k;
  std::vector<int64_t> ends(e->count + 1), places(most);  // ends: where each expert's places end
  for (int64_t i = 0; i < most; i++)
    if (chosen[i] < e->count) ends[chosen[i] + 1]++;
  for (int64_t i = 0; i < e->count; i++) ends[i + 1] += ends[i];
  std::vector<int64_t> next(ends.begin(), ends.end() - 1);
  int64_t widest = 0;
  for (int64_t i = 0; i < most; i++)
    if (chosen[i] < e->count) places[next[chosen[i]]++] = i;
  for (int64_t i = 0; i < e->count; i++) widest = std::max(widest, ends[i + 1] - ends[i]);
  float *total = scratch<0>(rows * hidden + widest * (2 * hidden + 2 * inner) + 2 * WIDTH), *from = total + rows * hidden;
  float *out = from + widest * hidden, *gate = out + widest * hidden, *up = gate + widest * inner + WIDTH;
  std::fill_n(total, rows * hidden, 0.f);
  const auto round_all = [](float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) values[i] = rounded<T>(values[i]);
  };
  for (int64_t expert = 0; expert < e->count; expert++) {
    const int64_t n = ends[expert + 1] - ends[expert], *own = places.data() + ends[expert];
    if (!n) continue;
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < hidden; j++) from[i * hidden + j] = to_float(x[own[i] / top_k * hidden + j]);
    const Quantized *matrices[] = {e->gate + expert, e->up + expert};
    float *const outputs[] = {gate, up};
    quantized_linears(matrices, nullptr, outputs, 2, from, n, e->keep, threads);
    round_all(gate, n * inner), round_all(up, n * inner);
    if (const T *bias = (const T *)e->gate_up_bias) {
      bias += expert * 2 * inner;
      add<T>(bias, e->interleaved ? 2 : 1, gate, n, inner);
      add<T>(bias + (e->interleaved ? 1 : inner), e->interleaved ? 2 : 1, up, n, inner);
    }
    apply_gate<T>(e, gate, up, n * inner);
    quantized_linear(e->down + expert, gate, nullptr, out, n, e->keep, threads);
    round_all(out, n * hidden);
    if (e->down_bias) add<T>((const T *)e->down_bias + expert * hidden, 1, out, n, hidden);
    for (int64_t i = 0; i < n; i++) {
      float *to = total + own[i] / top_k * hidden;
      const float weight = weights[own[i]];
      for (int64_t j = 0; j < hidden; j++) to[j] = rounded<T>(to[j] + rounded<T>(out[i * hidden + j] * weight));
    }
  }
  for (int64_t i = 0; i < rows * hidden; i++) y[i] = convert<T>(total[i]);
}

// y[rows, hidden] = weighted outputs of the experts chosen[rows, top_k] for x; indices >= `count` mean no expert.
extern "C" void experts(const Experts *e, const void *x, const int64_t *chosen, const float *weights, void *y,
                        int64_t rows, int64_t top_k, int threads) {
  e->is_bf16 ? run(e, (const BFloat16 *)x, chosen, weights, (BFloat16 *)y, rows, top_k, threads)
             : run(e, (const float *)x, chosen, weights, (float *)y, rows, top_k, threads);
}
