// Matrix products y[n, outs] = x[n, k] w[outs, k]^T for a few rows x, which read w once and in place.
//
// PyTorch's products are tuned for many rows; for 2 to 64 rows they reach a third of the memory bandwidth. Here a tile
// of ROWS x OUTS sums stays in registers, a slice of k (KEPT) keeps its part of x in the first-level cache, and while a
// block of weights is used for all rows the next block is prefetched. A tile reads weight rows that are APART bytes
// from each other, because hardware prefetchers follow only one stream per page. FEW rows need no block. Every sum is
// formed in the same order for any number of rows, so the result of a row does not depend, to the last bit, on the
// other rows.
//
// The code is shared by linear.cpp (x float; w float, or bfloat16 converted as it is read) and linear_bf16.cpp (x and w
// bfloat16, multiplied by AVX512-BF16 instructions). y is float.

#pragma once

#include <algorithm>

#include "vectors.h"

constexpr int OUTS = 4, BLOCK = 32, KEPT = 1024, SHARE = 4, APART = 8192;
constexpr int CHUNKS = 4;  // minimum chunks per thread, if there is enough work
constexpr int FEW = 2, AHEAD = 1024, LONGEST = 127;  // rows in one pass over the weights, bytes to prefetch, tiles of a chunk
// Rows of a tile: as many as leave registers for the sums, the rows and one vector of weights.
template <class W>
constexpr int ROWS = WIDTH == 16 ? 6 : WIDTH == 8 ? std::is_same_v<W, float> ? 3 : 2 : 4;
// Elements of a row multiplied by one instruction: a vector of floats, or of pairs of bfloat16.
template <class X>
constexpr int STEP = std::is_same_v<X, BFloat16> ? 2 * WIDTH : WIDTH;

static inline Vector row_vector(const float *x) { return *(const Vector *)x; }
static inline Pairs row_vector(const BFloat16 *x) { return *(const Pairs *)x; }

// Weights in the form in which rows are multiplied with them: floats with floats, pairs with pairs.
template <class W>
static inline Vector weight_vector(const float *, const W *w) { return to_float(w); }
static inline Pairs weight_vector(const BFloat16 *, const BFloat16 *w) { return *(const Pairs *)w; }

static inline Vector multiply_add(Vector sum, Vector x, Vector w) { return sum + x * w; }
static inline Vector multiply_add(Vector sum, Pairs x, Pairs w) {
#if defined(__AVX512BF16__)
  return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w);
#else  // the same, for tests: the upper element of each pair first
  sum += (Vector)(x & 0xFFFF0000) * (Vector)(w & 0xFFFF0000);
  return sum + (Vector)(x << 16) * (Vector)(w << 16);
#endif
}

typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));

// The sum over the lanes of each vector.
static inline Four totals(Vector a, Vector b, Vector c, Vector d) {
#if defined(__AVX512F__) && !defined(SPECULANT_WIDTH)
  __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps((__m512)a, (__m512)b), _mm512_unpackhi_ps((__m512)a, (__m512)b));
  __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps((__m512)c, (__m512)d), _mm512_unpackhi_ps((__m512)c, (__m512)d));
  __m512 low = _mm512_castpd_ps(_mm512_unpacklo_pd((__m512d)ab, (__m512d)cd));
  __m512 sum = _mm512_add_ps(low, _mm512_castpd_ps(_mm512_unpackhi_pd((__m512d)ab, (__m512d)cd)));
  __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)sum, 1));
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sum), upper);
  return (Four)_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#elif defined(__AVX__) && !defined(SPECULANT_WIDTH)
  __m256 sum = _mm256_hadd_ps(_mm256_hadd_ps((__m256)a, (__m256)b), _mm256_hadd_ps((__m256)c, (__m256)d));
  return (Four)_mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
#else
  Four sums = {};
  for (int i = 0; i < WIDTH; i++) sums += Four{a[i], b[i], c[i], d[i]};
  return sums;
#endif
}

template <class X, class W>
struct Tile {
  const X *x;     // R rows, `step` apart
  const W *w;     // OUTS rows, `w_step` apart; if there are only `count`, the last one is repeated
  const W *next;  // to prefetch: FETCHED rows, `w_step` apart
  float *y;       // R rows, `y_step` apart, of OUTS sums, `spread` apart
  int64_t step, w_step, y_step, spread, k;  // k: elements per row
  int count;
  bool add;  // to the contents of y
};

