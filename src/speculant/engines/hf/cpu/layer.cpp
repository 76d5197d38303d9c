// Operations of a Llama-like decoder layer: the whole layer in one call (`layer`), the parts before and after an
// attention function that is not ours (`before_attention`, `after_attention`), and the steps between matrix products
// that are computed elsewhere (`norm`, `split_heads`, `add_norm`, `gate`).
//
// PyTorch runs some forty operations for the same. Each is small, but between two of them the weights pass through the
// caches and evict the operation's code, so together they take up to a fifth of a pass over few rows.
//
// Each row's result is the same for any number of rows.

#include <algorithm>
#include <cstring>
#include <vector>

#include "attention.h"
#include "layer.h"

constexpr int64_t AT_ONCE = 256;  // rows processed at a time: bounds the memory for prompts

static int64_t count_rows(const Attention *each, int64_t count) {
  int64_t rows = 0;
  for (const Attention *a = each; a < each + count; a++) rows += a->batch * a->n;
  return rows;
}

// Writes the queries, keys and values of rows `first` and following of all sequences to where each one's arguments
// point.
template <class T>
static void write_rows(const Layer *l, const float *q, const float *k, const float *v, const Positions *p,
                       const Attention *each, int64_t count, int64_t first, int64_t rows) {
  int64_t start = 0;  // of the sequence
  for (const Attention *a = each; a < each + count; start += a->batch * a->n, a++) {
    const int64_t from = std::max(first, start), to = std::min(first + rows, start + a->batch * a->n);
    if (from >= to) continue;
    const int64_t head = a->head, past = (a->length - a->n) * head, skipped = from - first;
    const int64_t q_width = a->heads * head, width = a->kv_heads * head;
    Positions own = *p;
    if (own.rows) own.rows += start;
    else own.cos = (const T *)p->cos + start * head, own.sin = (const T *)p->sin + start * head;
    write_heads<T>(q + skipped * q_width, a->q, a->n * q_width, a->n * head, l->q_norm, l->q_eps, &own, from - start,
                   to - from, a->n, a->heads, head);
    write_heads<T>(k + skipped * width, (T *)a->k + past, a->k_batch_step, a->k_head_step, l->k_norm, l->k_eps, &own,
                   from - start, to - from, a->n, a->kv_heads, head);
    write_heads<T>(v + skipped * width, (T *)a->v + past, a->v_batch_step, a->v_head_step, nullptr, 0, nullptr,
                   from - start, to - from, a->n, a->kv_heads, head);
  }
}

template <class T>
static void before_attention(const Layer *l, const void *x, const Positions *p, const Attention *each, int64_t count,
                             int threads) {
  const int64_t q_width = each->heads * each->head, width = each->kv_heads * each->head, all = count_rows(each, count);
  for (int64_t first = 0; first < all; first += AT_ONCE) {
    const int64_t rows = std::min(AT_ONCE, all - first), size = rows * l->given;
    float *normed = scratch<0>(2 * size + rows * (q_width + 2 * width)), *input = normed + size;
    float *q = input + size, *k = q + rows * q_width, *v = k + rows * width;
    const float *from = as_floats((const T *)x + first * l->given, input, size);
    if (l->input_norm) rms_norm<T>(from, l->input_norm, l->input_eps, normed, rows, l->given), from = normed;
    project_all<T>(l, {{&l->q, q, q_width}, {&l->k, k, width}, {&l->v, v, width}}, from, rows, l->given, threads);
    write_rows<T>(l, q, k, v, p, each, count, first, rows);
  }
}

// gate = silu(gate) * up; both arrays have room for a vector beyond their end.
template <class T>
static void silu_multiply(float *gate, const float *up, int64_t count, int threads) {
#pragma omp parallel for num_threads(threads) if (count >= 1 << 14)
  for (int64_t i = 0; i < count; i += WIDTH) {
    Vector *g = (Vector *)(gate + i);
    *g = rounded<T>(rounded<T>(*g / (1 + exponential(-*g))) * *(const Vector *)(up + i));
  }
}

