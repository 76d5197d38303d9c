// Rows of activations as the products read them.
//
// Rows are taken in blocks. A block is an array of records, one per 32 inputs, in which the numbers that are used
// together stand together, so that one pointer serves all rows.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "quantized_vectors.h"

constexpr int STEP = 32;

// A record of R rows; SUB: how many scales of weights its inputs have, 1 or 2.
template <int R, int SUB>
struct Rounded {
  int8_t q[STEP / 4][R][4];  // AMX: [R][STEP / 4][4]
  float scale[R];
  int32_t start[SUB][R];  // what integer sums start from: (centre - offset) * sum of q
  float total[SUB][R];    // scale * sum of q
};
template <int R, int SUB>
struct Kept {
  float x[STEP][R];
  float total[SUB][R];  // sum of x
};
static inline int64_t rounded_size(int64_t rows, int sub) { return rows * (STEP + 4 + 8 * sub); }
static inline int64_t kept_size(int64_t rows, int sub) { return rows * (4 * STEP + 4 * sub); }

// Which records a matrix reads; matrices with the same answer share them.
struct Form {
  int sub, factor;  // factor: centre - offset
  bool tiles;       // the order of AMX
  bool operator==(const Form &other) const {
    return sub == other.sub && factor == other.factor && tiles == other.tiles;
  }
};

// Rounds 32 inputs to bytes; returns their scale.
static inline float round_step(const float *x, int8_t *q) {
  int32_t largest = 0, bits[STEP];
  std::memcpy(bits, x, sizeof bits);
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < STEP; i++) largest = std::max(largest, bits[i] & 0x7FFFFFFF);  // floats are ordered as their bits
  float m;
  std::memcpy(&m, &largest, 4);
  if (!(m >= 0x1p-100f && m <= std::numeric_limits<float>::max())) {
    std::memset(q, 0, STEP);
    return m < 0x1p-100f ? 0 : std::numeric_limits<float>::quiet_NaN();
  }
  const float inverse = 127 / m;
#pragma omp simd
  for (int i = 0; i < STEP; i++) {
    const float product = x[i] * inverse;
    q[i] = (int8_t)(int32_t)std::nearbyint(product);
  }
  return m / 127;
}

// Writes the records of `rows` rows of x, [rows, k], in each form, one after the other at `to[form]`.
static void round_rows(const float *x, int64_t rows, int64_t k, int64_t padded, const Form *forms, int count,
                       uint8_t *const *to) {
  int8_t q[STEP];
  float last[STEP];
  for (int64_t r = 0; r < rows; r++) {
    const float *row = x + r * k;
    for (int64_t step = 0; step < padded / STEP; step++) {
      const int64_t left = k - step * STEP;
      const float *from = row + step * STEP;
      if (left < STEP) {
        std::memset(last, 0, sizeof last);
        if (left > 0) std::memcpy(last, from, left * sizeof(float));
        from = last;
      }
      const float scale = round_step(from, q);
      int32_t sums[2] = {};
      for (int i = 0; i < STEP; i++) sums[i / (STEP / 2)] += q[i];
      for (int f = 0; f < count; f++) {
        const Form &form = forms[f];
        uint8_t *record = to[f] + step * rounded_size(rows, form.sub);
        const int64_t quad_step = form.tiles ? 4 : 4 * rows, row_step = form.tiles ? STEP : 4;
        for (int quad = 0; quad < STEP / 4; quad++) std::memcpy(record + quad * quad_step + r * row_step, q + 4 * quad, 4);
        float *numbers = (float *)(record + STEP * rows) + r;
        numbers[0] = scale;
        for (int sub = 0; sub < form.sub; sub++) {
          const int32_t sum = form.sub == 2 ? sums[sub] : sums[0] + sums[1];
          ((int32_t *)numbers)[(1 + sub) * rows] = form.factor * sum;
          numbers[(1 + form.sub + sub) * rows] = scale * (float)sum;
        }
      }
    }
  }
}

// The same without rounding.
static void keep_rows(const float *x, int64_t rows, int64_t k, int64_t padded, const Form *forms, int count,
                      uint8_t *const *to) {
  for (int f = 0; f < count; f++)
    for (int64_t step = 0; step < padded / STEP; step++) {
      float *record = (float *)(to[f] + step * kept_size(rows, forms[f].sub));
      for (int64_t r = 0; r < rows; r++) {
        float totals[2] = {};
        for (int i = 0; i < STEP; i++) {
          const int64_t at = step * STEP + i;
          const float value = at < k ? x[r * k + at] : 0;
          record[i * rows + r] = value, totals[forms[f].sub == 2 ? i / (STEP / 2) : 0] += value;
        }
        for (int sub = 0; sub < forms[f].sub; sub++) record[(STEP + sub) * rows + r] = totals[sub];
      }
    }
}
