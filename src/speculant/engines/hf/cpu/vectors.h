// Vectors of as many floats as the processor multiplies at once, and bfloat16.
//
// bfloat16 values are computed with as floats; `rounded` marks where the model's own operations would have rounded to
// bfloat16.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX__)
#include <immintrin.h>
#endif
#if defined(SPECULANT_WIDTH)  // tests build code for vector widths that their processor lacks
constexpr int WIDTH = SPECULANT_WIDTH;
#elif defined(__AVX512F__)
constexpr int WIDTH = 16;
#elif defined(__AVX__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif

typedef float Vector __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));
typedef int32_t Integers __attribute__((vector_size(WIDTH * 4)));
typedef uint32_t Bits __attribute__((vector_size(WIDTH * 4)));
typedef uint32_t Pairs __attribute__((vector_size(WIDTH * 4), aligned(2), may_alias));  // of bfloat16
typedef uint16_t Halves __attribute__((vector_size(WIDTH * 2), aligned(2), may_alias));

// bfloat16: the upper half of a float.
struct BFloat16 {
  uint16_t bits;
};

static inline float to_float(float x) { return x; }
static inline float to_float(BFloat16 x) {
  const uint32_t bits = (uint32_t)x.bits << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
static inline Vector to_float(const float *x) { return *(const Vector *)x; }
static inline Vector to_float(const BFloat16 *x) {
#if defined(__AVX512F__)  // GCC would convert the two halves of a vector separately
  return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x)), 16);
#elif defined(__AVX2__)
  return (Vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x)), 16);
#else
  return (Vector)(__builtin_convertvector(*(const Halves *)x, Bits) << 16);
#endif
}

// x rounded to the nearest value of type T, ties to even. NaNs that arise here have an empty lower half, so they remain
// NaN.
template <class T>
static inline float rounded(float x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
    std::memcpy(&x, &bits, 4);
  }
  return x;
}
template <class T>
static inline Vector rounded(Vector x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const Bits bits = (Bits)x;
    x = (Vector)((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000);
  }
  return x;
}
template <class T>
static inline T convert(float x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    x = rounded<T>(x);
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return {(uint16_t)(bits >> 16)};
  } else {
    return x;
  }
}

// Returns x as floats: x itself, or its conversion in `to`.
static inline const float *as_floats(const float *x, float *, int64_t) { return x; }
static inline const float *as_floats(const BFloat16 *x, float *to, int64_t count) {
  int64_t i = 0;
  for (; i + WIDTH <= count; i += WIDTH) *(Vector *)(to + i) = to_float(x + i);
  for (; i < count; i++) to[i] = to_float(x[i]);
  return to;
}

// e^x as 2^n times a polynomial (expf of the Cephes library, accurate to 2 units in the last place).
static inline Vector exponential(Vector x) {
  const Vector low = Vector{} - 87, high = Vector{} + 88;
  x = x < low ? low : x > high ? high : x;
  const Vector shifted = x * 1.44269504f + 12582912.f, n = shifted - 12582912.f;  // the last bits of `shifted` hold n
  const Vector r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1;
  return p * (Vector)(((Integers)shifted - 0x4B400000 + 127) << 23);
}
