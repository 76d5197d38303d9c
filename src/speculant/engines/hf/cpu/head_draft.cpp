// Drafts of an EAGLE head in one call: levels of the most probable paths follow each other (EAGLE-2, Li et al. 2024,
// arXiv 2406.16858), one step each, without returning to Python. Drafts of several texts grow together, so that a level
// is one step for all of them. Each ends at the same point and for the same reasons as in
// `drafters.models.shapes.BestFirst`.

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "head_step.h"

struct Plan {
  const void *root;         // logits [vocabulary of the head] after the root
  const float *ratios;      // for levels 2, 3, ...: gain per joint probability of the expanded nodes
  // Position of the first level; maximum levels, candidates per node, nodes expanded per level, and nodes kept.
  int64_t position, depth, top_k, expanded, nodes;
  float minimum, level_price, row_price, inverse_temperature;
  float confidence;  // own probability below which a node is not expanded
  // Written: at most top_k + (depth - 1) * expanded * top_k candidates, parents first, and their joint probabilities.
  int32_t *tokens, *parents;
  float *weights;
  float *extended;  // written, at most depth - 1: joint probability of the nodes expanded for levels 2, 3, ...
  int64_t count, levels;  // written: number of candidates and levels; -1 candidates if logits are not finite
};

struct Words {
  const void *embeddings;  // [vocabulary of the target, hidden]
  const Quantized *quantized;  // instead of the embeddings; null if they are not quantised
  const int64_t *ids;      // the target's token for each logit; null if equal
  int64_t vocabulary;      // number of logits in use
};

struct Node {
  int32_t token, parent;
  float weight;
  int64_t row;  // row in the draft; -1 until it is read
};

// Appends the top_k tokens of logits below a node; returns false if the logits are not finite.
static bool add_candidates(const float *logits, const Plan &plan, const Words &words, int32_t parent, float joint,
                           std::vector<Node> &nodes, std::vector<std::pair<float, int64_t>> &best) {
  const int64_t vocabulary = words.vocabulary, whole = vocabulary / WIDTH * WIDTH;
  float highest = -INFINITY, total = 0;
  for (int64_t i = 0; i < vocabulary; i++) highest = std::max(highest, logits[i]);
  Vector sums = {};
  const Vector top = Vector{} + highest, scale = Vector{} + plan.inverse_temperature;
  for (int64_t i = 0; i < whole; i += WIDTH) sums += exponential((*(const Vector *)(logits + i) - top) * scale);
  for (int i = 0; i < WIDTH; i++) total += sums[i];
  for (int64_t i = whole; i < vocabulary; i++) total += std::exp((logits[i] - highest) * plan.inverse_temperature);
  if (!std::isfinite(total) || !std::isfinite(highest)) return false;
  // Among equal logits the one with the lower index is better.
  const auto before = [](const auto &a, const auto &b) { return a.first > b.first || (a.first == b.first && a.second < b.second); };
  best.clear();
  for (int64_t i = 0; i < vocabulary; i++) {
    if ((int64_t)best.size() == plan.top_k && logits[i] <= best.back().first) continue;
    const std::pair<float, int64_t> found{logits[i], i};
    best.insert(std::upper_bound(best.begin(), best.end(), found, before), found);
    if ((int64_t)best.size() > plan.top_k) best.pop_back();
  }
  for (const auto &[logit, i] : best) {
    const float p = std::exp((logit - highest) * plan.inverse_temperature) / total;
    nodes.push_back({(int32_t)(words.ids ? words.ids[i] : i), parent, joint * p, -1});
  }
  return true;
}

// A growing draft.
struct Growth {
  const Text *text;
  Plan *plan;
  void *passed;  // states passed on by the root, then by the rows of the draft
  std::vector<Node> nodes;
  std::vector<int32_t> level;                   // nodes whose logits come next
  std::vector<std::vector<int64_t>> ancestors;  // of each row, itself included
  std::vector<int64_t> places, positions;       // of the level's rows
  std::vector<uint8_t> seen;
};

