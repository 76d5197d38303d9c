// Converts quantised blocks of GGUF files to the layout of quantized/weight.py. quantized/gguf/blocks.py reads the same
// blocks in PyTorch, and quantized/gguf/kinds.py lists the kinds. A kind has
//
//   INPUTS, SIZE                    block size in inputs and in bytes
//   BITS, GROUP                     bits and group size of the layout here
//   Scale                           type of the scales and minima, which are copied unchanged
//   MINIMA, FACTORS                 whether there are minima, and float16 factors per block
//   values(block, out)              the block's values, one byte each
//   scales(block, scales, minima)   one number per group
//   SCALE_FACTOR, MIN_FACTOR        offsets of the factors in a block

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace {

constexpr int OUTS = 16, PADDING = 128, CHUNK = 256;  // CHUNK: inputs read at a time
constexpr int LINE = 64;  // bytes of a cache line
constexpr int64_t HUGE_PAGE = 2 << 20;

template <class Word>
Word read(const uint8_t *from) {
  Word found;
  std::memcpy(&found, from, sizeof found);
  return found;
}

typedef uint64_t Words __attribute__((vector_size(16)));

// Expands fields of EACH bits in BYTES bytes to a byte each: for each RUN bytes all lowest fields first, then the next
// ones. If UP is not 0, they are placed above the lowest UP bits of the values already there.
template <int EACH, int RUN, int BYTES, int UP = 0>
void split(const uint8_t *from, uint8_t *out) {
  constexpr uint64_t MASK = ~0ull / 255 * ((1 << EACH) - 1);
  for (int start = 0; start < BYTES; start += RUN)
    for (int shift = 0; shift < 8; shift += EACH, out += RUN)
      for (int i = 0; i < RUN; i += sizeof(Words)) {
        Words words = (read<Words>(from + start + i) >> shift & MASK) << UP;
        if (UP) words |= read<Words>(out + i);
        std::memcpy(out + i, &words, sizeof words);
      }
}

struct Plain {  // float16 scales, one per block of 32
  using Scale = uint16_t;
  static constexpr int INPUTS = 32, GROUP = 32, SCALE_FACTOR = 0, MIN_FACTOR = 0;
  static constexpr bool FACTORS = false;
  static void scales(const uint8_t *block, uint16_t *scales, uint16_t *minima) {
    *scales = read<uint16_t>(block);
    *minima = read<uint16_t>(block + 2);
  }
};

template <int AT, bool HAS_MINIMA>
struct FourBits : Plain {
  static constexpr int SIZE = AT + 16, BITS = 4;
  static constexpr bool MINIMA = HAS_MINIMA;
  static void values(const uint8_t *block, uint8_t *out) { split<4, 16, 16>(block + AT, out); }
};

template <int AT, bool HAS_MINIMA>
struct FiveBits : Plain {
  static constexpr int SIZE = AT + 20, BITS = 8;
  static constexpr bool MINIMA = HAS_MINIMA;
  static void values(const uint8_t *block, uint8_t *out) {
    split<4, 16, 16>(block + AT + 4, out);
    for (int i = 0; i < 4; i++) {  // bit b of a byte becomes 16 in byte b of a word
      const uint64_t bits = block[AT + i] * (~0ull / 255) & 0x8040201008040201ull;
      const uint64_t word = read<uint64_t>(out + 8 * i) | ((bits + ~0ull / 255 * 127) >> 3 & ~0ull / 255 * 16);
      std::memcpy(out + 8 * i, &word, 8);
    }
  }
};

struct Q8_0 : Plain {
  static constexpr int SIZE = 34, BITS = 8;
  static constexpr bool MINIMA = false;
  static void values(const uint8_t *block, uint8_t *out) {
    for (int i = 0; i < 32; i++) out[i] = block[2 + i] ^ 128;
  }
};

struct Mxfp4 : FourBits<1, false> {
  using Scale = uint32_t;  // a float
  static void scales(const uint8_t *block, uint32_t *scales, uint32_t *) {
    const uint32_t exponent = block[0];  // of 2^(exponent - 128), which is subnormal below 2
    *scales = exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23;
  }
};

struct Super {  // int8 scales with float16 factors per block of 256
  using Scale = int8_t;
  static constexpr int INPUTS = 256;
  static constexpr bool FACTORS = true;
};

struct Q2_K : Super {
  static constexpr int SIZE = 84, BITS = 4, GROUP = 16, SCALE_FACTOR = 80, MIN_FACTOR = 82;
  static constexpr bool MINIMA = true;
  static void values(const uint8_t *block, uint8_t *out) { split<2, 32, 64>(block + 16, out); }
  static void scales(const uint8_t *block, int8_t *scales, int8_t *minima) {
    for (int i = 0; i < 16; i++) scales[i] = block[i] & 15, minima[i] = block[i] >> 4;
  }
};

struct Q3_K : Super {
  static constexpr int SIZE = 110, BITS = 4, GROUP = 16, SCALE_FACTOR = 108, MIN_FACTOR = 0;
  static constexpr bool MINIMA = false;
  static void values(const uint8_t *block, uint8_t *out) {
    split<2, 32, 64>(block + 32, out);
    split<1, 32, 32, 2>(block, out);
  }
  static void scales(const uint8_t *block, int8_t *scales, int8_t *) {
    const uint8_t *low = block + 96, *high = block + 104;
    for (int i = 0; i < 16; i++) {
      const int four = low[i & 7] >> (i & 8 ? 4 : 0) & 15, two = high[i & 3] >> 2 * (i >> 2) & 3;
      scales[i] = (int8_t)((four | two << 4) - 32);
    }
  }
};

struct SixBitScales : Super {  // for Q4_K and Q5_K
  static constexpr int GROUP = 32, SCALE_FACTOR = 0, MIN_FACTOR = 2;
  static constexpr bool MINIMA = true;
  static void scales(const uint8_t *block, int8_t *scales, int8_t *minima) {
    constexpr uint32_t BYTES = ~0u / 255;  // four scales or minima at a time
    const auto first = read<uint32_t>(block + 4), second = read<uint32_t>(block + 8), low = read<uint32_t>(block + 12);
    const uint32_t found[4] = {first & BYTES * 63, (low & BYTES * 15) | (first >> 2 & BYTES * 48),
                               second & BYTES * 63, (low >> 4 & BYTES * 15) | (second >> 2 & BYTES * 48)};
    std::memcpy(scales, found, 8);
    std::memcpy(minima, found + 2, 8);
  }
};

struct Q4_K : SixBitScales {
  static constexpr int SIZE = 144, BITS = 4;
  static void values(const uint8_t *block, uint8_t *out) { split<4, 32, 128>(block + 16, out); }
};

struct Q5_K : SixBitScales {
  static constexpr int SIZE = 176, BITS = 8;
  static void values(const uint8_t *block, uint8_t *out) {
    split<4, 32, 128>(block + 48, out);
    split<1, 32, 32, 4>(block + 16, out);
  }
};

struct Q6_K : Super {
  static constexpr int SIZE = 210, BITS = 8, GROUP = 16, SCALE_FACTOR = 208, MIN_FACTOR = 0;
  static constexpr bool MINIMA = false;
  static void values(const uint8_t *block, uint8_t *out) {
    split<4, 64, 128>(block, out);
    split<2, 32, 64, 4>(block + 128, out);
  }
  static void scales(const uint8_t *block, int8_t *scales, int8_t *) { std::memcpy(scales, block + 192, 16); }
};

struct Iq4Xs : Super {
  static constexpr int SIZE = 136, BITS = 4, GROUP = 32, SCALE_FACTOR = 0, MIN_FACTOR = 0;
  static constexpr bool MINIMA = false;
  static void values(const uint8_t *block, uint8_t *out) { split<4, 16, 128>(block + 8, out); }
  static void scales(const uint8_t *block, int8_t *scales, int8_t *) {
    const int high = read<uint16_t>(block + 2);
    for (int i = 0; i < 8; i++)
      scales[i] = (int8_t)((block[4 + i / 2] >> 4 * (i & 1) & 15 | (high >> 2 * i & 3) << 4) - 32);
  }
};

struct Target {
  uint8_t *values;
  void *scales;
  uint16_t *scale_factors;
  void *minima;
  uint16_t *min_factors;
};

typedef uint32_t Four __attribute__((vector_size(16)));

Four read_four(const uint32_t *from) { return read<Four>((const uint8_t *)from); }

// Four inputs of each of 16 rows are 64 bytes in the kernels' order; with 4 bits, two such lines share 64 bytes.
template <int BITS>
void store_values(const uint32_t rows[OUTS][CHUNK / 4], int inputs, uint32_t *out) {
  for (int line = 0; line < inputs * BITS / 32; line += 4)
    for (int row = 0; row < OUTS; row += 4) {
      Four taken[4];
      for (int i = 0; i < 4; i++)
        if constexpr (BITS == 8) {
          taken[i] = read_four(&rows[row + i][line]);
        } else {
          const Four first = read_four(&rows[row + i][2 * line]), second = read_four(&rows[row + i][2 * line + 4]);
          taken[i] = __builtin_shuffle(first, second, Four{0, 2, 4, 6}) |
                     __builtin_shuffle(first, second, Four{1, 3, 5, 7}) << 4;
        }
      const Four low_01 = __builtin_shuffle(taken[0], taken[1], Four{0, 4, 1, 5});
      const Four high_01 = __builtin_shuffle(taken[0], taken[1], Four{2, 6, 3, 7});
      const Four low_23 = __builtin_shuffle(taken[2], taken[3], Four{0, 4, 1, 5});
      const Four high_23 = __builtin_shuffle(taken[2], taken[3], Four{2, 6, 3, 7});
      const Four turned[4] = {
          __builtin_shuffle(low_01, low_23, Four{0, 1, 4, 5}), __builtin_shuffle(low_01, low_23, Four{2, 3, 6, 7}),
          __builtin_shuffle(high_01, high_23, Four{0, 1, 4, 5}), __builtin_shuffle(high_01, high_23, Four{2, 3, 6, 7})};
      for (int i = 0; i < 4; i++) std::memcpy(out + (line + i) * OUTS + row, &turned[i], sizeof(Four));
    }
}

template <class Kind>
void pack_block(const uint8_t *blocks, const int64_t *order, int64_t block, int64_t outs, int64_t k, int64_t padded,
                const Target &to) {
  using Scale = typename Kind::Scale;
  constexpr int PER_BLOCK = Kind::INPUTS / Kind::GROUP, GROUPS = CHUNK / Kind::GROUP;
  alignas(64) uint32_t rows[OUTS][CHUNK / 4];
  alignas(64) Scale scales[OUTS][GROUPS], minima[OUTS][GROUPS];
  const int64_t row_bytes = k / Kind::INPUTS * Kind::SIZE, groups = padded / Kind::GROUP;
  const int64_t chunks = (padded + CHUNK - 1) / CHUNK;
  uint8_t *values = to.values + block * OUTS * padded * Kind::BITS / 8;
  for (int64_t chunk = 0; chunk < chunks; chunk++) {
    const int64_t start = chunk * CHUNK;
    const int inputs = (int)std::min<int64_t>(CHUNK, k - start), room = (int)std::min<int64_t>(CHUNK, padded - start);
    for (int row = 0; row < OUTS; row++) {
      const int64_t out = block * OUTS + row;
      const bool real = out < outs;
      const int count = real ? inputs / Kind::INPUTS : 0;
      const uint8_t *from = real ? blocks + (order ? order[out] : out) * row_bytes + start / Kind::INPUTS * Kind::SIZE
                                 : nullptr;
      for (int i = 0; i < count * Kind::SIZE; i += LINE)  // 16 short streams are too many for the hardware prefetcher
        __builtin_prefetch(from + OUTS * row_bytes + i);
      for (int i = 0; i < count; i++) {
        Kind::values(from + i * Kind::SIZE, (uint8_t *)rows[row] + i * Kind::INPUTS);
        Kind::scales(from + i * Kind::SIZE, scales[row] + i * PER_BLOCK, minima[row] + i * PER_BLOCK);
      }
      const int done = count * Kind::INPUTS;
      std::memset((uint8_t *)rows[row] + done, 0, CHUNK - done);
      std::fill(scales[row] + done / Kind::GROUP, scales[row] + GROUPS, Scale(0));
      std::fill(minima[row] + done / Kind::GROUP, minima[row] + GROUPS, Scale(0));
      if constexpr (Kind::FACTORS) {
        const int64_t at = (block * chunks + chunk) * OUTS + row;
        to.scale_factors[at] = real ? read<uint16_t>(from + Kind::SCALE_FACTOR) : 0;
        if constexpr (Kind::MINIMA)  // GGUF subtracts minima: flip the sign, a float16's highest bit
          to.min_factors[at] = real ? read<uint16_t>(from + Kind::MIN_FACTOR) ^ 0x8000 : 0;
      }
    }
    store_values<Kind::BITS>(rows, room, (uint32_t *)(values + start * OUTS * Kind::BITS / 8));
    const int64_t first = (block * groups + start / Kind::GROUP) * OUTS;
    for (int group = 0; group < room / Kind::GROUP; group++)
      for (int row = 0; row < OUTS; row++) {
        ((Scale *)to.scales)[first + group * OUTS + row] = scales[row][group];
        if constexpr (Kind::MINIMA) ((Scale *)to.minima)[first + group * OUTS + row] = minima[row][group];
      }
  }
}

// Requests huge pages: fewer page faults now, fewer TLB misses in every pass.
void advise_huge(void *memory, int64_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const uintptr_t start = ((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
  const uintptr_t end = ((uintptr_t)memory + size) / HUGE_PAGE * HUGE_PAGE;
  if (end > start) madvise((void *)start, end - start, MADV_HUGEPAGE);
#endif
}

template <class Kind>
void pack(const uint8_t *blocks, const int64_t *order, int64_t outs, int64_t k, const Target &to, int threads) {
  const int64_t padded = (k + PADDING - 1) / PADDING * PADDING, count = (outs + OUTS - 1) / OUTS;
  const int64_t numbers = count * OUTS * (padded / Kind::GROUP) * (int64_t)sizeof(typename Kind::Scale);
  advise_huge(to.values, count * OUTS * padded * Kind::BITS / 8);
  advise_huge(to.scales, numbers);
  if (Kind::MINIMA) advise_huge(to.minima, numbers);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
  for (int64_t block = 0; block < count; block++) pack_block<Kind>(blocks, order, block, outs, k, padded, to);
}

}  // namespace

// Writes a matrix of a GGUF file, of the kind with this ggml number, to the parts of a `Quantized`; its row n is row
// order[n] of the file, or n if order is null. Returns 0 if the kind has no layout.
extern "C" int pack_gguf_blocks(int kind, const uint8_t *blocks, const int64_t *order, int64_t outs, int64_t k,
                                uint8_t *values, void *scales, void *scale_factors, void *minima, void *min_factors,
                                int threads) {
  const Target to{values, scales, (uint16_t *)scale_factors, minima, (uint16_t *)min_factors};
  switch (kind) {
    case 2: case 20: pack<FourBits<2, false>>(blocks, order, outs, k, to, threads); return 1;  // Q4_0, IQ4_NL
    case 3: pack<FourBits<4, true>>(blocks, order, outs, k, to, threads); return 1;            // Q4_1
    case 6: pack<FiveBits<2, false>>(blocks, order, outs, k, to, threads); return 1;           // Q5_0
    case 7: pack<FiveBits<4, true>>(blocks, order, outs, k, to, threads); return 1;            // Q5_1
    case 8: pack<Q8_0>(blocks, order, outs, k, to, threads); return 1;
    case 10: pack<Q2_K>(blocks, order, outs, k, to, threads); return 1;
    case 11: pack<Q3_K>(blocks, order, outs, k, to, threads); return 1;
    case 12: pack<Q4_K>(blocks, order, outs, k, to, threads); return 1;
    case 13: pack<Q5_K>(blocks, order, outs, k, to, threads); return 1;
    case 14: pack<Q6_K>(blocks, order, outs, k, to, threads); return 1;
    case 23: pack<Iq4Xs>(blocks, order, outs, k, to, threads); return 1;
    case 39: pack<Mxfp4>(blocks, order, outs, k, to, threads); return 1;
    default: return 0;
  }
}
