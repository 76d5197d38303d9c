// The product of a block of 16 outputs with a block of up to ROWS rows; quantized.h defines the result.
//
// Each vector of weights is loaded once for all rows; their integer sums stay in registers.

#pragma once

#include <type_traits>

#include "quantized_activations.h"
#include "quantized_scales.h"

#define INLINE __attribute__((always_inline)) inline
// Most rows of a block: unrounded ones, and rounded ones by the format of the weights.
constexpr int ROWS = LANES == 16 ? 8 : LANES == 8 ? 4 : 2;
#if defined(QUANTIZED_AVX2) && !defined(QUANTIZED_VNNI)
template <Format FORMAT>
constexpr int ROUNDED_ROWS = in_bytes(FORMAT) ? 8 : FORMAT == NIBBLES ? 6 : ROWS;
#else
template <Format>
constexpr int ROUNDED_ROWS = ROWS;
#endif
constexpr int UNROLLED = LANES == 4 ? 1 : 8;  // generic compiler vectors produce long code
// Prefetch distance in bytes, and the minimum rows for prefetching. NEAR is the distance for exactly these rows, into
// the first-level cache; 0 if it is that of more rows.
#if defined(QUANTIZED_AVX2) && !defined(QUANTIZED_VNNI)
constexpr int AHEAD = 4096, NEAR = 0, FETCHED_BYTES = 1, FETCHED_HALVES = 1;  // its processors gain from one row on
#elif defined(__AMX_INT8__)
constexpr int AHEAD = 8192, NEAR = 0, FETCHED_BYTES = 1, FETCHED_HALVES = 1;  // so did the one with AMX measured
#else
constexpr int AHEAD = 8192, NEAR = 4096, FETCHED_BYTES = 4, FETCHED_HALVES = 1;
#endif

// 16 outputs of a matrix.
struct Panel {
  const uint8_t *values, *table;
  Numbers scales, minima;   // of this block; minima may be null
  int64_t steps;
  int shift;                // 1 << shift steps share a scale
  int offset;
  const float *bias;        // for these outputs, or null
  float *y;                 // first of these outputs in the first row
  int64_t y_step;           // stride between rows
  int count;                // number of existing outputs, up to 16
  bool fetch;               // the values are not in the cache yet
};

template <Format FORMAT>
constexpr int BYTES_OF_STEP = in_bytes(FORMAT) ? STEP * 16 : STEP * 8;

// Vectors of outputs computed together: all of a block, so that each number of a row is loaded once, or one at a time
// if the sums, REGISTERS each, would not fit the registers beside the weights: half-bytes take fewest.
template <int R, Format FORMAT, bool KEEP>
constexpr int REGISTERS = R * PARTS * (KEEP ? 2 : sizeof(Sum<FORMAT>) / sizeof(Ints));
template <int R, Format FORMAT, bool KEEP>
constexpr int TOGETHER = REGISTERS<R, FORMAT, KEEP> <= (FORMAT == NIBBLES && !KEEP ? 12 : 8) ? PARTS : 1;

// Hardware prefetches a memory stream by itself, and on processors with VNNI but no AMX works best undisturbed while a
// product is memory-bound, as for few rows of bytes. With more computation it does not run far enough ahead: then
// values and scales, two streams, are prefetched by the same distance in inputs. At the limit between the two, which
// half-bytes reach with one row, prefetching nearby is faster.
template <Format FORMAT>
constexpr int FETCHED = in_bytes(FORMAT) ? FETCHED_BYTES : FETCHED_HALVES;
template <int R, Format FORMAT>
INLINE static void fetch_ahead(const Panel &p, const uint8_t *values, int64_t step) {
  if (R < FETCHED<FORMAT> || !p.fetch) return;
  constexpr bool IS_NEAR = NEAR && R == FETCHED<FORMAT>;
  constexpr int DISTANCE = IS_NEAR ? NEAR : AHEAD, LOCALITY = IS_NEAR ? 3 : 2;
#pragma GCC unroll 8
  for (int line = 0; line < BYTES_OF_STEP<FORMAT>; line += 64)
    __builtin_prefetch(values + DISTANCE + line, 0, LOCALITY);
  const int64_t later = step + DISTANCE / BYTES_OF_STEP<FORMAT>;
  __builtin_prefetch((const uint8_t *)p.scales.numbers + later * p.scales.step, 0, LOCALITY);
  if (p.minima.numbers) __builtin_prefetch((const uint8_t *)p.minima.numbers + later * p.minima.step, 0, LOCALITY);
}

// The last outputs of a matrix, fewer than 16.
__attribute__((noinline)) static void write_last(const Panel &p, int r, const float *sums) {
  for (int i = 0; i < p.count; i++) p.y[r * p.y_step + i] = p.bias ? sums[i] + p.bias[i] : sums[i];
}

