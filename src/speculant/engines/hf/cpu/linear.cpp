// Products of float rows with float or bfloat16 weights; the latter are converted as they are read.

#include "tiles.h"

extern "C" void linear(const float *x, const void *weights, float *y, int64_t n, int64_t outs, int64_t k, int is_bf16,
                       int threads) {
  if (is_bf16) product(x, (const BFloat16 *)weights, y, n, outs, k, threads);
  else product(x, (const float *)weights, y, n, outs, k, threads);
}

// Maximum rows for which this is known to beat PyTorch's product without measurements.
extern "C" int max_rows(int is_bf16) { return WIDTH == 16 || (WIDTH == 8 && is_bf16) ? 96 : WIDTH == 8 ? 256 : 4; }
