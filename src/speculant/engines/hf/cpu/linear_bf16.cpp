// Products of bfloat16 rows and weights with AVX512-BF16 instructions, which multiply pairs and add them in float.
//
// If the compiler's target lacks these instructions, this file is empty.

#include "tiles.h"

#if defined(__AVX512BF16__) || defined(SPECULANT_EMULATE_BF16)
extern "C" int has_linear_bf16() { return 1; }
extern "C" void linear_bf16(const void *x, const void *weights, float *y, int64_t n, int64_t outs, int64_t k,
                            int threads) {
  product((const BFloat16 *)x, (const BFloat16 *)weights, y, n, outs, k, threads);
}
#else
extern "C" int has_linear_bf16() { return 0; }
extern "C" void linear_bf16(const void *, const void *, float *, int64_t, int64_t, int64_t, int) {}
#endif
