// AMX-INT8 in ordinary code, for processors without it: compile with -include of this file.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __AMX_INT8__ 1
#define SPECULANT_EMULATE_AMX
#undef _tile_loadconfig
#define _tile_loadconfig emulated_loadconfig
#undef _tile_storeconfig
#define _tile_storeconfig emulated_storeconfig
#undef _tile_release
#define _tile_release emulated_release
#undef _tile_zero
#define _tile_zero emulated_zero
#undef _tile_loadd
#define _tile_loadd emulated_loadd
#undef _tile_stored
#define _tile_stored emulated_stored
#undef _tile_dpbsud
#define _tile_dpbsud(c, a, b) emulated_products<uint8_t>(c, a, b)
#undef _tile_dpbssd
#define _tile_dpbssd(c, a, b) emulated_products<int8_t>(c, a, b)

struct EmulatedTiles {
  int columns[8], rows[8];
  uint8_t bytes[8][16][64];
};
inline EmulatedTiles &emulated() {
  static thread_local EmulatedTiles tiles;
  return tiles;
}

static void emulated_loadconfig(const void *shapes) {
  const uint8_t *at = (const uint8_t *)shapes;
  if (at[0] != 1 || (uintptr_t)shapes % 64) std::abort();
  for (int t = 0; t < 8; t++) {
    emulated().columns[t] = at[16 + 2 * t] | at[17 + 2 * t] << 8, emulated().rows[t] = at[48 + t];
    if (emulated().columns[t] > 64 || emulated().rows[t] > 16) std::abort();
  }
}
static void emulated_storeconfig(void *shapes) {
  uint8_t *at = (uint8_t *)shapes;
  std::memset(at, 0, 64);
  for (int t = 0; t < 8; t++) {
    at[0] |= emulated().rows[t] != 0;
    at[16 + 2 * t] = emulated().columns[t], at[48 + t] = emulated().rows[t];
  }
}
static void emulated_release() { std::memset(&emulated(), 0, sizeof(EmulatedTiles)); }
static void emulated_zero(int t) { std::memset(emulated().bytes[t], 0, sizeof emulated().bytes[t]); }
static void emulated_loadd(int t, const void *from, int64_t step) {
  EmulatedTiles &tiles = emulated();
  emulated_zero(t);
  if (!tiles.rows[t]) std::abort();
  for (int r = 0; r < tiles.rows[t]; r++)
    std::memcpy(tiles.bytes[t][r], (const uint8_t *)from + r * step, tiles.columns[t]);
}
static void emulated_stored(int t, void *to, int64_t step) {
  EmulatedTiles &tiles = emulated();
  for (int r = 0; r < tiles.rows[t]; r++)
    std::memcpy((uint8_t *)to + r * step, tiles.bytes[t][r], tiles.columns[t]);
}
// Byte: the type of the values of tile b.
template <class Byte>
static void emulated_products(int c, int a, int b) {
  EmulatedTiles &tiles = emulated();
  const bool fits = tiles.rows[a] == tiles.rows[c] && tiles.columns[a] == 4 * tiles.rows[b] &&
                    tiles.columns[b] == tiles.columns[c];
  if (!fits) std::abort();
  for (int m = 0; m < tiles.rows[c]; m++)
    for (int n = 0; n < tiles.columns[c] / 4; n++) {
      int32_t sum;
      std::memcpy(&sum, tiles.bytes[c][m] + 4 * n, 4);
      for (int k = 0; k < tiles.columns[a]; k++)
        sum += (int8_t)tiles.bytes[a][m][k] * (Byte)tiles.bytes[b][k / 4][4 * n + k % 4];
      std::memcpy(tiles.bytes[c][m] + 4 * n, &sum, 4);
    }
}

// The shapes that another library of the thread sets, and finds afterwards.
extern "C" __attribute__((weak)) void set_tile_shapes(const void *shapes) { emulated_loadconfig(shapes); }
extern "C" __attribute__((weak)) void get_tile_shapes(void *shapes) { emulated_storeconfig(shapes); }