// Adds the candidates below the nodes of the last level, given the logits after them, and selects those of the next
// one: the most probable that can be in the draft, if the next level is expected to pay off. Returns whether there is
// one.
template <class T>
static bool grow(Growth &g, const T *found, const Words &words, int64_t v, float *wide, std::vector<float> &ranked,
                 std::vector<std::pair<float, int64_t>> &best) {
  Plan &plan = *g.plan;
  auto &nodes = g.nodes;
  const int64_t first = nodes.size();
  plan.levels++;
  for (size_t i = 0; i < g.level.size(); i++) {
    const float joint = g.level[i] < 0 ? 1 : nodes[g.level[i]].weight;
    if (!add_candidates(as_floats(found + i * v, wide, v), plan, words, g.level[i], joint, nodes, best)) {
      plan.count = -1;
      return false;
    }
  }
  plan.count = nodes.size();
  if (plan.levels == plan.depth) return false;
  ranked.clear();
  for (const Node &node : nodes) ranked.push_back(node.weight);
  float minimum = plan.minimum;
  if ((int64_t)ranked.size() > plan.nodes) {
    std::nth_element(ranked.begin(), ranked.begin() + plan.nodes, ranked.end(), std::greater<float>());
    minimum = std::max(minimum, ranked[plan.nodes]);
  }
  auto &level = g.level;
  level.clear();
  for (int32_t node = first; node < (int32_t)nodes.size(); node++) level.push_back(node);
  std::stable_sort(level.begin(), level.end(), [&](int32_t a, int32_t b) { return nodes[a].weight > nodes[b].weight; });
  if ((int64_t)level.size() > plan.expanded) level.resize(plan.expanded);
  const float ratio = plan.ratios[plan.levels - 1];
  while (level.size() > 1 && nodes[level.back()].weight * ratio <= plan.row_price) level.pop_back();
  while (!level.empty() && nodes[level.back()].weight <= minimum) level.pop_back();
  const auto unsure = [&](int32_t node) {
    const float above = nodes[node].parent < 0 ? 1 : nodes[nodes[node].parent].weight;
    return nodes[node].weight < plan.confidence * above;
  };
  level.erase(std::remove_if(level.begin(), level.end(), unsure), level.end());
  if (level.empty()) return false;
  float extended = 0;
  for (const int32_t node : level) extended += nodes[node].weight;
  if (extended * ratio <= plan.level_price + plan.row_price * (level.size() - 1)) return false;
  plan.extended[plan.levels - 1] = extended;
  return true;
}

// Returns the rows of a draft's next level: each sees the committed text, its ancestors and itself.
template <class T>
static Text rows_of(Growth &g, const Words &words, int64_t d, T *embeddings) {
  const int64_t n = g.level.size(), rows = g.ancestors.size(), length = g.text->length + rows + n;
  g.places.assign(n, 0), g.positions.assign(n, g.plan->position + g.plan->levels - 1), g.seen.assign(n * length, 0);
  for (int64_t i = 0; i < n; i++) {
    Node &node = g.nodes[g.level[i]];
    const int64_t above = node.parent < 0 ? -1 : g.nodes[node.parent].row;
    node.row = rows + i;
    g.places[i] = above + 1;
    g.ancestors.push_back(above < 0 ? std::vector<int64_t>{} : g.ancestors[above]);
    g.ancestors.back().push_back(node.row);
    std::fill_n(g.seen.begin() + i * length, g.text->length, 1);
    for (const int64_t row : g.ancestors.back()) g.seen[i * length + g.text->length + row] = 1;
    if (!words.quantized) {
      std::copy_n((const T *)words.embeddings + (int64_t)node.token * d, d, embeddings + i * d);
      continue;
    }
    const int64_t token = node.token;
    float *wide = scratch<3>(d);
    quantized_rows(words.quantized, &token, 1, wide);
    for (int64_t j = 0; j < d; j++) embeddings[i * d + j] = convert<T>(wide[j]);
  }
  const bool *mask = n == 1 && (int64_t)g.ancestors.back().size() == rows + 1 ? nullptr : (const bool *)g.seen.data();
  void *exits = g.text->exits ? (T *)g.text->exits + rows * d : nullptr;
  return {g.passed, g.places.data(), g.positions.data(), mask, g.text->held, (T *)g.passed + (rows + 1) * d, n, length, n,
          exits};
}

