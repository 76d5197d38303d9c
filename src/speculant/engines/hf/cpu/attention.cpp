// Grouped-query attention of a few rows over a long cache, which is read in place.
//
// All rows that share a key-value head, from every query head of the group, are the lanes of vectors. So a key is read
// once for all of them, and no horizontal sums are needed. The scores of all keys are kept: with the maximum known
// before the first value is added, the sums run from key to key in order, and a key that a row does not see adds exact
// zeros.
//
// So each row's result is the same for any number of rows, and wherever in the cache its visible keys lie.

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "attention.h"
#include "vectors.h"

constexpr int TILE = WIDTH == 16 ? 8 : 4;
constexpr int MOST = 3, KEYS = 64;  // maximum vectors of rows at a time; keys per block
constexpr float MASKED = -std::numeric_limits<float>::infinity();

// sums[t][lanes] (+)= sum over i < count of values[i * step + t * across] (one for all lanes) * lanes[i][lanes].
template <int V>
static inline void tile(const float *values, int64_t step, int64_t across, const float *lanes, int64_t count,
                        float *sums, bool add) {
  Vector held[TILE][V] = {};
  for (int t = 0; add && t < TILE; t++)
    for (int j = 0; j < V; j++) held[t][j] = *(const Vector *)(sums + (t * V + j) * WIDTH);
  for (int64_t i = 0; i < count; i++) {
    Vector row[V];
    for (int j = 0; j < V; j++) row[j] = *(const Vector *)(lanes + (i * V + j) * WIDTH);
#pragma GCC unroll 8
    for (int t = 0; t < TILE; t++)
      for (int j = 0; j < V; j++) held[t][j] += row[j] * values[i * step + t * across];
  }
  for (int t = 0; t < TILE; t++)
    for (int j = 0; j < V; j++) *(Vector *)(sums + (t * V + j) * WIDTH) = held[t][j];
}

// Thread-local memory that is kept between calls.
static float *scratch(int64_t count) {
  static thread_local std::unique_ptr<float[]> buffer;
  static thread_local int64_t size = 0;
  if (size < count) buffer.reset(), buffer.reset(new float[count]), size = count;
  return buffer.get();
}

// Attention of rows from..to (V vectors) of the group that shares a key-value head.
template <int V, class T>
static void attend(const Attention &a, int64_t batch, int64_t kv_head, int64_t from, int64_t to) {
  constexpr int LANES = V * WIDTH;
  const int64_t group = a.heads / a.kv_heads, first = (batch * a.heads + kv_head * group) * a.n, size = sizeof(T);
  const T *keys = (const T *)a.k + batch * a.k_batch_step + kv_head * a.k_head_step;
  const T *values = (const T *)a.v + batch * a.v_batch_step + kv_head * a.v_head_step;
  const T *queries = (const T *)a.q + first * a.head;
  const bool *mask = a.mask ? a.mask + batch * a.mask_batch_step : nullptr;
  float *q = scratch((2 * LANES + KEYS) * a.head + a.length * LANES), *sums = q + a.head * LANES;
  float *block = sums + a.head * LANES, *scores = block + KEYS * a.head;
  Vector highest[V], total[V] = {};
  for (int j = 0; j < V; j++) highest[j] = Vector{} + MASKED;
  std::fill_n(sums, a.head * LANES, 0.f);
  std::fill_n(q, a.head * LANES, 0.f);
  for (int64_t r = from; r < to; r++)
    for (int64_t d = 0; d < a.head; d++) q[d * LANES + r - from] = to_float(queries[r * a.head + d]) * a.scale;
  const auto unseen = [&](int64_t start, int64_t count) {  // by any of these rows
    for (int64_t r = from; r < to; r++)
      if (mask ? !!std::memchr(mask + r % a.n * a.mask_step + start, 1, count)
               : !a.causal || start <= a.length - a.n + r % a.n)
        return false;
    return true;
  };
  // 1. The scores of all keys, and the maximum of each row.
  for (int64_t start = 0; start < a.length; start += KEYS) {
    const int64_t count = std::min<int64_t>(KEYS, a.length - start);
    if (unseen(start, count)) continue;
    const float *rows = as_floats(keys + start * a.head, block, count * a.head);
    float *own = scores + start * LANES;
    int64_t l = 0;
    for (; l + TILE <= count; l += TILE) {
      const char *ahead = (const char *)(values + (start + l) * a.head);  // hardware does not prefetch columns
      for (int64_t line = 0; line < TILE * a.head * size; line += 64) __builtin_prefetch(ahead + line, 0, 2);
      tile<V>(rows + l * a.head, 1, a.head, q, a.head, own + l * LANES, false);
    }
    for (; l < count; l++) {  // remainder of the last block
      float *s = own + l * LANES;
      std::fill_n(s, LANES, 0.f);
      for (int64_t d = 0; d < a.head; d++)
#pragma omp simd
        for (int i = 0; i < LANES; i++) s[i] += q[d * LANES + i] * rows[l * a.head + d];
    }
    for (int64_t r = from; mask && r < to; r++) {
      const bool *visible = mask + r % a.n * a.mask_step + start;
      if (!std::memchr(visible, 0, count)) continue;
      for (l = 0; l < count; l++)
        if (!visible[l]) own[l * LANES + r - from] = MASKED;
    }
    for (int64_t r = from; a.causal && r < to; r++)
      for (l = std::max<int64_t>(0, a.length - a.n + r % a.n + 1 - start); l < count; l++)
        own[l * LANES + r - from] = MASKED;
    for (l = 0; l < count; l++)
      for (int j = 0; j < V; j++) {
        const Vector s = *(const Vector *)(own + (l * V + j) * WIDTH);
        highest[j] = s > highest[j] ? s : highest[j];
      }
  }
  // 2. The sum of the values in key order, whatever invisible keys lie between.
  const Vector masked = Vector{} + MASKED;
  for (int64_t start = 0; start < a.length; start += KEYS) {
    const int64_t count = std::min<int64_t>(KEYS, a.length - start);
    if (unseen(start, count)) continue;
    float *own = scores + start * LANES;
    for (int j = 0; j < V; j++)
      for (int64_t l = 0; l < count; l++) {
        Vector *s = (Vector *)(own + (l * V + j) * WIDTH);
        *s = *s == masked ? Vector{} : exponential(*s - highest[j]);
        total[j] += *s;
      }
    const float *rows = as_floats(values + start * a.head, block, count * a.head);
    for (int64_t d = 0; d < a.head; d += TILE)
      tile<V>(rows + d, a.head, 1, own, count, sums + d * LANES, true);
  }
  for (int64_t r = from; r < to; r++) {
    const float sum = ((const float *)total)[r - from], scale = sum > 0 ? 1 / sum : 0;  // a row without any visible key
    const int64_t head = kv_head * group + r / a.n;
    T *y = (T *)a.y + ((batch * a.n + r % a.n) * a.heads + head) * a.head;
    for (int64_t d = 0; d < a.head; d++) y[d] = convert<T>(sums[d * LANES + r - from] * scale);
  }
}

