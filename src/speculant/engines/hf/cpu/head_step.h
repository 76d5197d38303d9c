// The arguments of a step of a drafting head.

#pragma once

#include "layer.h"

struct StepLayer {
  Layer layer;
  // RMSNorms of the embedding and of the layer's input, which its attention reads side by side; null where it reads its
  // input alone, after the layer's own norm if there is one.
  const void *embedding_norm, *feature_norm;
  float embedding_eps, feature_eps;
  int normed_residual;  // whether the layer's output is added to the normed input
};

struct Step {
  const StepLayer *layers;
  int64_t count, hidden, heads, kv_heads, head, vocabulary;
  Linear fuse, output;    // of the embedding beside the feature; of the logits; a weight may be null for none
  const void *norm;       // RMSNorm before the output projection; null for none
  const void *cos, *sin;  // tables [positions, head]
  // RMSNorms of the embedding and of the feature in front of the projection of both; null for none.
  const void *embedding_norm, *feature_norm;
  float norm_eps, embedding_eps, feature_eps;
  int feature_first;          // whether that projection reads the feature before the embedding
  int carries_norm, is_bf16;  // whether rows pass on what is normed
  int64_t exit;  // how many first layers are those of the target, which read embeddings alone; 0 for none
};

struct Held {
  void *keys, *values;  // of a layer, [kv_heads, room, head]
  int64_t step;         // numbers between two heads
};

struct Text {
  const void *features;      // [..., hidden]
  const int64_t *places;     // [n], rows of the features; null for one after the other
  const int64_t *positions;  // [n]
  const bool *seen;          // [n, length], which keys each row sees; null for all
  const Held *held;          // by layer
  void *passed;              // [wanted, hidden], what the last rows pass on
  int64_t n, length, wanted;  // length: of keys and values, with the new rows
  void *exits;                // [n, hidden], what the first layers return; null where it is not wanted
};

// Runs the rows of several texts, given the embeddings [n, hidden] of all of them; logits [wanted, vocabulary].
extern "C" void head_step(const Step *s, const Text *texts, int64_t count, const void *embeddings, void *logits,
                          int threads);
