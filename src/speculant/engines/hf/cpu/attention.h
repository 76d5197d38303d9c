// What an attention works on.

#pragma once

#include <cstdint>

struct Attention {
  void *q, *k, *v;   // q[batch, heads, n, head]; k and v the same with `length` rows each, the draft's rows the last
  const bool *mask;  // what each row sees, [n, length], or null for everything
  void *y;           // [batch, n, heads, head]
  int64_t batch, heads, kv_heads, n, length, head, k_batch_step, k_head_step, v_batch_step, v_head_step,
      mask_batch_step, mask_step;
  float scale;
  int narrow;  // whether q, k, v and y are bfloat16, otherwise float
};

extern "C" void attention(const Attention *a, int threads);