struct Group {
  const Attention *a;
  int64_t batch, head, from, to;  // rows from..to of the group of a key-value head
};

template <class T>
static void attend_all(const Attention *each, int64_t count, int threads) {
  static thread_local std::vector<Group> kept;  // fresh memory costs more
  int64_t groups = 0;
  for (const Attention *a = each; a < each + count; a++) groups += a->batch * a->kv_heads;
  const int64_t wanted = (threads + groups - 1) / groups;
  kept.clear();
  for (const Attention *a = each; a < each + count; a++) {
    const int64_t rows = a->heads / a->kv_heads * a->n, vectors = (rows + WIDTH - 1) / WIDTH;
    const int64_t parts = std::max((vectors + MOST - 1) / MOST, std::min(vectors, wanted));
    for (int64_t batch = 0; batch < a->batch; batch++)
      for (int64_t head = 0; head < a->kv_heads; head++)
        for (int64_t part = 0; part < parts; part++)
          kept.push_back({a, batch, head, rows * part / parts, rows * (part + 1) / parts});
  }
  const Group *tasks = kept.data();
  const int64_t all = kept.size();
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t i = 0; i < all; i++) {
    const Group &t = tasks[i];
    const int64_t wide = (t.to - t.from + WIDTH - 1) / WIDTH;
    if (wide == 1) attend<1, T>(*t.a, t.batch, t.head, t.from, t.to);
    else if (wide == 2) attend<2, T>(*t.a, t.batch, t.head, t.from, t.to);
    else attend<3, T>(*t.a, t.batch, t.head, t.from, t.to);
  }
}

extern "C" void attention(const Attention *each, int64_t count, int threads) {
  if (each->is_bf16) attend_all<BFloat16>(each, count, threads);
  else attend_all<float>(each, count, threads);
}

extern "C" void move_rows(const Attention *each, int64_t count, const int64_t *rows, int64_t start, int64_t n) {
  for (const Attention *a = each; a < each + count; a++) {
    const int64_t item = a->is_bf16 ? sizeof(BFloat16) : sizeof(float), size = a->head * item;
    for (int64_t batch = 0; batch < a->batch; batch++)
      for (int64_t head = 0; head < a->kv_heads; head++) {
        char *k = (char *)a->k + (batch * a->k_batch_step + head * a->k_head_step) * item;
        char *v = (char *)a->v + (batch * a->v_batch_step + head * a->v_head_step) * item;
        for (int64_t i = 0; i < n; i++) {  // rows ascend, so no row is overwritten before it has been moved
          memmove(k + (start + i) * size, k + rows[i] * size, size);
          memmove(v + (start + i) * size, v + rows[i] * size, size);
        }
      }
  }
}