static inline void write_sums(const Panel &p, int r, const Floats (&sums)[PARTS]) {
  float last[16], *y = p.count == 16 ? p.y + r * p.y_step : last;
  for (int part = 0; part < PARTS; part++) {
    Floats sum = sums[part];
    if (p.bias && y != last) sum += *(const Floats *)(p.bias + part * LANES);
    *(Floats *)(y + part * LANES) = sum;
  }
  if (y == last) write_last(p, r, last);
}

// Part of a block in one step, or in half of a step with two scales: N vectors of outputs from number `first`.
template <Format FORMAT, int SUB, int N>
struct Slice {
  static constexpr int QUADS = STEP / 4 / SUB;
  const uint8_t *values;
  Words table;
  int sub, first;

  int first_quad() const { return sub * QUADS; }
  Words load(int quads, int odd, int part) const {
    return load_values<FORMAT>(values + (first + part) * LANES * 4, quads, odd, table);
  }
};

// Adds the products of a slice with rounded rows: 1. integer sums; 2. times both scales.
template <int R, Format FORMAT, int SUB, int N>
INLINE static void add_products(const Slice<FORMAT, SUB, N> &slice, const Rounded<R, SUB> &rows,
                                const Floats (&scales)[N], int, Floats (&sums)[R][PARTS]) {
  Sum<FORMAT> dots[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
    for (int part = 0; part < N; part++) dots[r][part].begin(rows.start[slice.sub][r]);
#pragma GCC unroll UNROLLED
  for (int quads = slice.first_quad(); quads < slice.first_quad() + slice.QUADS; quads += 2)
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; odd += TAKEN<FORMAT>) {
      Weights<FORMAT> w[N][TAKEN<FORMAT>];
      for (int part = 0; part < N; part++)
        for (int i = 0; i < TAKEN<FORMAT>; i++) w[part][i] = Weights<FORMAT>(slice.load(quads, odd + i, part));
#pragma GCC unroll 8
      for (int r = 0; r < R; r++)
        for (int part = 0; part < N; part++) dots[r][part].add(w[part], rows.q[r] + (quads + odd) * 4);
    }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
    for (int part = 0; part < N; part++) {
      const Floats product = to_floats(dots[r][part].total(rows.start[slice.sub][r])) * scales[part];
      sums[r][slice.first + part] = multiply_add(product, spread(rows.scale[r]), sums[r][slice.first + part]);
    }
}

// The same with unrounded rows: values are widened to float in registers. Even and odd quads are summed separately,
// because an addition waits for the previous one.
template <int R, Format FORMAT, int SUB, int N>
INLINE static void add_products(const Slice<FORMAT, SUB, N> &slice, const Kept<R, SUB> &rows,
                                const Floats (&scales)[N], int offset, Floats (&sums)[R][PARTS]) {
  Floats dots[2][R][N] = {};
#pragma GCC unroll 1
  for (int quads = slice.first_quad(); quads < slice.first_quad() + slice.QUADS; quads += 2)
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; odd++)
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++)
        for (int part = 0; part < N; part++) {
          const Words four = slice.load(quads, odd, part);
          const Floats w = to_floats((Ints)(four >> 8 * i & 255) - offset);
#pragma GCC unroll 8
          for (int r = 0; r < R; r++)
            dots[odd][r][part] = multiply_add(w, spread(rows.x[r][(quads + odd) * 4 + i]), dots[odd][r][part]);
        }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
    for (int part = 0; part < N; part++) {
      const Floats product = dots[0][r][part] + dots[1][r][part];
      sums[r][slice.first + part] = multiply_add(product, scales[part], sums[r][slice.first + part]);
    }
}

