// The product of a block of 16 outputs with many rounded rows by AMX-INT8, where the processor has it.
//
// The rows are in tiles of 16, the last one padded with zeros. The weights are in the order of a tile: a row holds four
// inputs of 16 outputs. A few steps of a block at a time are copied as signed bytes, which all tiles of rows then meet
// in the cache; one tile reads bytes from the matrix itself. The integer sums of each step are scaled and added in
// float, as in quantized_kernel.h.

#pragma once

#include "quantized_kernel.h"

// Below this many rows, vectors are as fast as tiles.
constexpr int LEAST_TILE_ROWS = 9;

#if defined(__AMX_INT8__)
#include <sys/syscall.h>
#include <unistd.h>

constexpr int TILE_ROWS = 16, FEW_ROWS = 12, TILES_AT_ONCE = 16, COPIED_STEPS = 8, LOADED_STEPS = 32;

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

// Makes GCC finish the stores before it: its tile instructions do not say what they read, except for the first eight
// bytes of a configuration.
static inline void finish_stores(const void *at) { asm volatile("" : : "r"(at) : "memory"); }

struct alignas(64) TileShapes {
  uint8_t palette, start, reserved[14];
  uint16_t columns[16];  // in bytes
  uint8_t rows[16];
};

// Configures the tile shapes while it exists, in two sets: sums 0 and 1, [16 rows, 16]; activations 2 and 3, [16 rows,
// bytes]; weights 4 and 5, [bytes / 4, 16, 4]. Other libraries configure a thread once, so their shapes are restored.
class Tiles {
  TileShapes found;

 public:
  explicit Tiles(int sub) {
    _tile_storeconfig(&found);
    TileShapes shapes = {};
    shapes.palette = 1;
    const int bytes = STEP / sub;
    for (int set = 0; set < 2; set++) {
      shapes.columns[set] = 64, shapes.rows[set] = TILE_ROWS;
      shapes.columns[2 + set] = bytes, shapes.rows[2 + set] = TILE_ROWS;
      shapes.columns[4 + set] = 64, shapes.rows[4 + set] = bytes / 4;
    }
    finish_stores(&shapes);
    _tile_loadconfig(&shapes);
  }
  ~Tiles() {
    finish_stores(&found);
    if (found.palette) _tile_loadconfig(&found);
    else _tile_release();
  }
};

// Whether weights are loaded from the matrix itself, unsigned: one tile of rows does not repay a copy of bytes.
static bool loads_directly(const Quantized &w, int64_t rows) { return w.bits == 8 && rows <= TILE_ROWS; }

// Subtracted from the values: the offset, if all of them then are signed bytes.
static int tile_centre(const Quantized &w, int64_t rows) {
  if (loads_directly(w, rows)) return 0;
  const int largest = w.bits == 8 ? w.largest : w.table ? 255 : 15;
  return w.offset >= 0 && w.offset <= 128 && largest - w.offset <= 127 ? w.offset : 128;
}

// A few steps of a block as all rows read them.
struct alignas(64) Expanded {
  int8_t values[COPIED_STEPS][STEP * 16];
  Floats scales[LOADED_STEPS][2][PARTS], minima[LOADED_STEPS][2][PARTS];
};

template <Format FORMAT>
static void copy_values(const Panel &p, int64_t first, int64_t last, int centre, Expanded &to) {
  typedef uint8_t Bytes __attribute__((vector_size(LANES * 4), may_alias));  // differences may wrap
  const Words table = load_table(p.table);
  const Bytes subtracted = (uint8_t)centre - Bytes{};
  for (int64_t step = first; step < last; step++) {
    const uint8_t *values = p.values + step * BYTES_OF_STEP<FORMAT>;
    fetch_ahead<TILE_ROWS, FORMAT>(p, values, step);
    for (int quad = 0; quad < STEP / 4; quad++)
      for (int part = 0; part < PARTS; part++) {
        const Words found = load_values<FORMAT>(values + part * LANES * 4, quad & ~1, quad % 2, table);
        *(Bytes *)(to.values[step - first] + quad * 64 + part * LANES * 4) = (Bytes)found - subtracted;
      }
  }
}

static void expand_numbers(const Panel &p, int64_t first, int64_t last, int sub, Expanded &to) {
  for (int64_t step = first; step < last; step++) {
    const int64_t later = step + LOADED_STEPS;
    __builtin_prefetch((const uint8_t *)p.scales.numbers + later * p.scales.step, 0, 2);
    if (p.minima.numbers) __builtin_prefetch((const uint8_t *)p.minima.numbers + later * p.minima.step, 0, 2);
    for (int s = 0; s < sub; s++)
      for (int part = 0; part < PARTS; part++) {
        const int64_t at = ((step >> p.shift) * sub + s) * 16 + part * LANES, factor_at = step / 8 * 16 + part * LANES;
        to.scales[step - first][s][part] = read_numbers(p.scales, at, factor_at);
        if (p.minima.numbers) to.minima[step - first][s][part] = read_numbers(p.minima, at, factor_at);
      }
  }
}

// Writes the integer sums of a step, or of half of one, [16 rows, 16]. Compilers require literal tile numbers.
template <bool SIGNED>
static inline void tile_sums(int set, const int8_t *q, const void *values, int32_t *sums) {
  if (set == 0) {
    _tile_zero(0);
    _tile_loadd(2, q, STEP);
    _tile_loadd(4, values, 64);
    if (SIGNED) _tile_dpbssd(0, 2, 4);
    else _tile_dpbsud(0, 2, 4);
    _tile_stored(0, sums, 64);
  } else {
    _tile_zero(1);
    _tile_loadd(3, q, STEP);
    _tile_loadd(5, values, 64);
    if (SIGNED) _tile_dpbssd(1, 3, 5);
    else _tile_dpbsud(1, 3, 5);
    _tile_stored(1, sums, 64);
  }
}

