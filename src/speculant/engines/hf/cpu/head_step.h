// Arguments of a step of a drafting head.

#pragma once

#include "layer.h"

struct StepLayer {
  Layer layer;
  // RMSNorms of the embedding and of the layer's input, which the attention reads concatenated; null if it reads only
  // its input, after the layer's own norm if there is one.
  const void *embedding_norm, *feature_norm;
  float embedding_eps, feature_eps;
  int normed_residual;  // whether the layer's output is added to the normed input
};

struct Step {
  const StepLayer *layers;
  int64_t count, hidden, heads, kv_heads, head, vocabulary;
  Linear fuse, output;    // of embedding and feature concatenated; of the logits; null weight: none
  const void *norm;       // RMSNorm before the output projection; null for none
  const void *cos, *sin;  // tables [positions, head]
  // RMSNorms of the embedding and of the feature before they are projected together; null for none.
  const void *embedding_norm, *feature_norm;
  float norm_eps, embedding_eps, feature_eps;
  int feature_first;          // whether that projection reads the feature before the embedding
  int carries_norm, is_bf16;  // carries_norm: whether rows pass on normed states
  int64_t exit;  // number of leading layers that are the target's and read only embeddings; 0 for none
};

struct Held {
  void *keys, *values;  // of one layer, [kv_heads, room, head]
  int64_t step;         // elements between two heads
};

struct Text {
  const void *features;      // [..., hidden]
  const int64_t *places;     // [n], feature rows; null for consecutive rows
  const int64_t *positions;  // [n]
  const bool *seen;          // [n, length], which keys each row sees; null for all
  const Held *held;          // by layer
  void *passed;              // [wanted, hidden], states that the last rows pass on
  int64_t n, length, wanted;  // length: number of keys and values, including the new rows
  void *exits;                // [n, hidden], output of the leading layers; null if not requested
};

// Runs the rows of several texts, given the embeddings [n, hidden] of all of them; returns logits [wanted, vocabulary].
extern "C" void head_step(const Step *s, const Text *texts, int64_t count, const void *embeddings, void *logits,
                          int threads);
