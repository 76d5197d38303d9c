// Products of float rows with quantised matrices: the order of the work, in blocks of outputs and of rows.

#include "quantized.h"

#include <vector>

#include "quantized_amx.h"

constexpr int64_t TASK = 1 << 17, TASKS_PER_THREAD = 4;  // bytes of values in a task

// Thread-local memory kept between calls, because fresh memory costs more than the computation in it.
struct alignas(64) Line {
  uint8_t bytes[64];
};
static uint8_t *scratch(int64_t bytes) {
  static thread_local std::vector<Line> lines;
  if ((int64_t)lines.size() * 64 < bytes) lines.resize(bytes / 64 + 1);
  return lines.data()->bytes;
}

// Blocks of a matrix that one thread multiplies at a time.
struct Task {
  int which;
  int64_t first, last;
};

extern "C" void quantized_linears(const Quantized *const *ws, const float *const *biases, float *const *ys, int count,
                                  const float *x, int64_t rows, int keep, int threads) {
  if (rows <= 0 || count <= 0) return;
  const int64_t k = ws[0]->k, padded = ws[0]->padded, steps = padded / STEP;

  // 1. The record formats that are needed, and the rows of a block.
  const bool tiles = !keep && rows >= LEAST_TILE_ROWS && has_tiles();
  int64_t most = tiles ? TILE_ROWS : keep ? ROWS : rows;
  std::vector<Form> forms;
  std::vector<int> form_of(count);
  std::vector<Format> formats(count);
  for (int i = 0; i < count; i++) {
    const Quantized &w = *ws[i];
    const Format format = formats[i] = format_of(w, rows);
    const int subtracted = tiles ? tile_centre(w, rows) : format == BYTES || format == TABLE ? CENTRE : 0;
    const Form form{keep != 0, w.group < STEP ? 2 : 1, keep ? 0 : w.offset - subtracted};
    form_of[i] = (int)(std::find(forms.begin(), forms.end(), form) - forms.begin());
    if (form_of[i] == (int)forms.size()) forms.push_back(form);
    if (!tiles && !keep) most = std::min(most, most_rows(format, rows));
  }

  // 2. The place of each format's records: those of all rows, padded to whole tiles, then those of the next format.
  const int64_t row_blocks = (rows + most - 1) / most, rows_padded = tiles ? row_blocks * TILE_ROWS : rows;
  const auto first_row = [&](int64_t b) { return tiles ? std::min(b * TILE_ROWS, rows) : rows * b / row_blocks; };
  std::vector<int64_t> starts;
  int64_t bytes = 0;
  for (const Form &form : forms) starts.push_back(bytes), bytes += rows_padded * steps * form.bytes();
  uint8_t *records = scratch(bytes);

  // 3. The tasks: as many blocks of outputs as stay in the second-level cache while blocks of rows meet them.
  std::vector<Task> tasks;
  for (int i = 0; i < count; i++) {
    const int64_t blocks = (ws[i]->outs + 15) / 16, share = TASK / std::max<int64_t>(padded * 2 * ws[i]->bits, 1);
    const int64_t even = blocks / (threads * TASKS_PER_THREAD), size = std::max<int64_t>(1, std::min(share, even));
    for (int64_t first = 0; first < blocks; first += size) tasks.push_back({i, first, std::min(first + size, blocks)});
  }

#pragma omp parallel num_threads(threads)
  {
    // 4. Records of each block of rows.
    std::vector<uint8_t *> to(forms.size());
#pragma omp for schedule(static)
    for (int64_t b = 0; b < row_blocks; b++) {
      const int64_t row = first_row(b), n = first_row(b + 1) - row;
      for (size_t f = 0; f < forms.size(); f++) to[f] = records + starts[f] + row * steps * forms[f].bytes();
      if (keep) keep_rows(x + row * k, n, k, padded, forms.data(), (int)forms.size(), to.data());
      else round_rows(x + row * k, n, tiles ? TILE_ROWS : n, k, padded, forms.data(), (int)forms.size(), to.data());
    }

    // 5. Products of each task with each block of rows.
#pragma omp for schedule(dynamic)
    for (size_t t = 0; t < tasks.size(); t++) {
      const Task &task = tasks[t];
      const Quantized &w = *ws[task.which];
      const int form = form_of[task.which];
      const float *bias = biases ? biases[task.which] : nullptr;
      if (tiles) {
        const Tiles shapes(forms[form].sub);
        for (int64_t block = task.first; block < task.last; block++)
          multiply_tiles(w, panel_of(w, block, bias, ys[task.which], true), rows, records + starts[form]);
        continue;
      }
      for (int64_t b = 0; b < row_blocks; b++) {
        const int64_t row = first_row(b);
        const uint8_t *from = records + starts[form] + row * steps * forms[form].bytes();
        const Kernel kernel = choose_kernel(formats[task.which], forms[form].sub, first_row(b + 1) - row, keep);
        for (int64_t block = task.first; block < task.last; block++)
          kernel(panel_of(w, block, bias, ys[task.which] + row * w.outs, b == 0), from);
      }
    }
  }
}

extern "C" void quantized_linear(const Quantized *w, const float *x, const float *bias, float *y, int64_t rows, int keep,
                                 int threads) {
  quantized_linears(&w, &bias, &y, 1, x, rows, keep, threads);
}