// Adds the products of some steps with the first R rows of a tile to `totals`. STARTS: the rows have initial sums.
// COPIED: `from` points to signed values in the cache, else to those of the matrix.
template <int SUB, bool STARTS, bool COPIED, int R>
static void add_tile(const Expanded &w, const void *from, int64_t steps, bool minima,
                     const Rounded<TILE_ROWS, SUB> *rows, Floats (&totals)[TILE_ROWS][PARTS]) {
  constexpr int INPUTS = STEP / SUB;
  const uint8_t *values = (const uint8_t *)from;
  alignas(64) int32_t products[2][TILE_ROWS * 16];
  Floats sums[R][PARTS];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
    for (int part = 0; part < PARTS; part++) sums[r][part] = totals[r][part];
  tile_sums<COPIED>(0, rows->q[0], values, products[0]);
  for (int64_t i = 0; i < steps * SUB; i++) {
    // 1. The integer sums of the next step, while this one's are scaled.
    const int64_t next = i + 1, step = i / SUB;
    const int s = i % SUB;
    for (int line = 0; !COPIED && line < INPUTS * 16; line += 64)
      __builtin_prefetch(values + i * INPUTS * 16 + AHEAD + line, 0, 2);
    if (next < steps * SUB)
      tile_sums<COPIED>(next % 2, rows[next / SUB].q[0] + next % SUB * INPUTS, values + next * INPUTS * 16,
                        products[next % 2]);
    // 2. Scales.
    const Rounded<TILE_ROWS, SUB> &row = rows[step];
    for (int part = 0; part < PARTS; part++) {
      const Floats scale = w.scales[step][s][part];
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        Ints sum = *(const Ints *)(products[i % 2] + r * 16 + part * LANES);
        if (STARTS) sum += spread(row.start[s][r]);
        sums[r][part] = multiply_add(to_floats(sum) * scale, spread(row.scale[r]), sums[r][part]);
      }
    }
    // 3. Minima.
    if (!minima) continue;
    for (int part = 0; part < PARTS; part++) {
      const Floats minimum = w.minima[step][s][part];
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
        sums[r][part] = multiply_add(minimum, spread(row.total[s][r]), sums[r][part]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
    for (int part = 0; part < PARTS; part++) totals[r][part] = sums[r][part];
}

template <int SUB, bool STARTS, bool COPIED>
static void multiply_tiles(const Quantized &w, Panel p, int64_t rows, const uint8_t *records) {
  const int centre = tile_centre(w, rows);
  const auto copy = w.bits == 8 ? copy_values<BYTES> : w.table ? copy_values<TABLE> : copy_values<NIBBLES>;
  const auto *tiles = (const Rounded<TILE_ROWS, SUB> *)records;
  alignas(64) Floats sums[TILES_AT_ONCE][TILE_ROWS][PARTS];
  Expanded expanded;
  for (int64_t first = 0; first < rows; first += TILES_AT_ONCE * TILE_ROWS) {
    const int64_t here = std::min<int64_t>(TILES_AT_ONCE * TILE_ROWS, rows - first);
    const int64_t count = (here + TILE_ROWS - 1) / TILE_ROWS;
    std::memset(sums, 0, count * sizeof sums[0]);
    for (int64_t step = 0, last; step < p.steps; step = last) {
      last = std::min<int64_t>(step + (COPIED ? COPIED_STEPS : LOADED_STEPS), p.steps);
      expand_numbers(p, step, last, SUB, expanded);
      if (COPIED) copy(p, step, last, centre, expanded);
      finish_stores(&expanded);
      for (int64_t t = 0; t < count; t++) {
        const bool few = here - t * TILE_ROWS <= FEW_ROWS;
        const auto add = few ? add_tile<SUB, STARTS, COPIED, FEW_ROWS> : add_tile<SUB, STARTS, COPIED, TILE_ROWS>;
        const void *values = COPIED ? (const void *)expanded.values : p.values + step * STEP * 16;
        add(expanded, values, last - step, p.minima.numbers, tiles + t * p.steps + step, sums[t]);
      }
    }
    for (int64_t r = 0; r < here; r++) write_sums(p, r, sums[r / TILE_ROWS][r % TILE_ROWS]);
    p.y += here * p.y_step, p.fetch = false;
    tiles += count * p.steps;
  }
}

template <int SUB>
static void multiply_tiles(const Quantized &w, const Panel &p, int64_t rows, const uint8_t *records) {
  if (loads_directly(w, rows)) multiply_tiles<SUB, true, false>(w, p, rows, records);
  else if (tile_centre(w, rows) != w.offset) multiply_tiles<SUB, true, true>(w, p, rows, records);
  else multiply_tiles<SUB, false, true>(w, p, rows, records);
}
static void multiply_tiles(const Quantized &w, const Panel &p, int64_t rows, const uint8_t *records) {
  (w.group < STEP ? multiply_tiles<2> : multiply_tiles<1>)(w, p, rows, records);
}

#else  // without AMX
constexpr int TILE_ROWS = ROWS;
static bool has_tiles() { return false; }
struct Tiles {
  explicit Tiles(int) {}
};
static int tile_centre(const Quantized &, int64_t) { return 0; }
static void multiply_tiles(const Quantized &, const Panel &, int64_t, const uint8_t *) {}
#endif
