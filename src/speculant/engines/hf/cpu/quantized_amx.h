// The product of a block of 16 outputs with 8 to 16 rounded rows by AMX-INT8, where the processor has it.
//
// The weights are in the order of a tile: a row holds four inputs of 16 outputs. A tile of sums holds 16 rows and the
// outputs of a block; it is scaled and added in float after each step, as in quantized_kernel.h.

#pragma once

#include "quantized_kernel.h"

#if defined(__AMX_INT8__)
#include <sys/syscall.h>
#include <unistd.h>

constexpr int TILE_ROWS = 16, LEAST_TILE_ROWS = 8;

// Returns whether this process may use tiles; Linux requires a request.
static bool has_tiles() {
#if defined(SPECULANT_EMULATE_AMX)
  return true;
#else
  constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  static const bool allowed = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
  return allowed;
#endif
}

// Configures the tile shapes while it exists, in two sets: sums 0 and 1, [rows, 16]; activations 2 and 3, [rows,
// bytes]; weights 4 and 5, [bytes / 4, 16, 4].
struct Tiles {
  Tiles(int rows, int sub) {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t columns[16] = {};  // in bytes
      uint8_t rows[16] = {};
    } shapes;
    const int bytes = STEP / sub;
    for (int set = 0; set < 2; set++) {
      shapes.columns[set] = 64, shapes.rows[set] = rows;
      shapes.columns[2 + set] = bytes, shapes.rows[2 + set] = rows;
      shapes.columns[4 + set] = 64, shapes.rows[4 + set] = bytes / 4;
    }
    _tile_loadconfig(&shapes);
  }
  ~Tiles() { _tile_release(); }
};

// The integer sums of a step, or of half of one, [rows, 16]. Compilers require literal tile numbers.
static inline void tile_sums(int set, const int8_t *q, const uint8_t *values, int32_t *sums) {
  if (set == 0) {
    _tile_zero(0);
    _tile_loadd(2, q, STEP);
    _tile_loadd(4, values, 64);
    _tile_dpbsud(0, 2, 4);
    _tile_stored(0, sums, 64);
  } else {
    _tile_zero(1);
    _tile_loadd(3, q, STEP);
    _tile_loadd(5, values, 64);
    _tile_dpbsud(1, 3, 5);
    _tile_stored(1, sums, 64);
  }
}

template <Format FORMAT>
static void multiply_tiles(const Panel &p, int rows, int sub, const uint8_t *record) {
  const int64_t size = rows * (STEP + 4 + 8 * sub);
  const Words table = load_table(p.table);
  const uint8_t *values = p.values;
  Floats sums[TILE_ROWS][PARTS] = {};
  alignas(64) uint8_t bytes[2][STEP * 16];
  alignas(64) int32_t products[2][TILE_ROWS * 16];
  for (int64_t step = 0; step < p.steps; step++, values += BYTES_OF_STEP<FORMAT>, record += size) {
    fetch_ahead<TILE_ROWS, FORMAT>(p, values, step);
    // 1. The weights as bytes.
    const uint8_t *wide = values;
    if (!in_bytes(FORMAT)) {
      wide = bytes[step % 2];
      for (int quad = 0; quad < STEP / 4; quad++)
        for (int part = 0; part < PARTS; part++)
          *(Words *)(bytes[step % 2] + quad * 64 + part * LANES * 4) =
              load_values<FORMAT>(values + part * LANES * 4, quad & ~1, quad % 2, table);
    }
    const float *scale = (const float *)(record + rows * STEP), *total = scale + rows * (1 + sub);
    const int32_t *start = (const int32_t *)scale + rows;
    for (int s = 0; s < sub; s++) {
      // 2. Integer sums, alternating between two sets of tiles, so that steps need not wait for each other.
      const int8_t *q = (const int8_t *)record + s * (STEP / 2);
      const uint8_t *from = wide + s * (STEP / 2 * 16);
      const int set = (step * sub + s) % 2;
      int32_t *found = products[set];
      tile_sums(set, q, from, found);
      // 3. Scales and minima.
      for (int part = 0; part < PARTS; part++) {
        const int64_t at = ((step >> p.shift) * sub + s) * 16 + part * LANES, factor_at = step / 8 * 16 + part * LANES;
        const Floats number = read_numbers(p.scales, at, factor_at);
        for (int r = 0; r < rows; r++) {
          const Ints sum = *(const Ints *)(found + r * 16 + part * LANES) + spread(start[s * rows + r]);
          sums[r][part] = multiply_add(to_floats(sum) * number, spread(scale[r]), sums[r][part]);
        }
        if (!p.minima.numbers) continue;
        const Floats minimum = read_numbers(p.minima, at, factor_at);
        for (int r = 0; r < rows; r++)
          sums[r][part] = multiply_add(minimum, spread(total[s * rows + r]), sums[r][part]);
      }
    }
  }
  for (int r = 0; r < rows; r++) write_sums(p, r, sums[r]);
}

static void multiply_tiles(const Quantized &w, const Panel &p, int rows, const uint8_t *records) {
  const int sub = w.group < STEP ? 2 : 1;
  if (w.bits == 8) multiply_tiles<BYTES>(p, rows, sub, records);
  else if (w.table) multiply_tiles<TABLE>(p, rows, sub, records);
  else multiply_tiles<NIBBLES>(p, rows, sub, records);
}

#else  // without AMX
constexpr int TILE_ROWS = ROWS, LEAST_TILE_ROWS = 8;
static bool has_tiles() { return false; }
struct Tiles {
  Tiles(int, int) {}
};
static void multiply_tiles(const Quantized &, const Panel &, int, const uint8_t *) {}
#endif
