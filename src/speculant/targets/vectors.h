// What all of the compiled code means by a vector: as many floats as the processor takes at once.

#pragma once

#include <cstdint>

#if defined(__AVX__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
constexpr int WIDTH = 16;
#elif defined(__AVX__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif

typedef float Vector __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));
typedef int32_t Integers __attribute__((vector_size(WIDTH * 4)));

// e^x by 2^n and a polynomial (Cephes' expf, 2 units in the last place).
static inline Vector exponential(Vector x) {
  const Vector low = Vector{} - 87, high = Vector{} + 88;
  x = x < low ? low : x > high ? high : x;
  const Vector shifted = x * 1.44269504f + 12582912.f, n = shifted - 12582912.f;  // n: the last bits of the sum
  const Vector r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1;
  return p * (Vector)(((Integers)shifted - 0x4B400000 + 127) << 23);
}