template <class T>
static void after_attention(const Layer *l, const void *input, const void *attended, void *output, int64_t all,
                            int64_t width, int threads) {
  for (int64_t first = 0; first < all; first += AT_ONCE) {
    const int64_t rows = std::min(AT_ONCE, all - first), inner = rows * l->inner, hidden = rows * l->hidden;
    const T *x = (const T *)input + first * l->hidden, *given = (const T *)attended + first * width;
    T *y = (T *)output + first * l->hidden;
    float *gate = scratch<0>(2 * (inner + WIDTH) + 2 * hidden + rows * width), *up = gate + inner + WIDTH;
    float *normed = up + inner + WIDTH, *sum = normed + hidden, *attention = sum + hidden;
    if (l->only == MLP) std::fill(sum, sum + hidden, 0.0f);
    else project<T>(l, l->o, as_floats(given, attention, rows * width), sum, rows, l->hidden, width, threads);
#pragma omp simd
    for (int64_t i = 0; i < hidden; i++) sum[i] = rounded<T>(sum[i] + to_float(x[i]));
    if (l->only == ATTENTION) {
      for (int64_t i = 0; i < hidden; i++) y[i] = convert<T>(sum[i]);
      continue;
    }
    rms_norm<T>(sum, l->post_norm, l->post_eps, normed, rows, l->hidden);
    project_all<T>(l, {{&l->gate, gate, l->inner}, {&l->up, up, l->inner}}, normed, rows, l->hidden, threads);
    silu_multiply<T>(gate, up, inner, threads);
    project<T>(l, l->down, gate, normed, rows, l->hidden, l->inner, threads);
#pragma omp simd
    for (int64_t i = 0; i < hidden; i++) y[i] = convert<T>(sum[i] + normed[i]);
  }
}

template <class T>
static void whole(const Layer *l, const void *x, const void *given, const Positions *p, const Attention *arguments,
                  int64_t count, void *y, int threads) {
  static thread_local std::vector<Attention> each;
  each.assign(arguments, arguments + count);
  const int64_t rows = count_rows(arguments, count), width = arguments->heads * arguments->head;
  T *q = (T *)scratch<1>(2 * rows * width), *attended = q + rows * width;
  int64_t start = 0;
  for (Attention &a : each) a.q = q + start * width, a.y = attended + start * width, start += a.batch * a.n;
  if (l->only != MLP) {
    before_attention<T>(l, given, p, each.data(), count, threads);
    attention(each.data(), count, threads);
  }
  after_attention<T>(l, x, attended, y, rows, width, threads);
}

// The steps between products that are computed elsewhere, on values already rounded to T.

template <class T>
static void norm(const Layer *l, const T *x, T *y, int64_t rows) {
  const int64_t size = rows * l->hidden;
  float *input = scratch<0>(2 * size), *normed = input + size;
  rms_norm<T>(as_floats(x, input, size), l->input_norm, l->input_eps, normed, rows, l->hidden);
  for (int64_t i = 0; i < size; i++) y[i] = convert<T>(normed[i]);
}

template <class T>
static void split_heads(const Layer *l, const T *q, const T *k, const T *v, const Positions *p, const Attention *each,
                        int64_t count) {
  const int64_t rows = count_rows(each, count), q_size = rows * each->heads * each->head;
  const int64_t size = rows * each->kv_heads * each->head;
  float *wide = scratch<0>(q_size + 2 * size);
  write_rows<T>(l, as_floats(q, wide, q_size), as_floats(k, wide + q_size, size),
                as_floats(v, wide + q_size + size, size), p, each, count, 0, rows);
}

template <class T>
static void add_norm(const Layer *l, const T *x, const T *attended, T *sum, T *y, int64_t rows) {
  const int64_t size = rows * l->hidden;
  float *total = scratch<0>(2 * size), *normed = total + size;
  for (int64_t i = 0; i < size; i++) {
    total[i] = rounded<T>(to_float(x[i]) + to_float(attended[i]));
    sum[i] = convert<T>(total[i]);
  }
  rms_norm<T>(total, l->post_norm, l->post_eps, normed, rows, l->hidden);
  for (int64_t i = 0; i < size; i++) y[i] = convert<T>(normed[i]);
}

template <class T>
static void gate(const T *gated, const T *up, T *y, int64_t count, int threads) {
  float *g = scratch<0>(2 * (count + WIDTH)), *u = g + count + WIDTH;
  for (int64_t i = 0; i < count; i++) g[i] = to_float(gated[i]), u[i] = to_float(up[i]);
  silu_multiply<T>(g, u, count, threads);
  for (int64_t i = 0; i < count; i++) y[i] = convert<T>(g[i]);
}

