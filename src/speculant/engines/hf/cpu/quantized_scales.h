// Scales and minima of a block of 16 outputs as floats, 16 for each step of inputs.

#pragma once

#include "quantized.h"
#include "quantized_vectors.h"

struct Numbers {
  const void *numbers, *factors;
  int kind;
};

static inline Numbers scales_of(const Quantized &w) { return {w.scales, w.scale_factors, w.scale_kind}; }
static inline Numbers minima_of(const Quantized &w) { return {w.minima, w.min_factors, w.min_kind}; }

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

// Returns the numbers of one block, 16 for each step of inputs: where they are, or in `to`.
static const float *read_numbers(const Numbers &n, const Quantized &w, int64_t block, float *to) {
  const int64_t groups = w.padded / w.group, supers = (w.padded + 255) / 256, first = block * groups * 16;
  const int64_t steps = w.group <= 32 ? 1 : w.group / 32;
  if (n.kind == 0 && steps == 1) return (const float *)n.numbers + first;
  for (int64_t g = 0; g < groups; g++)
    for (int part = 0; part < 16; part += LANES) {
      const int64_t at = first + g * 16 + part;
      Floats wide;
      if (n.kind == 0) wide = *(const Floats *)((const float *)n.numbers + at);
      else if (n.kind == 1) wide = from_halves((const uint16_t *)n.numbers + at);
      else
        wide = from_bytes((const int8_t *)n.numbers + at) *
               from_halves((const uint16_t *)n.factors + (block * supers + g * w.group / 256) * 16 + part);
      for (int64_t step = 0; step < steps; step++) *(Floats *)(to + (g * steps + step) * 16 + part) = wide;
    }
  return to;
}
