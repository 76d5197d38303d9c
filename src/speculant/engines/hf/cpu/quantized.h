// Products of float rows with quantised matrices, in the layout of quantized/weight.py.
//
// The exact definition of a product, for every instruction set, thread count and number of rows, to the last bit.
// Inputs are processed in steps of 32, or 16 if a scale covers 16. `scale` and `minimum` are the weight's numbers of a
// step's group in float, u its unsigned values.
//
//   quantised activations: each 32 inputs x of a row become q = round(x * (127 / m)), ties to even, where m is the largest
//   magnitude, and a = m / 127; where m is below 2^-100, q and a are 0; where x is not finite, q is 0 and a is NaN. Then
//     sum = fma(float(integer sum of (u - offset) * q) * scale, a, sum)
//     sum = fma(minimum, a * float(integer sum of q), sum)            if there are minima
//   kept activations:
//     part[i / 4 % 2] = fma(float(u - offset), x, part[i / 4 % 2]) for the inputs i of a step in order, from 0
//     sum = fma(part[0] + part[1], scale, sum)
//     sum = fma(minimum, sum of x in order, sum)                      if there are minima
//
// for the steps in order, from 0; then the bias is added.

#pragma once

#include <cstdint>

struct Quantized {
  const uint8_t *values;        // [outs / 16, k / 4, 16, 4] of 8 bits, or [outs / 16, k / 8, 16, 4] of twice 4 bits
  const void *scales;           // [outs / 16, k / group, 16]
  const void *scale_factors;    // float16 [outs / 16, k / 256, 16], which multiply int8 scales
  const void *minima;           // as scales; or null
  const void *min_factors;      // as scale_factors
  const uint8_t *table;         // [16], the numbers that 4-bit values encode; null for the values themselves
  int64_t outs, k, padded;      // padded: k rounded up to a multiple of 128
  int32_t bits, group, offset;  // 4 or 8; 16, 32, 64 or 128; offset: subtracted from values
  int32_t scale_kind, min_kind; // 0: float, 1: float16, 2: int8 with factors
  int32_t largest;              // no value of 8 bits exceeds it
};

// y[rows, outs] = x[rows, k] w^T + bias; bias may be null. keep: activations are not quantised.
extern "C" void quantized_linear(const Quantized *w, const float *x, const float *bias, float *y, int64_t rows, int keep,
                                 int threads);

// The same for `count` matrices with equal k; the inputs are quantised once. bias, or any of its elements, may be null.
extern "C" void quantized_linears(const Quantized *const *w, const float *const *bias, float *const *y, int count,
                                  const float *x, int64_t rows, int keep, int threads);

// y[count, k] = the dequantised rows of w with these indices: an embedding lookup.
extern "C" void quantized_rows(const Quantized *w, const int64_t *rows, int64_t count, float *y);
