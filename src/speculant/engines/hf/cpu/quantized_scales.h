// Scales and minima as floats.

#pragma once

#include "quantized.h"
#include "quantized_vectors.h"

struct Numbers {
  const void *numbers, *factors;
  int kind;
  int64_t step;  // bytes of scales per step of inputs
};

static inline Numbers scales_of(const Quantized &w) { return {w.scales, w.scale_factors, w.scale_kind, 0}; }
static inline Numbers minima_of(const Quantized &w) { return {w.minima, w.min_factors, w.min_kind, 0}; }

static inline float from_half(uint16_t half) {
#if defined(__F16C__)
  return _cvtsh_ss(half);
#else
  const uint32_t sign = (uint32_t)(half >> 15) << 31, exponent = half >> 10 & 31, fraction = half & 1023;
  if (!exponent) return (sign ? -1 : 1) * std::ldexp((float)fraction, -24);
  const uint32_t bits = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
#endif
}

static inline Floats from_halves(const uint16_t *halves) {
#if defined(QUANTIZED_AVX512)
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)halves));
#elif defined(QUANTIZED_AVX2)
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)halves));
#else
  Floats found;
  for (int i = 0; i < LANES; i++) found[i] = from_half(halves[i]);
  return found;
#endif
}

static inline Floats from_bytes(const int8_t *bytes) {
#if defined(QUANTIZED_AVX512)
  return to_floats((Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)bytes)));
#elif defined(QUANTIZED_AVX2)
  return to_floats((Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)bytes)));
#else
  Floats found;
  for (int i = 0; i < LANES; i++) found[i] = bytes[i];
  return found;
#endif
}

// LANES of them; `at`: their place among the numbers, `factor_at` among the factors.
static inline Floats read_numbers(const Numbers &n, int64_t at, int64_t factor_at) {
  if (n.kind == 1) return from_halves((const uint16_t *)n.numbers + at);
  if (n.kind == 0) return *(const Floats *)((const float *)n.numbers + at);
  return from_bytes((const int8_t *)n.numbers + at) * from_halves((const uint16_t *)n.factors + factor_at);
}
