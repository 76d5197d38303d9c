// A checksum of memory, to detect changes of weights that have packed copies.

#include <cstdint>
#include <cstring>

constexpr int LANES = 32;
constexpr int64_t PART = 1 << 20;  // bytes summed by one thread at a time

static uint64_t checksum_part(const char *data, int64_t size) {
  uint32_t sums[LANES] = {};
  int64_t i = 0;
  for (; i + LANES * 4 <= size; i += LANES * 4) {
    uint32_t words[LANES];
    std::memcpy(words, data + i, sizeof words);
#pragma omp simd
    for (int j = 0; j < LANES; j++) sums[j] = sums[j] * 2654435761u + words[j];
  }
  uint64_t sum = 0;
  for (; i < size; i++) sum = sum * 1099511628211u + (unsigned char)data[i];
  for (int j = 0; j < LANES; j++) sum = sum * 6364136223846793005u + sums[j];
  return sum;
}

extern "C" uint64_t checksum(const void *data, int64_t size, int threads) {
  const int64_t parts = (size + PART - 1) / PART;
  uint64_t sum = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sum)
  for (int64_t part = 0; part < parts; part++) {
    const int64_t from = part * PART, count = size - from < PART ? size - from : PART;
    sum += (uint64_t)(2 * part + 1) * checksum_part((const char *)data + from, count);
  }
  return sum;
}
