// The product of one block of 16 outputs with one block of up to ROWS rows; quantized.h says what is computed.
//
// Every vector of weights is loaded once for all rows, whose integer sums stay in registers.

#pragma once

#include "quantized_activations.h"

constexpr int ROWS = 8;

// 16 outputs of a matrix.
struct Panel {
  const uint8_t *values, *table;
  const float *scales, *minima;  // 16 for each step and sub-step; minima may be null
  int64_t steps, ahead;          // ahead: bytes from a value to the one that is fetched meanwhile
  int32_t offset;
  const float *bias;             // of these outputs, or null
  float *y;                      // the first of these outputs of the first row
  int64_t y_step;                // from row to row
  int count;                     // outputs that exist, up to 16
};

template <int R>
static inline void write_sums(const Panel &p, const Floats (&sums)[R][PARTS]) {
  for (int r = 0; r < R; r++) {
    float *y = p.y + r * p.y_step;
    if (p.count == 16) {
      for (int part = 0; part < PARTS; part++) {
        Floats sum = sums[r][part];
        if (p.bias) sum += *(const Floats *)(p.bias + part * LANES);
        *(Floats *)(y + part * LANES) = sum;
      }
    } else {
      const float *each = (const float *)sums[r];
      for (int i = 0; i < p.count; i++) y[i] = p.bias ? each[i] + p.bias[i] : each[i];
    }
  }
}

template <Format FORMAT>
constexpr int BYTES_OF_STEP = FORMAT == BYTES ? STEP * 16 : STEP * 8;

// 1. The weights' integer sums for the rows, by parts of a block; 2. both scales; 3. the minimum; 4. the results.
template <int R, Format FORMAT, int SUB>
static void multiply_rounded(const Panel &p, const void *records) {
  constexpr int QUADS = STEP / 4 / SUB, SIZE = BYTES_OF_STEP<FORMAT>;
  const Rounded<R, SUB> *rows = (const Rounded<R, SUB> *)records;
  const Words table = load_table(p.table);
  const uint8_t *values = p.values;
  const float *scales = p.scales, *minima = p.minima;
  Floats sums[R][PARTS] = {};
  for (int64_t step = 0; step < p.steps; step++, values += SIZE, rows++, scales += 16 * SUB) {
#pragma GCC unroll 8
    for (int line = 0; line < SIZE; line += 64) __builtin_prefetch(values + p.ahead + line, 0, 3);
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++) {
#pragma GCC unroll 2
      for (int sub = 0; sub < SUB; sub++) {
        Sum<FORMAT> dots[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) dots[r].begin(rows->start[sub][r]);
#pragma GCC unroll 8
        for (int quad = sub * QUADS; quad < (sub + 1) * QUADS; quad++) {
          const Weights<FORMAT> w(load_values<FORMAT>(values + part * LANES * 4, quad, table));
#pragma GCC unroll 8
          for (int r = 0; r < R; r++) dots[r].add(w, rows->q[quad][r]);
        }
        const Floats scale = *(const Floats *)(scales + sub * 16 + part * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
          sums[r][part] = multiply_add(to_floats(dots[r].total(rows->start[sub][r])) * scale, spread(rows->scale[r]), sums[r][part]);
        if (minima) {
          const Floats minimum = *(const Floats *)(minima + sub * 16 + part * LANES);
#pragma GCC unroll 8
          for (int r = 0; r < R; r++)
            sums[r][part] = multiply_add(minimum, spread(rows->total[sub][r]), sums[r][part]);
        }
      }
    }
    if (minima) minima += 16 * SUB;
  }
  write_sums<R>(p, sums);
}

// The same with activations that are kept: values are widened to float in registers.
template <int R, Format FORMAT, int SUB>
static void multiply_kept(const Panel &p, const void *records) {
  constexpr int QUADS = STEP / 4 / SUB, SIZE = BYTES_OF_STEP<FORMAT>;
  const Kept<R, SUB> *rows = (const Kept<R, SUB> *)records;
  const Words table = load_table(p.table);
  const uint8_t *values = p.values;
  const float *scales = p.scales, *minima = p.minima;
  Floats sums[R][PARTS] = {};
  for (int64_t step = 0; step < p.steps; step++, values += SIZE, rows++, scales += 16 * SUB) {
#pragma GCC unroll 8
    for (int line = 0; line < SIZE; line += 64) __builtin_prefetch(values + p.ahead + line, 0, 3);
    for (int part = 0; part < PARTS; part++) {
      for (int sub = 0; sub < SUB; sub++) {
        Floats dots[R] = {};
#pragma GCC unroll 8
        for (int quad = sub * QUADS; quad < (sub + 1) * QUADS; quad++) {
          const Words four = load_values<FORMAT>(values + part * LANES * 4, quad, table);
#pragma GCC unroll 4
          for (int i = 0; i < 4; i++) {
            const Floats w = to_floats((Ints)(four >> 8 * i & 255) - p.offset);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) dots[r] = multiply_add(w, spread(rows->x[quad * 4 + i][r]), dots[r]);
          }
        }
        const Floats scale = *(const Floats *)(scales + sub * 16 + part * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) sums[r][part] = multiply_add(dots[r], scale, sums[r][part]);
        if (minima) {
          const Floats minimum = *(const Floats *)(minima + sub * 16 + part * LANES);
#pragma GCC unroll 8
          for (int r = 0; r < R; r++)
            sums[r][part] = multiply_add(minimum, spread(rows->total[sub][r]), sums[r][part]);
        }
      }
    }
    if (minima) minima += 16 * SUB;
  }
  write_sums<R>(p, sums);
}

typedef void (*Kernel)(const Panel &, const void *);

template <Format FORMAT, int SUB, int R = ROWS>
static Kernel choose_kernel(int64_t rows, bool keep) {
  if constexpr (R > 1) {
    if (rows < R) return choose_kernel<FORMAT, SUB, R - 1>(rows, keep);
  }
  return keep ? multiply_kept<R, FORMAT, SUB> : multiply_rounded<R, FORMAT, SUB>;
}
template <Format FORMAT>
static Kernel choose_kernel(int sub, int64_t rows, bool keep) {
  return sub == 2 ? choose_kernel<FORMAT, 2>(rows, keep) : choose_kernel<FORMAT, 1>(rows, keep);
}
static Kernel choose_kernel(const Quantized &w, int64_t rows, bool keep) {
  const int sub = w.group < STEP ? 2 : 1;
  if (w.bits == 8) return choose_kernel<BYTES>(sub, rows, keep);
  return w.table ? choose_kernel<TABLE>(sub, rows, keep) : choose_kernel<NIBBLES>(sub, rows, keep);
}
static int centre(const Quantized &w) {
  return w.bits == 8 ? CENTRE<BYTES> : w.table ? CENTRE<TABLE> : CENTRE<NIBBLES>;
}
