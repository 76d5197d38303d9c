// A step of an EAGLE drafting head in one call: the projection before its layers, the layers, the norm after them and
// the output projection. A step runs on one to about ten rows of a text, so PyTorch's forty operations take several
// times as long as reading the weights. Rows of several texts share the products but attend separately.
//
// Each row's result is the same for any number of rows.

#include "head_step.h"

#include <algorithm>
#include <utility>

#include "attention.h"

extern "C" void after_attention(const Layer *l, const void *x, const void *attended, void *y, int64_t rows,
                                int64_t width, int threads);

template <class T>
static void step(const Step *s, const Text *texts, int64_t count, const void *given, void *output, int threads) {
  const Text *end = texts + count;
  const Layer *any = &s->layers->layer;
  int64_t n = 0, wanted = 0;
  for (const Text *t = texts; t < end; t++) n += t->n, wanted += t->wanted;
  const int64_t d = s->hidden, size = n * d, width = s->heads * s->head;
  float *x = scratch<3>(7 * size + n * width), *embeddings = x + size, *features = embeddings + size;
  float *pairs = features + size, *copy = pairs + 2 * size, *normed = copy + size, *projected = normed + size;
  T *residual = (T *)scratch<4>(2 * size + 2 * n * width), *y = residual + size;
  T *queries = y + size, *attended = queries + n * width;
  const auto join = [&](const float *left, const float *right) {
    for (int64_t i = 0; i < n; i++) {
      std::copy_n(left + i * d, d, pairs + 2 * i * d);
      std::copy_n(right + i * d, d, pairs + (2 * i + 1) * d);
    }
  };
  // 1. The inputs of the rows.
  std::copy_n(as_floats((const T *)given, copy, size), size, embeddings);
  float *to = x;
  for (const Text *t = texts; t < end; t++)
    for (int64_t i = 0; i < t->n; i++, to += d) {
      const T *feature = (const T *)t->features + (t->places ? t->places[i] : i) * d;
      for (int64_t j = 0; j < d; j++) to[j] = to_float(feature[j]);
    }
  // 2. The projection before the layers.
  if (s->exit) {
    std::copy_n(embeddings, size, x);
  } else if (s->fuse.weight) {
    const float *left = embeddings, *right = x;
    if (s->embedding_norm) {
      rms_norm<T>(embeddings, s->embedding_norm, s->embedding_eps, copy, n, d);
      rms_norm<T>(x, s->feature_norm, s->feature_eps, features, n, d);
      left = copy, right = features;
    }
    if (s->feature_first) std::swap(left, right);
    join(left, right);
    project<T>(any, s->fuse, pairs, x, n, d, 2 * d, threads);
  }
  for (int64_t index = 0; index < s->count; index++) {
    const StepLayer &l = s->layers[index];
    const float *read = x, *added = x;
    // 3. The norms before a layer's attention.
    if (l.feature_norm) {
      rms_norm<T>(embeddings, l.embedding_norm, l.embedding_eps, copy, n, d);
      rms_norm<T>(x, l.feature_norm, l.feature_eps, features, n, d);
      join(copy, features);
      read = pairs;
      if (l.normed_residual) added = features;
    } else if (l.layer.input_norm) {
      rms_norm<T>(x, l.layer.input_norm, l.layer.input_eps, features, n, d);
      read = features;
    }
    for (int64_t i = 0; i < size; i++) residual[i] = convert<T>(added[i]);
    // 4. Queries, keys and values of all rows, each written to its text's place.
    const auto write = [&](const Linear &linear, int64_t heads, const void *norm, float eps, bool rotate, auto &&place) {
      project<T>(any, linear, read, projected, n, heads * s->head, l.layer.given, threads);
      const float *from = projected;
      for (const Text *t = texts; t < end; from += t->n * heads * s->head, t++) {
        const Positions positions{s->cos, s->sin, 1, t->positions};
        const auto [written, step] = place(*t);
        write_heads<T>(from, written, 0, step, norm, eps, rotate ? &positions : nullptr, 0, t->n, t->n, heads, s->head);
      }
    };
    const auto behind = [&](const Text &t, void *rows) { return (void *)((T *)rows + (t.length - t.n) * s->head); };
    T *next = queries;
    write(l.layer.q, s->heads, l.layer.q_norm, l.layer.q_eps, true, [&](const Text &t) {
      T *own = next;
      next += t.n * width;
      return std::pair<void *, int64_t>(own, t.n * s->head);
    });
    write(l.layer.k, s->kv_heads, l.layer.k_norm, l.layer.k_eps, true, [&](const Text &t) {
      return std::pair<void *, int64_t>(behind(t, t.held[index].keys), t.held[index].step);
    });
    write(l.layer.v, s->kv_heads, nullptr, 0, false, [&](const Text &t) {
      return std::pair<void *, int64_t>(behind(t, t.held[index].values), t.held[index].step);
    });
    // 5. The attention of each text, and the rest of the layer.
    int64_t row = 0;
    for (const Text *t = texts; t < end; row += t->n, t++) {
      const Held &held = t->held[index];
      const Attention a{queries + row * width, held.keys, held.values, t->seen, attended + row * width, 1, s->heads,
                        s->kv_heads, t->n, t->length, s->head, 0, held.step, 0, held.step, 0, t->seen ? t->length : 0,
                        1 / std::sqrt((float)s->head), s->is_bf16};
      attention(&a, 1, threads);
    }
    if (l.layer.inner) {
      after_attention(&l.layer, residual, attended, y, n, width, threads);
      for (int64_t i = 0; i < size; i++) x[i] = to_float(y[i]);
    } else {  // without an MLP
      project<T>(any, l.layer.o, as_floats(attended, projected, n * width), features, n, d, width, threads);
      for (int64_t i = 0; i < size; i++) x[i] = rounded<T>(to_float(residual[i]) + features[i]);
    }
    if (index + 1 != s->exit) continue;
    const float *from = x;
    for (const Text *t = texts; t < end; from += t->n * d, t++)
      for (int64_t i = 0; t->exits && i < t->n * d; i++) ((T *)t->exits)[i] = convert<T>(from[i]);
  }
  if (!wanted) return;
  // 6. The states that the last rows of each text pass on, and the logits after them.
  float *last = copy;
  const float *from = x;
  for (const Text *t = texts; t < end; from += t->n * d, last += t->wanted * d, t++)
    std::copy_n(from + (t->n - t->wanted) * d, t->wanted * d, last);
  const float *read = copy;
  if (s->norm) rms_norm<T>(copy, s->norm, s->norm_eps, normed, wanted, d), read = normed;
  from = s->carries_norm ? read : copy;
  for (const Text *t = texts; t < end; from += t->wanted * d, t++)
    for (int64_t i = 0; i < t->wanted * d; i++) ((T *)t->passed)[i] = convert<T>(from[i]);
  const int64_t outputs = wanted * s->vocabulary;
  float *logits = std::is_same_v<T, float> ? (float *)output : scratch<5>(outputs);
  project<T>(any, s->output, read, logits, wanted, s->vocabulary, d, threads);
  if (logits != output)
    for (int64_t i = 0; i < outputs; i++) ((T *)output)[i] = convert<T>(logits[i]);
}

extern "C" void head_step(const Step *s, const Text *texts, int64_t count, const void *embeddings, void *logits,
                          int threads) {
  s->is_bf16 ? step<BFloat16>(s, texts, count, embeddings, logits, threads)
             : step<float>(s, texts, count, embeddings, logits, threads);
}
