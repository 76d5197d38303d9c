// Rows of a quantised matrix as floats.

#include "quantized.h"
#include "quantized_scales.h"

// A product that the compiler cannot fuse with an addition: the result must be rounded twice, as in Python.
static inline float product(float a, float b) {
  volatile float rounded = a * b;
  return rounded;
}

static inline float number_of(const Numbers &n, const Quantized &w, int64_t block, int64_t g, int64_t lane) {
  const int64_t at = (block * (w.padded / w.group) + g) * 16 + lane;
  if (n.kind == 0) return ((const float *)n.numbers)[at];
  if (n.kind == 1) return from_half(((const uint16_t *)n.numbers)[at]);
  const int64_t super = block * ((w.padded + 255) / 256) + g * w.group / 256;
  return product(((const int8_t *)n.numbers)[at], from_half(((const uint16_t *)n.factors)[super * 16 + lane]));
}

extern "C" void quantized_rows(const Quantized *w, const int64_t *rows, int64_t count, float *y) {
  for (int64_t r = 0; r < count; r++, y += w->k) {
    const int64_t block = rows[r] / 16, lane = rows[r] % 16;
    const uint8_t *values = w->values + block * w->padded * 2 * w->bits + lane * 4;
    for (int64_t start = 0; start < w->k; start += w->group) {
      const int64_t g = start / w->group, end = start + w->group < w->k ? start + w->group : w->k;
      const float scale = number_of(scales_of(*w), *w, block, g, lane);
      const float minimum = w->minima ? number_of(minima_of(*w), *w, block, g, lane) : 0;
      for (int64_t i = start; i < end; i++) {
        int u = w->bits == 8 ? values[i / 4 * 64 + i % 4] : values[i / 8 * 64 + i % 4] >> i % 8 / 4 * 4 & 15;
        if (w->table) u = w->table[u];
        const float wide = product((float)(u - w->offset), scale);
        y[i] = w->minima ? wide + minimum : wide;
      }
    }
  }
}
