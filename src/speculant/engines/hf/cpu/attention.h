// Arguments of an attention call.

#pragma once

#include <cstdint>

struct Attention {
  void *q, *k, *v;   // q[batch, heads, n, head]; k, v[batch, kv_heads, length, head], the last n rows are new
  const bool *mask;  // [batch or 1, n, length], true where a row attends to a key; null for all keys, or `causal`
  void *y;           // [batch, n, heads, head]
  int64_t batch, heads, kv_heads, n, length, head, k_batch_step, k_head_step, v_batch_step, v_head_step,
      mask_batch_step, mask_step;
  float scale;
  int is_bf16;  // whether q, k, v and y are bfloat16; otherwise they are float
  int causal;   // whether a row attends only to the keys up to its own
};

// Attention of one sequence, or of several, each to its own cache; all of one dtype.
extern "C" void attention(const Attention *each, int64_t count, int threads);

// Moves the ascending `rows` of keys and values to the rows from `start` on, in each of `count` caches.
extern "C" void move_rows(const Attention *each, int64_t count, const int64_t *rows, int64_t start, int64_t n);