// Queries, keys and values of the rows of `count` sequences, x[batch, n, given] of each: its queries, and the last n
// rows of its keys and values. Positions with several sequences: those of all rows, [1, rows, head].
extern "C" void before_attention(const Layer *l, const void *x, const Positions *p, const Attention *each,
                                 int64_t count, int threads) {
  l->is_bf16 ? before_attention<BFloat16>(l, x, p, each, count, threads)
             : before_attention<float>(l, x, p, each, count, threads);
}

// The layer's output y[rows, hidden] from its input x and the output of its attention, [rows, width] (unread by an MLP
// alone).
extern "C" void after_attention(const Layer *l, const void *x, const void *attended, void *y, int64_t rows,
                                int64_t width, int threads) {
  l->is_bf16 ? after_attention<BFloat16>(l, x, attended, y, rows, width, threads)
             : after_attention<float>(l, x, attended, y, rows, width, threads);
}

// The whole layer with the attention of attention.cpp, whose queries and output are allocated here. The attention reads
// `given`, [rows, given], which is x itself in ordinary layers; its output is added to x.
extern "C" void layer(const Layer *l, const void *x, const void *given, const Positions *p, const Attention *each,
                      int64_t count, void *y, int threads) {
  l->is_bf16 ? whole<BFloat16>(l, x, given, p, each, count, y, threads)
             : whole<float>(l, x, given, p, each, count, y, threads);
}

struct LayerCall {
  const Layer *layer;
  const Positions *positions;
  const Attention *attention;  // [sequences]
  int64_t sequences;
  void *y;
};

// Consecutive layers, each reading the output of the previous one.
extern "C" void layers(const LayerCall *calls, int64_t count, const void *x, int threads) {
  for (const LayerCall *c = calls; c < calls + count; x = c->y, c++)
    layer(c->layer, x, x, c->positions, c->attention, c->sequences, c->y, threads);
}

// Copies rows of a table[size] to y[count], `bytes` each; returns 0, and copies none, if the table lacks one of them.
extern "C" int copy_rows(const void *table, int64_t size, int64_t bytes, const int64_t *rows, int64_t count, void *y) {
  if (!std::all_of(rows, rows + count, [size](int64_t row) { return 0 <= row && row < size; })) return 0;
  if (bytes)
    for (int64_t i = 0; i < count; i++) std::memcpy((char *)y + i * bytes, (char *)table + rows[i] * bytes, bytes);
  return 1;
}

// y = RMSNorm(x), before attention; [rows, hidden].
extern "C" void norm(const Layer *l, const void *x, void *y, int64_t rows) {
  l->is_bf16 ? norm(l, (const BFloat16 *)x, (BFloat16 *)y, rows) : norm(l, (const float *)x, (float *)y, rows);
}

// Projections q, k, v [rows, heads * head] to each sequence's queries and the last n rows of its keys and values.
extern "C" void split_heads(const Layer *l, const void *q, const void *k, const void *v, const Positions *p,
                            const Attention *each, int64_t count) {
  l->is_bf16 ? split_heads(l, (const BFloat16 *)q, (const BFloat16 *)k, (const BFloat16 *)v, p, each, count)
             : split_heads(l, (const float *)q, (const float *)k, (const float *)v, p, each, count);
}

// sum = x + attended; y = RMSNorm(sum), before the MLP; [rows, hidden].
extern "C" void add_norm(const Layer *l, const void *x, const void *attended, void *sum, void *y, int64_t rows) {
  l->is_bf16 ? add_norm(l, (const BFloat16 *)x, (const BFloat16 *)attended, (BFloat16 *)sum, (BFloat16 *)y, rows)
             : add_norm(l, (const float *)x, (const float *)attended, (float *)sum, (float *)y, rows);
}

// y = silu(gated) * up; `count` elements.
extern "C" void gate(const Layer *l, const void *gated, const void *up, void *y, int64_t count, int threads) {
  l->is_bf16 ? gate((const BFloat16 *)gated, (const BFloat16 *)up, (BFloat16 *)y, count, threads)
             : gate((const float *)gated, (const float *)up, (float *)y, count, threads);
}
