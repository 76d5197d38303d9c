// y[n, outs] = x[n, k] w[outs, k]^T for few rows x, reading w once and where it lies: nothing is packed or copied.
//
// PyTorch's matrix products are made for many rows; for 2 to 64 they run at a third of what memory allows. Here a tile
// of ROWS x OUTS sums stays in registers, a slice of k (KEPT) keeps x's part in the first cache, and while a block of
// weights is used for all rows the next one is fetched. Of its weights a tile takes rows that lie APART bytes from each
// other, since processors too fetch ahead, but one run of addresses in each page. Every sum is formed in the same order
// however many rows there are, so a row's result does not depend, to the last bit, on the others.
//
// w is float or, if `narrow`, bfloat16, which is widened as it is read; x and y are float.

#include <algorithm>

#include "vectors.h"

constexpr int ROWS = WIDTH == 16 ? 6 : WIDTH == 8 ? 2 : 4;
constexpr int OUTS = 4, BLOCK = 32, KEPT = 1024, SHARE = 4, APART = 8192;

typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));

// The sum of each vector's lanes.
static inline Four totals(Vector a, Vector b, Vector c, Vector d) {
#if defined(__AVX512F__)
  __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps((__m512)a, (__m512)b), _mm512_unpackhi_ps((__m512)a, (__m512)b));
  __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps((__m512)c, (__m512)d), _mm512_unpackhi_ps((__m512)c, (__m512)d));
  __m512 low = _mm512_castpd_ps(_mm512_unpacklo_pd((__m512d)ab, (__m512d)cd));
  __m512 sum = _mm512_add_ps(low, _mm512_castpd_ps(_mm512_unpackhi_pd((__m512d)ab, (__m512d)cd)));
  __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)sum, 1));
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sum), upper);
  return (Four)_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#elif defined(__AVX__)
  __m256 sum = _mm256_hadd_ps(_mm256_hadd_ps((__m256)a, (__m256)b), _mm256_hadd_ps((__m256)c, (__m256)d));
  return (Four)_mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
#else
  Four sums = {};
  for (int i = 0; i < WIDTH; i++) sums += Four{a[i], b[i], c[i], d[i]};
  return sums;
#endif
}

template <class W>
struct Tile {
  const float *x;  // R rows, `step` apart
  const W *w;      // OUTS rows, `w_step` apart; all behind the first `count` are the last of these again
  const W *next;   // what to fetch meanwhile: FETCHED rows, `w_step` apart
  float *y;        // R rows, `y_step` apart, of OUTS sums, `spread` apart
  int64_t step, w_step, y_step, spread, k;  // k: of each row
  int count;
  bool add;
};

template <int R, int FETCHED, class W>
static void multiply(const Tile<W> &t) {
  const W *w[OUTS];
  for (int o = 0; o < OUTS; o++) w[o] = t.w + std::min(o, t.count - 1) * t.w_step;
  Vector sums[R][OUTS] = {};
  const float *x = t.x;
  const int64_t whole = t.k / WIDTH * WIDTH, step = t.step, w_step = t.w_step, spread = t.spread;
  for (int64_t i = 0; i < whole; i += WIDTH) {
    Vector b[OUTS];
    for (int o = 0; o < OUTS; o++) b[o] = wide(w[o] + i);
#pragma GCC unroll 8
    for (int f = 0; f < FETCHED; f++) __builtin_prefetch(t.next + f * w_step + i, 0, 2);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      Vector a = *(const Vector *)(x + r * step + i);
      for (int o = 0; o < OUTS; o++) sums[r][o] += a * b[o];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    Four sum = totals(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
    for (int64_t i = whole; i < t.k; i++)
      sum += x[r * step + i] * Four{wide(w[0][i]), wide(w[1][i]), wide(w[2][i]), wide(w[3][i])};
    float *y = t.y + r * t.y_step;
    if (t.add) sum += Four{y[0], y[spread], y[2 * spread], y[3 * spread]};
    y[0] = sum[0], y[spread] = sum[1], y[2 * spread] = sum[2], y[3 * spread] = sum[3];
  }
}

template <int FETCHED, int R = ROWS, class W>
static inline void multiply_rows(int rows, const Tile<W> &t) {
  if constexpr (R > 1) {
    if (rows < R) return multiply_rows<FETCHED, R - 1>(rows, t);
  }
  multiply<R, FETCHED>(t);
}
template <class W>
static inline void multiply_rows(int rows, int fetched, const Tile<W> &t) {
  if (fetched == OUTS) multiply_rows<OUTS>(rows, t);
  else if (fetched == 2) multiply_rows<2>(rows, t);
  else if (fetched == 1) multiply_rows<1>(rows, t);
  else multiply_rows<0>(rows, t);
}

// A tile with fewer weights than OUTS, and no more sums.
template <class W>
static void multiply_last(int rows, Tile<W> t) {
  float sums[ROWS * OUTS], *y = t.y;
  const int64_t step = t.y_step;
  const bool add = t.add;
  t.y = sums, t.y_step = OUTS, t.add = false;
  multiply_rows<0>(rows, t);
  for (int r = 0; r < rows; r++, y += step)
    for (int o = 0; o < t.count; o++) y[o] = add ? y[o] + sums[r * OUTS + o] : sums[r * OUTS + o];
}

// The most rows for which this beats PyTorch's product; measured with AVX-512 and AVX2 code, not with any other.
extern "C" int most_rows(int narrow) { return WIDTH == 16 || (WIDTH == 8 && narrow) ? 96 : WIDTH == 8 ? 20 : 4; }

template <class W>
static void product(const float *x, const W *weights, float *y, int64_t n, int64_t outs, int64_t k, int threads) {
  const int64_t blocks = (n + ROWS - 1) / ROWS, pieces = (k + KEPT - 1) / KEPT;
  const int64_t kept = ((k + pieces - 1) / pieces + WIDTH - 1) / WIDTH * WIDTH;
  int64_t widest = 1;  // how many rows apart
  while (widest < BLOCK / OUTS && widest * k * (int64_t)sizeof(W) < APART) widest *= 2;
  const int64_t fetched = blocks == 1 ? OUTS : blocks < OUTS ? 2 : 1;
#pragma omp parallel for schedule(dynamic, SHARE) num_threads(threads)
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
            const Tile<W> t{x + row * k + start, w + done, next + done + b * fetched * spread * k, y + row * outs + o,
                            k, spread * k, outs, spread, part, (int)count, start > 0};
            if (count == OUTS) multiply_rows(rows, b * fetched < OUTS ? fetched : 0, t);
            else multiply_last(rows, t);
          }
        }
      }
    }
  }
}

extern "C" void linear(const float *x, const void *weights, float *y, int64_t n, int64_t outs, int64_t k, int narrow,
                       int threads) {
  if (narrow) product(x, (const Brain *)weights, y, n, outs, k, threads);
  else product(x, (const float *)weights, y, n, outs, k, threads);
}