template <class T>
static void draft(const Step *s, const Text *texts, Plan *plans, int64_t count, const Words &words, int64_t most,
                  int threads) {
  const int64_t d = s->hidden, v = s->vocabulary;
  int64_t kept = 0, widest = 0;
  for (int64_t i = 0; i < count; i++) kept += plans[i].expanded * plans[i].depth + 1, widest += plans[i].expanded;
  T *passed = (T *)scratch<0>(kept * d), *embeddings = (T *)scratch<1>(widest * d);
  float *logits = scratch<2>((widest + 1) * v), *wide = logits + widest * v;
  std::vector<Growth> growths(count);
  std::vector<float> ranked;
  std::vector<std::pair<float, int64_t>> best;
  std::vector<Growth *> growing;
  for (int64_t i = 0; i < count; i++) {
    Growth &g = growths[i];
    g.text = texts + i, g.plan = plans + i, g.passed = passed, g.level = {-1};
    std::copy_n((const T *)texts[i].features, d, passed);  // states passed on by the root
    passed += (plans[i].expanded * plans[i].depth + 1) * d;
    plans[i].levels = 0;
    if (grow(g, (const T *)plans[i].root, words, v, wide, ranked, best)) growing.push_back(&g);
  }
  std::vector<Text> rows;
  while (!growing.empty()) {
    rows.clear();
    T *to = embeddings;
    for (Growth *g : growing) {
      rows.push_back(rows_of(*g, words, d, to)), to += rows.back().n * d;
      // On top of target layers, the last rows are only read for the pass that continues from them; nothing follows
      // them.
      if (s->exit && g->plan->levels + 1 == g->plan->depth) rows.back().wanted = 0;
    }
    T *from = embeddings, *found = (T *)logits;
    for (size_t first = 0, end; first < rows.size(); first = end) {  // as many texts per step as fit
      int64_t n = 0, wanted = 0;
      for (end = first; end < rows.size() && (end == first || n + rows[end].n <= most); end++)
        n += rows[end].n, wanted += rows[end].wanted;
      head_step(s, rows.data() + first, end - first, from, found, threads);
      from += n * d, found += wanted * v;
    }
    found = (T *)logits;
    std::vector<Growth *> on;
    for (size_t i = 0; i < growing.size(); i++) {
      if (!rows[i].wanted)
        growing[i]->plan->levels++;
      else if (grow(*growing[i], found, words, v, wide, ranked, best))
        on.push_back(growing[i]);
      found += rows[i].wanted * v;
    }
    growing = on;
  }
  for (Growth &g : growths)
    for (int64_t i = 0; i < g.plan->count; i++)
      g.plan->tokens[i] = g.nodes[i].token, g.plan->parents[i] = g.nodes[i].parent, g.plan->weights[i] = g.nodes[i].weight;
}

// Grows drafts below texts of `length` committed rows, the most probable paths level by level, from the logits after
// each root and the states that its row passes on (`features`). A step has at most `most` rows, or those of a single
// text.
extern "C" void head_draft(const Step *s, const Text *texts, Plan *plans, int64_t count, const Words *words,
                           int64_t most, int threads) {
  s->is_bf16 ? draft<BFloat16>(s, texts, plans, count, *words, most, threads)
             : draft<float>(s, texts, plans, count, *words, most, threads);
}
