// Vectors of outputs, and the dot products of bytes that this processor is compiled for.
//
// A block of 16 outputs is PARTS vectors of LANES outputs. Four inputs of an output are the four bytes of a lane.
//
// | instructions | LANES | dot product of four bytes |
// |---|---|---|
// | AVX512-VNNI | 16 | vpdpbusd, unsigned weights |
// | AVX-VNNI, or SPECULANT_WIDTH=8 | 8 | the same |
// | AVX2 | 8 | maddubs and madd: 8 bits as magnitude and signed activations, 4 bits as they are |
// | others | 4 | multiplications of 32 bits, by the compiler's vectors |

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && !defined(SPECULANT_WIDTH)
#define QUANTIZED_AVX512
#else
#define QUANTIZED_AVX2
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#define QUANTIZED_VNNI
#endif
#endif
#endif

#if defined(QUANTIZED_AVX512)
constexpr int LANES = 16;
#elif defined(QUANTIZED_AVX2)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
constexpr int PARTS = 16 / LANES;

typedef float Floats __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

static inline Floats spread(float x) { return x - Floats{}; }
static inline Ints spread(int32_t x) { return x + Ints{}; }
static inline int32_t four(const int8_t *q) {
  int32_t bytes;
  std::memcpy(&bytes, q, 4);
  return bytes;
}

static inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(QUANTIZED_AVX512)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(QUANTIZED_AVX2)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  for (int i = 0; i < LANES; i++) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
#endif
}

static inline Floats to_floats(Ints x) {
#if defined(QUANTIZED_AVX512)
  return (Floats)_mm512_cvtepi32_ps((__m512i)x);
#elif defined(QUANTIZED_AVX2)
  return (Floats)_mm256_cvtepi32_ps((__m256i)x);
#else
  return __builtin_convertvector(x, Floats);
#endif
}

// What values are: bytes, halves of bytes, or halves of bytes that a table translates.
enum Format { BYTES, NIBBLES, TABLE };

// The table of 16 bytes in every 128 bits.
static inline Words load_table(const uint8_t *table) {
  Words words{};
  if (table)
    for (int i = 0; i < LANES * 4; i++) ((uint8_t *)&words)[i] = table[i % 16];
  return words;
}

static inline Words translate(Words table, Words halves) {
#if defined(QUANTIZED_AVX512)
  return (Words)_mm512_shuffle_epi8((__m512i)table, (__m512i)halves);
#elif defined(QUANTIZED_AVX2)
  return (Words)_mm256_shuffle_epi8((__m256i)table, (__m256i)halves);
#else
  Words found;
  for (int i = 0; i < LANES * 4; i++) ((uint8_t *)&found)[i] = ((const uint8_t *)&table)[((const uint8_t *)&halves)[i]];
  return found;
#endif
}

// The values of four inputs, unsigned: number `quad` of a step.
template <Format FORMAT>
static inline Words load_values(const uint8_t *values, int quad, Words table) {
  if constexpr (FORMAT == BYTES) return *(const Words *)(values + quad * 64);
  const Words both = *(const Words *)(values + quad / 2 * 64);
  const Words halves = (quad % 2 ? both >> 4 : both) & 0x0F0F0F0F;
  return FORMAT == TABLE ? translate(table, halves) : halves;
}

// An integer sum of products, plus `start`. Values are multiplied as u - CENTRE<FORMAT>, so that they fit the instruction.
#if defined(QUANTIZED_AVX512) || defined(QUANTIZED_VNNI)

template <Format>
constexpr int CENTRE = 0;

template <Format>
struct Weights {
  Words u;
  explicit Weights(Words values) : u(values) {}
};

template <Format FORMAT>
struct Sum {
  Ints sum;
  void begin(int32_t start) { sum = spread(start); }
  void add(const Weights<FORMAT> &w, const int8_t *q) {
#if defined(QUANTIZED_AVX512)
    sum = (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w.u, (__m512i)spread(four(q)));
#elif defined(__AVXVNNI__)
    sum = (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w.u, (__m256i)spread(four(q)));
#else
    sum = (Ints)_mm256_dpbusd_epi32((__m256i)sum, (__m256i)w.u, (__m256i)spread(four(q)));
#endif
  }
  Ints total(int32_t) const { return sum; }
};

#elif defined(QUANTIZED_AVX2)

template <Format FORMAT>
constexpr int CENTRE = FORMAT == NIBBLES ? 0 : 128;

// Bytes as magnitudes up to 128; the sign goes to the activations, whose magnitude is up to 127, so that the sum of two
// products fits 16 bits.
template <Format>
struct Weights {
  __m256i centred, magnitude;
  explicit Weights(Words u) : centred((__m256i)(u ^ 0x80808080)), magnitude(_mm256_abs_epi8(centred)) {}
};

template <Format FORMAT>
struct Sum {
  Ints sum;
  void begin(int32_t start) { sum = spread(start); }
  void add(const Weights<FORMAT> &w, const int8_t *q) {
    const __m256i pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8((__m256i)spread(four(q)), w.centred));
    sum += (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  Ints total(int32_t) const { return sum; }
};

// Halves of bytes: the sum of 16 products, 15 * 127 each, fits 16 bits.
template <>
struct Weights<NIBBLES> {
  __m256i u;
  explicit Weights(Words values) : u((__m256i)values) {}
};

template <>
struct Sum<NIBBLES> {
  __m256i pairs;
  void begin(int32_t) { pairs = _mm256_setzero_si256(); }
  void add(const Weights<NIBBLES> &w, const int8_t *q) {
    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w.u, (__m256i)spread(four(q))));
  }
  Ints total(int32_t start) const { return (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)) + spread(start); }
};

#else

template <Format>
constexpr int CENTRE = 0;

template <Format>
struct Weights {
  Ints bytes[4];
  explicit Weights(Words u) {
    for (int i = 0; i < 4; i++) bytes[i] = (Ints)(u >> 8 * i & 255);
  }
};

template <Format FORMAT>
struct Sum {
  Ints sum;
  void begin(int32_t start) { sum = spread(start); }
  void add(const Weights<FORMAT> &w, const int8_t *q) {
    for (int i = 0; i < 4; i++) sum += w.bytes[i] * q[i];
  }
  Ints total(int32_t) const { return sum; }
};

#endif
