// Products of float rows with quantised matrices; see quantized.h.

#include "quantized.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

static float from_half(uint16_t half) {
  const uint32_t sign = (uint32_t)(half >> 15) << 31, exponent = half >> 10 & 31, fraction = half & 1023;
  if (!exponent) return (sign ? -1 : 1) * std::ldexp((float)fraction, -24);
  const uint32_t bits = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Scales or minima, as float.
static float number(const void *numbers, const void *factors, int kind, int64_t groups, int64_t supers, int64_t group,
                    int64_t block, int64_t g, int64_t lane) {
  const int64_t at = (block * groups + g) * 16 + lane;
  if (kind == 0) return ((const float *)numbers)[at];
  if (kind == 1) return from_half(((const uint16_t *)numbers)[at]);
  return ((const int8_t *)numbers)[at] *
         from_half(((const uint16_t *)factors)[(block * supers + g * group / 256) * 16 + lane]);
}

static int value(const Quantized &w, int64_t block, int64_t lane, int64_t i) {
  if (w.bits == 8) return w.values[((block * (w.padded / 4) + i / 4) * 16 + lane) * 4 + i % 4];
  const int both = w.values[((block * (w.padded / 8) + i / 8) * 16 + lane) * 4 + i % 4];
  const int u = i % 8 < 4 ? both & 15 : both >> 4;
  return w.table ? w.table[u] : u;
}

struct Activations {
  std::vector<int8_t> q;
  std::vector<float> scales;
};

static Activations quantize(const float *x, int64_t k, int64_t padded) {
  Activations a{std::vector<int8_t>(padded), std::vector<float>(padded / 32)};
  for (int64_t start = 0; start < k; start += 32) {
    float largest = 0;
    bool finite = true;
    const int64_t end = std::min(k, start + 32);
    for (int64_t i = start; i < end; i++) largest = std::max(largest, std::fabs(x[i])), finite &= std::isfinite(x[i]);
    if (!finite) a.scales[start / 32] = std::numeric_limits<float>::quiet_NaN();
    else if (largest >= 0x1p-100f) {
      a.scales[start / 32] = largest / 127;
      for (int64_t i = start; i < end; i++) a.q[i] = (int8_t)std::nearbyint(x[i] * (127 / largest));
    }
  }
  return a;
}

extern "C" void quantized_linears(const Quantized *const *ws, const float *const *biases, float *const *ys, int count,
                                  const float *x, int64_t rows, int keep, int threads) {
  for (int which = 0; which < count; which++) {
    const Quantized &w = *ws[which];
    const float *bias = biases ? biases[which] : nullptr;
    const int64_t groups = w.padded / w.group, supers = (w.padded + 255) / 256, step = std::min(w.group, 32);
    for (int64_t row = 0; row < rows; row++) {
      const float *from = x + row * w.k;
      const Activations a = quantize(from, w.k, w.padded);
#pragma omp parallel for num_threads(threads)
      for (int64_t n = 0; n < w.outs; n++) {
        const int64_t block = n / 16, lane = n % 16;
        float sum = 0;
        for (int64_t start = 0; start < w.padded; start += step) {
          const int64_t g = start / w.group, end = std::min(start + step, w.k);
          const float scale = number(w.scales, w.scale_factors, w.scale_kind, groups, supers, w.group, block, g, lane);
          const float low =
              w.minima ? number(w.minima, w.min_factors, w.min_kind, groups, supers, w.group, block, g, lane) : 0;
          if (keep) {
            float part = 0, total = 0;
            for (int64_t i = start; i < end; i++)
              part = std::fma((float)(value(w, block, lane, i) - w.offset), from[i], part), total += from[i];
            sum = std::fma(part, scale, sum);
            if (w.minima) sum = std::fma(low, total, sum);
          } else {
            int part = 0, total = 0;
            for (int64_t i = start; i < end; i++)
              part += (value(w, block, lane, i) - w.offset) * a.q[i], total += a.q[i];
            const float product = (float)part * scale;
            sum = std::fma(product, a.scales[start / 32], sum);
            if (w.minima) sum = std::fma(low, a.scales[start / 32] * (float)total, sum);
          }
        }
        ys[which][row * w.outs + n] = bias ? sum + bias[n] : sum;
      }
    }
  }
}

extern "C" void quantized_linear(const Quantized *w, const float *x, const float *bias, float *y, int64_t rows, int keep,
                                 int threads) {
  quantized_linears(&w, &bias, &y, 1, x, rows, keep, threads);
}

extern "C" void quantized_rows(const Quantized *w, const int64_t *rows, int64_t count, float *y) {
  const int64_t groups = w->padded / w->group, supers = (w->padded + 255) / 256;
  for (int64_t r = 0; r < count; r++)
    for (int64_t i = 0; i < w->k; i++) {
      const int64_t block = rows[r] / 16, lane = rows[r] % 16, g = i / w->group;
      volatile float wide = (value(*w, block, lane, i) - w->offset) *
                            number(w->scales, w->scale_factors, w->scale_kind, groups, supers, w->group, block, g, lane);
      y[r * w->k + i] =
          w->minima ? wide + number(w->minima, w->min_factors, w->min_kind, groups, supers, w->group, block, g, lane)
                    : wide;
    }
}
