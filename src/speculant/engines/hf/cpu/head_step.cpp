// A step of a drafting head of the EAGLE family in one call: the projection in front of its layers, the layers, the norm
// behind them and the output projection. A step runs on one to some ten rows, so that PyTorch's forty operations take
// several times as long as reading the weights.
//
// Every row is computed in the same way for any number of rows.

#include <algorithm>

#include "attention.h"
#include "layer.h"

extern "C" void layer(const Layer *l, const void *x, const void *given, const Positions *p, const Attention *a, void *y,
                      int threads);

struct StepLayer {
  Layer layer;
  // RMSNorms of the embedding and of the layer's input, which its attention reads side by side; null where it reads its
  // input alone, after the layer's own norm if there is one.
  const void *embedding_norm, *feature_norm;
  float embedding_eps, feature_eps;
  int normed_residual;  // whether the layer's output is added to the normed input
  void *keys, *values;  // [kv_heads, room, head]
  int64_t head_step;    // numbers between the heads of keys and values
};

struct Step {
  const StepLayer *layers;
  int64_t count, hidden, heads, kv_heads, head, vocabulary;
  Linear fuse, output;     // of the embedding beside the feature; of the logits; a weight may be null for none
  const void *norm;        // RMSNorm before the output projection; null for none
  const void *cos, *sin;   // tables [positions, head]
  float norm_eps;
  int carries_norm, is_bf16;  // whether rows pass on what is normed
};

struct StepRows {
  const void *embeddings;   // [n, hidden], of the tokens
  const void *features;     // [..., hidden]
  const int64_t *places;    // [n], rows of the features; null for one after the other
  const int64_t *positions;  // [n]
  const bool *seen;         // [n, length], which keys each row sees; null for all
  int64_t n, length, wanted;  // length: of keys and values, with the new rows; wanted: how many of the last rows return
  void *passed, *logits;    // [wanted, hidden], what rows pass on; [wanted, vocabulary]
};

template <class T>
static void step(const Step *s, const StepRows *r, int threads) {
  const int64_t n = r->n, d = s->hidden, size = n * d, behind = (n - r->wanted) * d;
  float *x = scratch<3>(7 * size), *embeddings = x + size, *features = embeddings + size;
  float *pairs = features + size, *copy = pairs + 2 * size, *normed = copy + size;
  T *given = (T *)scratch<4>(4 * size), *residual = given + 2 * size, *y = residual + size;
  // 1. What the rows read.
  const float *from = as_floats((const T *)r->embeddings, copy, size);
  std::copy_n(from, size, embeddings);
  for (int64_t i = 0; i < n; i++) {
    const T *feature = (const T *)r->features + (r->places ? r->places[i] : i) * d;
    for (int64_t j = 0; j < d; j++) x[i * d + j] = to_float(feature[j]);
  }
  // 2. The projection in front of the layers.
  const auto join = [&](const float *left, const float *right) {
    for (int64_t i = 0; i < n; i++) {
      std::copy_n(left + i * d, d, pairs + 2 * i * d);
      std::copy_n(right + i * d, d, pairs + (2 * i + 1) * d);
    }
  };
  if (s->fuse.weight) {
    join(embeddings, x);
    project<T>(&s->layers->layer, s->fuse, pairs, x, n, d, 2 * d, threads);
  }
  // 3. The layers, each with the norms in front of its attention.
  for (const StepLayer *l = s->layers; l < s->layers + s->count; l++) {
    const float *read = x, *added = x;
    if (l->feature_norm) {
      rms_norm<T>(embeddings, l->embedding_norm, l->embedding_eps, copy, n, d);
      rms_norm<T>(x, l->feature_norm, l->feature_eps, features, n, d);
      join(copy, features);
      read = pairs;
      if (l->normed_residual) added = features;
    } else if (l->layer.input_norm) {
      rms_norm<T>(x, l->layer.input_norm, l->layer.input_eps, features, n, d);
      read = features;
    }
    for (int64_t i = 0; i < n * l->layer.given; i++) given[i] = convert<T>(read[i]);
    for (int64_t i = 0; i < size; i++) residual[i] = convert<T>(added[i]);
    Layer inner = l->layer;
    inner.input_norm = nullptr;  // done
    const Positions positions{s->cos, s->sin, 1, r->positions};
    const Attention attention{nullptr, l->keys, l->values, r->seen, nullptr, 1, s->heads, s->kv_heads, n, r->length,
                              s->head, 0, l->head_step, 0, l->head_step, 0, r->seen ? r->length : 0,
                              1 / std::sqrt((float)s->head), s->is_bf16};
    layer(&inner, residual, given, &positions, &attention, y, threads);
    for (int64_t i = 0; i < size; i++) x[i] = to_float(y[i]);
  }
  // 4. What rows pass on, and the logits after them.
  const float *last = x + behind, *projected = last;
  const int64_t kept = r->wanted * d;
  if (s->norm) rms_norm<T>(last, s->norm, s->norm_eps, normed, r->wanted, d), projected = normed;
  const float *carried = s->carries_norm ? projected : last;
  for (int64_t i = 0; i < kept; i++) ((T *)r->passed)[i] = convert<T>(carried[i]);
  if (!s->output.weight) return;
  const int64_t outputs = r->wanted * s->vocabulary;
  float *logits = std::is_same_v<T, float> ? (float *)r->logits : scratch<5>(outputs);
  project<T>(&s->layers->layer, s->output, projected, logits, r->wanted, s->vocabulary, d, threads);
  if (logits != r->logits)
    for (int64_t i = 0; i < outputs; i++) ((T *)r->logits)[i] = convert<T>(logits[i]);
}

extern "C" void head_step(const Step *s, const StepRows *r, int threads) {
  s->is_bf16 ? step<BFloat16>(s, r, threads) : step<float>(s, r, threads);
}