// All steps of a block.
template <int R, Format FORMAT, int SUB, bool KEEP>
static void multiply(const Panel &p, const void *records) {
  using Record = std::conditional_t<KEEP, Kept<R, SUB>, Rounded<R, SUB>>;
  constexpr int N = TOGETHER<R, FORMAT, KEEP>;
  const Record *rows = (const Record *)records;
  const Words table = load_table(p.table);
  const Numbers scales = p.scales, minima = p.minima;
  const uint8_t *values = p.values;
  Floats sums[R][PARTS] = {};
  for (int64_t step = 0; step < p.steps; step++, values += BYTES_OF_STEP<FORMAT>, rows++) {
    fetch_ahead<R, FORMAT>(p, values, step);
#pragma GCC unroll 2
    for (int sub = 0; sub < SUB; sub++)
#pragma GCC unroll 1
      for (int first = 0; first < PARTS; first += N) {
        const Record *same = rows;
        if (N < PARTS) asm("" : "+r"(same));  // forces a reload: the numbers of all rows do not fit the registers
        Floats numbers[N];
        const int64_t at = (step >> p.shift) * 16 * SUB + sub * 16 + first * LANES;
        const int64_t factor_at = step / 8 * 16 + first * LANES;
        for (int part = 0; part < N; part++)
          numbers[part] = read_numbers(scales, at + part * LANES, factor_at + part * LANES);
        add_products<R, FORMAT, SUB, N>({values, table, sub, first}, *same, numbers, p.offset, sums);
        if (!minima.numbers) continue;
        for (int part = 0; part < N; part++) {
          const Floats minimum = read_numbers(minima, at + part * LANES, factor_at + part * LANES);
#pragma GCC unroll 8
          for (int r = 0; r < R; r++)
            sums[r][first + part] = multiply_add(minimum, spread(rows->total[sub][r]), sums[r][first + part]);
        }
      }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) write_sums(p, r, sums[r]);
}

typedef void (*Kernel)(const Panel &, const void *);

template <Format FORMAT, int SUB, bool KEEP, int R>
static Kernel choose_kernel(int64_t rows) {
  if constexpr (R > 1) {
    if (rows < R) return choose_kernel<FORMAT, SUB, KEEP, R - 1>(rows);
  }
  return multiply<R, FORMAT, SUB, KEEP>;
}
template <Format FORMAT>
static Kernel choose_kernel(int sub, int64_t rows, bool keep) {
  constexpr Format KEPT = in_bytes(FORMAT) ? BYTES : FORMAT;
  if (keep) return sub == 2 ? choose_kernel<KEPT, 2, true, ROWS>(rows) : choose_kernel<KEPT, 1, true, ROWS>(rows);
  constexpr int MOST = ROUNDED_ROWS<FORMAT>;
  return sub == 2 ? choose_kernel<FORMAT, 2, false, MOST>(rows) : choose_kernel<FORMAT, 1, false, MOST>(rows);
}

// The format as which `rows` rows read a matrix: one or two wait for memory, and bytes of 6 bits gain them nothing.
static Format format_of(const Quantized &w, int64_t rows) {
  if (w.bits == 8) return w.largest <= SIX_BITS_LARGEST && rows > 2 ? SIX_BITS : BYTES;
  return w.table ? TABLE : NIBBLES;
}
static Kernel choose_kernel(Format format, int sub, int64_t rows, bool keep) {
  if (format == BYTES) return choose_kernel<BYTES>(sub, rows, keep);
  if (format == NIBBLES) return choose_kernel<NIBBLES>(sub, rows, keep);
  if (format == TABLE) return choose_kernel<TABLE>(sub, rows, keep);
  if constexpr (SIX_BITS_LARGEST > 0) return choose_kernel<SIX_BITS>(sub, rows, keep);
  return nullptr;  // not reached
}

// The most rows of a block of `rows` rounded ones. Large blocks are faster with 6 bits, else only if one holds all rows.
template <Format FORMAT>
constexpr int64_t most_rows(int64_t rows) {
  return FORMAT == SIX_BITS || rows <= ROUNDED_ROWS<FORMAT> ? ROUNDED_ROWS<FORMAT> : ROWS;
}
static int64_t most_rows(Format format, int64_t rows) {
  if (format == BYTES) return most_rows<BYTES>(rows);
  if (format == SIX_BITS) return most_rows<SIX_BITS>(rows);
  return format == NIBBLES ? most_rows<NIBBLES>(rows) : most_rows<TABLE>(rows);
}

// Block `block` of a matrix; its results are written to y, [rows, outs].
static Panel panel_of(const Quantized &w, int64_t block, const float *bias, float *y, bool fetch) {
  const int64_t groups = w.padded / w.group * 16, supers = (w.padded + 255) / 256 * 16, out = block * 16;
  const auto part = [&](const Numbers &n) {
    if (!n.numbers) return n;
    const int64_t size = groups * (n.kind == 0 ? 4 : n.kind == 1 ? 2 : 1);
    return Numbers{(const uint8_t *)n.numbers + block * size,
                   n.factors ? (const uint16_t *)n.factors + block * supers : nullptr, n.kind,
                   size * STEP / std::max<int64_t>(w.padded, 1)};
  };
  return {w.values + block * w.padded * 2 * w.bits,
          w.table,
          part(scales_of(w)),
          part(minima_of(w)),
          w.padded / STEP,
          w.group == 128 ? 2 : w.group == 64 ? 1 : 0,
          w.offset,
          bias ? bias + out : nullptr,
          y + out,
          w.outs,
          (int)std::min<int64_t>(16, w.outs - out),
          fetch};
}