template <int R, int FETCHED, class X, class W>
static void multiply(const Tile<X, W> &t) {
  const W *w[OUTS];
  for (int o = 0; o < OUTS; o++) w[o] = t.w + std::min(o, t.count - 1) * t.w_step;
  Vector sums[R][OUTS] = {};
  const X *x = t.x;
  const int64_t whole = t.k / STEP<X> * STEP<X>, step = t.step, w_step = t.w_step, spread = t.spread;
  for (int64_t i = 0; i < whole; i += STEP<X>) {
#pragma GCC unroll 8
    for (int f = 0; f < FETCHED; f++) __builtin_prefetch(t.next + f * w_step + i, 0, 2);
    decltype(row_vector(x)) rows[R];
    for (int r = 0; r < R; r++) rows[r] = row_vector(x + r * step + i);
#pragma GCC unroll 8
    for (int o = 0; o < OUTS; o++) {
      const auto weights = weight_vector(x, w[o] + i);
      for (int r = 0; r < R; r++) sums[r][o] = multiply_add(sums[r][o], rows[r], weights);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    Four sum = totals(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
    for (int64_t i = whole; i < t.k; i++)
      sum += to_float(x[r * step + i]) *
             Four{to_float(w[0][i]), to_float(w[1][i]), to_float(w[2][i]), to_float(w[3][i])};
    float *y = t.y + r * t.y_step;
    if (t.add) sum += Four{y[0], y[spread], y[2 * spread], y[3 * spread]};
    y[0] = sum[0], y[spread] = sum[1], y[2 * spread] = sum[2], y[3 * spread] = sum[3];
  }
}

template <int FETCHED, class X, class W, int R = ROWS<W>>
static inline void multiply_rows(int rows, const Tile<X, W> &t) {
  if constexpr (R > 1) {
    if (rows < R) return multiply_rows<FETCHED, X, W, R - 1>(rows, t);
  }
  multiply<R, FETCHED>(t);
}
template <class X, class W>
static inline void multiply_rows(int rows, int fetched, const Tile<X, W> &t) {
  if (fetched == OUTS) multiply_rows<OUTS, X, W>(rows, t);
  else if (fetched == 2) multiply_rows<2, X, W>(rows, t);
  else if (fetched == 1) multiply_rows<1, X, W>(rows, t);
  else multiply_rows<0, X, W>(rows, t);
}

// A tile with fewer weight rows than OUTS.
template <class X, class W>
static void multiply_last(int rows, Tile<X, W> t) {
  float sums[ROWS<W> * OUTS], *y = t.y;
  const int64_t step = t.y_step;
  const bool add = t.add;
  t.y = sums, t.y_step = OUTS, t.add = false;
  multiply_rows<0, X, W>(rows, t);
  for (int r = 0; r < rows; r++, y += step)
    for (int o = 0; o < t.count; o++) y[o] = add ? y[o] + sums[r * OUTS + o] : sums[r * OUTS + o];
}

// For row counts so small that memory is the bottleneck: a tile reads OUTS long streams of consecutive weight rows,
// which hardware prefetchers follow. The number of rows between two streams is odd, to avoid mapping all to the same
// cache sets.
template <class X, class W>
static void product_of_few(const X *x, const W *weights, float *y, int64_t n, int64_t outs, int64_t k, int64_t kept,
                           int threads) {
  const int64_t share = std::clamp<int64_t>(outs / OUTS / (CHUNKS * threads), 1, LONGEST) | 1;
  const auto multiply_all = [&](int64_t out, int64_t spread, int count) {
    for (int64_t start = 0; start < k; start += kept) {
      const W *w = weights + out * k + start;
      const Tile<X, W> t{x + start, w, w + AHEAD / sizeof(W), y + out, k, spread * k, outs, spread,
                         std::min(kept, k - start), count, start > 0};
      if (count == OUTS) multiply_rows<OUTS, X, W>(n, t);
      else multiply_last(n, t);
    }
  };
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t from = 0; from < outs; from += share * OUTS) {
    const int64_t to = std::min(outs, from + share * OUTS), spread = (to - from) / OUTS, rest = (to - from) % OUTS;
    for (int64_t out = from; out < from + spread; out++) multiply_all(out, spread, OUTS);
    if (rest) multiply_all(to - rest, 1, rest);
  }
}

template <class X, class W>
static void product(const X *x, const W *weights, float *y, int64_t n, int64_t outs, int64_t k, int threads) {
  const int64_t blocks = (n + ROWS<W> - 1) / ROWS<W>, pieces = (k + KEPT - 1) / KEPT;
  const int64_t kept = ((k + pieces - 1) / pieces + STEP<X> - 1) / STEP<X> * STEP<X>;
  if (n <= FEW) return product_of_few(x, weights, y, n, outs, k, kept, threads);
  int64_t widest = 1;  // distance between the weight rows of a tile
  while (widest < BLOCK / OUTS && widest * k * (int64_t)sizeof(W) < APART) widest *= 2;
  const int64_t fetched = blocks == 1 ? OUTS : blocks < OUTS ? 2 : 1;
  const int64_t share = std::clamp<int64_t>(outs / BLOCK / (CHUNKS * threads), 1, SHARE);
#pragma omp parallel for schedule(dynamic, share) num_threads(threads)
  for (int64_t from = 0; from < outs; from += BLOCK) {
    const int64_t to = std::min<int64_t>(outs, from + BLOCK), spread = to - from == BLOCK ? widest : 1;
    for (int64_t start = 0; start < k; start += kept) {
      const int64_t part = std::min(kept, k - start);
      const W *w = weights + from * k + start, *next = w + (start + kept < k ? kept : BLOCK * k - start);
      for (int64_t b = 0; b < blocks; b++) {
        const int64_t row = n * b / blocks, rows = n * (b + 1) / blocks - row;
        for (int64_t tiles = from; tiles < to; tiles += OUTS * spread) {
          for (int64_t o = tiles; o < std::min(to, tiles + spread); o++) {
            const int64_t done = (o - from) * k, count = std::min<int64_t>(OUTS, to - o);
            const Tile<X, W> t{x + row * k + start, w + done, next + done + b * fetched * spread * k, y + row * outs + o,
                            k, spread * k, outs, spread, part, (int)count, start > 0};
            if (count == OUTS) multiply_rows(rows, b * fetched < OUTS ? fetched : 0, t);
            else multiply_last(rows, t);
          }
        }
      }
    }
  }
}
