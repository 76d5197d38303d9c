// Products of float rows with quantised matrices: the order of work, in blocks of outputs and of rows.

#include "quantized.h"

#include <vector>

#include "quantized_kernel.h"
#include "quantized_scales.h"

constexpr int64_t AHEAD = 4096, TASK = 1 << 17, TASKS_PER_THREAD = 4;  // bytes; bytes of values in a task

// Memory of this thread that is kept between calls, because fresh memory costs more than what is computed in it.
struct alignas(64) Line {
  uint8_t bytes[64];
};
template <int WHICH>
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

  // 1. The forms in which rows are needed.
  std::vector<Form> forms;
  std::vector<int> form_of(count);
  for (int i = 0; i < count; i++) {
    const Quantized &w = *ws[i];
    const Form form{w.group < STEP ? 2 : 1, keep ? 0 : centre(w) - w.offset, false};
    form_of[i] = (int)(std::find(forms.begin(), forms.end(), form) - forms.begin());
    if (form_of[i] == (int)forms.size()) forms.push_back(form);
  }

  // 2. Where the records of each form are: those of all rows, then those of the next form.
  const int64_t row_blocks = (rows + ROWS - 1) / ROWS;
  std::vector<int64_t> row_bytes(forms.size()), starts(forms.size());
  int64_t bytes = 0;
  for (size_t f = 0; f < forms.size(); f++) {
    row_bytes[f] = steps * (keep ? kept_size(1, forms[f].sub) : rounded_size(1, forms[f].sub));
    starts[f] = bytes, bytes += rows * row_bytes[f];
  }
  uint8_t *records = scratch<0>(bytes);

  // 3. The tasks: so many blocks of outputs that their values stay in the second-level cache while they meet all rows.
  std::vector<Task> tasks;
  for (int i = 0; i < count; i++) {
    const int64_t blocks = (ws[i]->outs + 15) / 16, share = TASK / std::max<int64_t>(padded * 2 * ws[i]->bits, 1);
    const int64_t most = blocks / (threads * TASKS_PER_THREAD), size = std::max<int64_t>(1, std::min(share, most));
    for (int64_t first = 0; first < blocks; first += size) tasks.push_back({i, first, std::min(first + size, blocks)});
  }

#pragma omp parallel num_threads(threads)
  {
    // 4. Records of each block of rows.
#pragma omp for schedule(static)
    for (int64_t b = 0; b < row_blocks; b++) {
      const int64_t row = rows * b / row_blocks, n = rows * (b + 1) / row_blocks - row;
      uint8_t *to[64];
      for (size_t f = 0; f < forms.size(); f++) to[f] = records + starts[f] + row * row_bytes[f];
      (keep ? keep_rows : round_rows)(x + row * k, n, k, padded, forms.data(), (int)forms.size(), to);
    }

    // 5. Products of each task with each block of rows.
#pragma omp for schedule(dynamic)
    for (size_t t = 0; t < tasks.size(); t++) {
      const Task &task = tasks[t];
      const Quantized &w = *ws[task.which];
      const int form = form_of[task.which];
      const int64_t numbers = steps * forms[form].sub * 16;
      float *room = (float *)scratch<1>((task.last - task.first) * numbers * 2 * (int64_t)sizeof(float));
      std::vector<const float *> scales, minima;
      for (int64_t block = task.first; block < task.last; block++, room += 2 * numbers) {
        scales.push_back(read_numbers(scales_of(w), w, block, room));
        minima.push_back(w.minima ? read_numbers(minima_of(w), w, block, room + numbers) : nullptr);
      }
      for (int64_t b = 0; b < row_blocks; b++) {
        const int64_t row = rows * b / row_blocks, n = rows * (b + 1) / row_blocks - row;
        const Kernel kernel = choose_kernel(w, n, keep);
        const uint8_t *from = records + starts[form] + row * row_bytes[form];
        for (int64_t block = task.first; block < task.last; block++) {
          const float *bias = biases ? biases[task.which] : nullptr;
          const Panel panel{w.values + block * padded * 2 * w.bits,
                            w.table,
                            scales[block - task.first],
                            minima[block - task.first],
                            steps,
                            b ? 0 : AHEAD,
                            w.offset,
                            bias ? bias + block * 16 : nullptr,
                            ys[task.which] + row * w.outs + block * 16,
                            w.outs,
                            (int)std::min<int64_t>(16, w.outs - block * 16)};
          kernel(panel, from);
        }
      }
    }
  }
}

extern "C" void quantized_linear(const Quantized *w, const float *x, const float *bias, float *y, int64_t rows, int keep,
                                 int threads) {
  quantized_linears(&w, &bias, &y, 1, x, rows, keep, threads);
}
