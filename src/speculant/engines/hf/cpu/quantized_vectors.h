// Vectors of outputs, and the byte dot products of the processor that this is compiled for.
//
// A block of 16 outputs is PARTS vectors of LANES outputs. Four inputs of an output are the four bytes of a lane.
//
// | instructions | LANES | dot product of four bytes |
// |---|---|---|
// | AVX512-VNNI | 16 | vpdpbusd, unsigned weights |
// | AVX-VNNI, or SPECULANT_WIDTH=8 | 8 | the same |
// | AVX2 | 8 | maddubs: half-bytes and bytes below 64 with 16-bit additions, other bytes as signs and magnitudes |
// | others | 4 | 32-bit multiplications, with generic compiler vectors |

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

// Formats of values: bytes, bytes of 6 bits, half-bytes, or half-bytes translated by a table.
enum Format { BYTES, SIX_BITS, NIBBLES, TABLE };
constexpr bool in_bytes(Format format) { return format == BYTES || format == SIX_BITS; }

// The table of 16 bytes in each 128-bit lane.
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

// The values of four inputs, unsigned: number `quads` of a step, which is even, or the `odd` one after it.
template <Format FORMAT>
static inline Words load_values(const uint8_t *values, int quads, int odd, Words table) {
  if constexpr (in_bytes(FORMAT)) return *(const Words *)(values + (quads + odd) * 64);
  const Words both = *(const Words *)(values + quads * 32);
  const Words halves = (odd ? both >> 4 : both) & 0x0F0F0F0F;
  return FORMAT == TABLE ? translate(table, halves) : halves;
}

// Subtracted from bytes, and from values of a table, before they are multiplied; the largest bytes of 6 bits, which are
// not multiplied as other bytes are.
#if defined(QUANTIZED_AVX2) && !defined(QUANTIZED_VNNI)
constexpr int CENTRE = 128, SIX_BITS_LARGEST = 63;
#else
constexpr int CENTRE = 0, SIX_BITS_LARGEST = -1;
#endif

// The number of quads that a product takes.
template <Format FORMAT>
constexpr int TAKEN = FORMAT == SIX_BITS ? 2 : 1;

// An integer sum of products of values, unsigned or minus CENTRE, plus `start`.
#if defined(QUANTIZED_AVX512) || defined(QUANTIZED_VNNI)

template <Format>
struct Weights {
  Words u;
  Weights() = default;
  explicit Weights(Words values) : u(values) {}
};

template <Format FORMAT>
struct Sum {
  Ints sum;
  void begin(int32_t start) { sum = spread(start); }
  void add(const Weights<FORMAT> *w, const int8_t *q) {
#if defined(QUANTIZED_AVX512)
    sum = (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w->u, (__m512i)spread(four(q)));
#elif defined(__AVXVNNI__)
    sum = (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w->u, (__m256i)spread(four(q)));
#else
    sum = (Ints)_mm256_dpbusd_epi32((__m256i)sum, (__m256i)w->u, (__m256i)spread(four(q)));
#endif
  }
  Ints total(int32_t) const { return sum; }
};

#elif defined(QUANTIZED_AVX2)

// Forms a sum now: the compiler would otherwise wait for all products, which do not fit the registers.
static inline void settle(__m256i &sum) { asm("" : "+x"(sum)); }

// Two products each of unsigned weights with activations, 16 bits.
static inline __m256i multiply_pairs(__m256i w, const int8_t *q) {
  return _mm256_maddubs_epi16(w, (__m256i)spread(four(q)));
}
static inline __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

// Bytes, minus 128. Two products of magnitudes with activations are at most 2 * 128 * 127, which fits 16 bits.
template <Format>
struct Weights {
  __m256i w, magnitude;
  Weights() = default;
  explicit Weights(Words u) : w(_mm256_xor_si256((__m256i)u, _mm256_set1_epi8(-128))), magnitude(_mm256_abs_epi8(w)) {}
};

template <Format FORMAT>
struct Sum {
  __m256i sum;
  void begin(int32_t start) { sum = (__m256i)spread(start); }
  void add(const Weights<FORMAT> *w, const int8_t *q) {
    const __m256i signs = _mm256_sign_epi8((__m256i)spread(four(q)), w->w);
    sum = _mm256_add_epi32(sum, widen(_mm256_maddubs_epi16(w->magnitude, signs)));
    settle(sum);
  }
  Ints total(int32_t) const { return (Ints)sum; }
};

// Bytes of 6 bits: four products with activations, at most 4 * 63 * 127, fit 16 bits.
template <>
struct Weights<SIX_BITS> {
  __m256i u;
  Weights() = default;
  explicit Weights(Words values) : u((__m256i)values) {}
};

template <>
struct Sum<SIX_BITS> {
  __m256i sum;
  void begin(int32_t start) { sum = (__m256i)spread(start); }
  void add(const Weights<SIX_BITS> *w, const int8_t *q) {
    const __m256i pairs = _mm256_add_epi16(multiply_pairs(w[0].u, q), multiply_pairs(w[1].u, q + 4));
    sum = _mm256_add_epi32(sum, widen(pairs));
    settle(sum);
  }
  Ints total(int32_t) const { return (Ints)sum; }
};

// Half-bytes: 16 products with activations, at most 16 * 15 * 127, fit 16 bits.
template <>
struct Weights<NIBBLES> : Weights<SIX_BITS> {
  using Weights<SIX_BITS>::Weights;
};

template <>
struct Sum<NIBBLES> {
  __m256i pairs;
  void begin(int32_t) { pairs = _mm256_setzero_si256(); }
  void add(const Weights<NIBBLES> *w, const int8_t *q) {
    pairs = _mm256_add_epi16(pairs, multiply_pairs(w->u, q));
    settle(pairs);
  }
  Ints total(int32_t start) const { return (Ints)widen(pairs) + spread(start); }
};

#else

template <Format>
struct Weights {
  Ints bytes[4];
  Weights() = default;
  explicit Weights(Words u) {
    for (int i = 0; i < 4; i++) bytes[i] = (Ints)(u >> 8 * i & 255);
  }
};

template <Format FORMAT>
struct Sum {
  Ints sum;
  void begin(int32_t start) { sum = spread(start); }
  void add(const Weights<FORMAT> *w, const int8_t *q) {
    for (int i = 0; i < 4; i++) sum += w->bytes[i] * q[i];
  }
  Ints total(int32_t) const { return sum; }
};

#endif
