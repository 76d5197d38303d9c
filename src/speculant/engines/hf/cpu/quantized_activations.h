// Rows of activations in the form that the products read.
//
// Rows are processed in blocks. A block is an array of records, one per 32 inputs, that keep numbers used together next
// to each other, so that one pointer serves all rows.

#pragma once

#include <algorithm>
#include <limits>

#include "quantized_vectors.h"

constexpr int STEP = 32;

// A record of R rows; SUB: number of weight scales for its inputs, 1 or 2.
template <int R, int SUB>
struct Rounded {
  int8_t q[R][STEP];
  float scale[R];
  int32_t start[SUB][R];  // initial integer sums: (what is subtracted from values - offset) * sum of q
  float total[SUB][R];    // scale * sum of q
};
template <int R, int SUB>
struct Kept {
  float x[R][STEP];
  float total[SUB][R];  // sum of x
};

// The record format that a matrix reads; matrices with the same format share records.
struct Form {
  bool keep;
  int sub, offset;
  bool operator==(const Form &other) const { return sub == other.sub && offset == other.offset; }
  int64_t bytes() const { return keep ? 4 * STEP + 4 * sub : STEP + 4 + 8 * sub; }  // of a record per row
};

// The largest magnitude of 32 numbers as bits, which order like magnitudes, with infinities and NaNs last.
static inline uint32_t largest_magnitude(const float *x) {
#if defined(QUANTIZED_AVX512)
  const __m512i low = _mm512_loadu_si512(x), high = _mm512_loadu_si512(x + 16), mask = _mm512_set1_epi32(0x7FFFFFFF);
  return _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_and_si512(low, mask), _mm512_and_si512(high, mask)));
#else
  Words largest{};
  for (int i = 0; i < STEP; i += LANES) {
    const Words bits = *(const Words *)(x + i) & 0x7FFFFFFF;
    largest = largest > bits ? largest : bits;
  }
  uint32_t result = 0;
  for (int i = 0; i < LANES; i++) result = std::max(result, largest[i]);
  return result;
#endif
}

// Writes 32 numbers times `inverse`, rounded to bytes, and the sums of both halves; zeros if `inverse` is 0.
static inline void round_step(const float *x, float inverse, int8_t *q, int32_t *sums) {
  if (inverse == 0) {
    std::memset(q, 0, STEP);
    sums[0] = sums[1] = 0;
    return;
  }
#if defined(QUANTIZED_AVX512)
  for (int half = 0; half < 2; half++) {
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * half), _mm512_set1_ps(inverse)));
    _mm_storeu_si128((__m128i *)(q + 16 * half), _mm512_cvtepi32_epi8(rounded));
  }
#else
  for (int i = 0; i < STEP; i++) {
    const float product = x[i] * inverse;
    q[i] = (int8_t)std::nearbyint(product);
  }
#endif
#if defined(QUANTIZED_AVX512) || defined(QUANTIZED_AVX2)
  for (int half = 0; half < 2; half++) {  // as unsigned bytes offset by 128, which one instruction sums
    const __m128i above = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(q + 16 * half)), _mm_set1_epi8(-128));
    const __m128i eights = _mm_sad_epu8(above, _mm_setzero_si128());
    sums[half] = _mm_cvtsi128_si32(eights) + _mm_extract_epi16(eights, 4) - 16 * 128;
  }
#else
  sums[0] = sums[1] = 0;
  for (int i = 0; i < STEP; i++) sums[i / (STEP / 2)] += q[i];
#endif
}

// Writes the records of `rows` rows of x, [rows, k], in each format. Records have `size` rows; the rest are zeros.
static void round_rows(const float *x, int64_t rows, int64_t size, int64_t k, int64_t padded, const Form *forms,
                       int count, uint8_t *const *to) {
  int8_t q[STEP];
  float last[STEP];
  if (rows < size)
    for (int f = 0; f < count; f++) std::memset(to[f], 0, padded / STEP * size * forms[f].bytes());
  for (int64_t r = 0; r < rows; r++, x += k)
    for (int64_t step = 0; step < padded / STEP; step++) {
      // 1. The inputs, padded with zeros.
      const int64_t left = k - step * STEP;
      const float *from = x + step * STEP;
      if (left < STEP) {
        std::memset(last, 0, sizeof last);
        if (left > 0) std::memcpy(last, from, left * sizeof(float));
        from = last;
      }
      // 2. Their scale and bytes.
      const uint32_t bits = largest_magnitude(from);
      float largest;
      std::memcpy(&largest, &bits, 4);
      const bool finite = bits < 0x7F800000, empty = largest < 0x1p-100f, valid = finite && !empty;
      const float scale = valid ? largest / 127 : empty ? 0 : std::numeric_limits<float>::quiet_NaN();
      int32_t sums[2];
      round_step(from, valid ? 127 / largest : 0, q, sums);
      // 3. The records.
      for (int f = 0; f < count; f++) {
        const int sub = forms[f].sub;
        uint8_t *record = to[f] + step * size * forms[f].bytes();
        std::memcpy(record + r * STEP, q, STEP);
        float *numbers = (float *)(record + size * STEP) + r;
        numbers[0] = scale;
        for (int s = 0; s < sub; s++) {
          const int32_t sum = sub == 2 ? sums[s] : sums[0] + sums[1];
          ((int32_t *)numbers)[(1 + s) * size] = -forms[f].offset * sum;
          numbers[(1 + sub + s) * size] = scale * (float)sum;
        }
      }
    }
}

// The same without rounding.
static void keep_rows(const float *x, int64_t rows, int64_t k, int64_t padded, const Form *forms, int count,
                      uint8_t *const *to) {
  for (int f = 0; f < count; f++)
    for (int64_t step = 0; step < padded / STEP; step++) {
      float *record = (float *)(to[f] + step * rows * forms[f].bytes());
      for (int64_t r = 0; r < rows; r++) {
        float totals[2] = {};
        for (int i = 0; i < STEP; i++) {
          const int64_t at = step * STEP + i;
          const float value = at < k ? x[r * k + at] : 0;
          record[r * STEP + i] = value, totals[forms[f].sub == 2 ? i / (STEP / 2) : 0] += value;
        }
        for (int s = 0; s < forms[f].sub; s++) record[(STEP + s) * rows + r] = totals[s];
      }
    }
}
