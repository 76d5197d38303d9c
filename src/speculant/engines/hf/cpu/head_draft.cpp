// A draft of a head of the EAGLE family in one call: levels of the most probable paths follow each other (EAGLE-2, Li et
// al. 2024, arXiv 2406.16858), each a step, without a return to Python. It ends where `drafters.models.shapes.BestFirst`
// ends a draft, and for the same reasons.

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "head_step.h"

struct Plan {
  const void *embeddings;   // [vocabulary of the target, hidden]
  const int64_t *ids;       // the target's token of each logit; null where they are its own
  const float *next_level;  // by level from 1 on, how often drafts accepted to it are accepted to the next
  int64_t vocabulary, position, depth, top_k, nodes;  // logits that count; position of the first level; nodes kept
  float least, level_price, inverse_temperature;
};

struct Node {
  int32_t token, parent;
  float weight;
  int64_t row;  // of the draft; -1 until it is read
};

// Appends the top_k tokens of logits below a node; returns false if the logits are no numbers.
static bool add_candidates(const float *logits, const Plan &plan, int32_t parent, float joint,
                           std::vector<Node> &nodes, std::vector<std::pair<float, int64_t>> &best) {
  const int64_t vocabulary = plan.vocabulary, whole = vocabulary / WIDTH * WIDTH;
  float highest = -INFINITY, total = 0;
  for (int64_t i = 0; i < vocabulary; i++) highest = std::max(highest, logits[i]);
  Vector sums = {};
  const Vector top = Vector{} + highest, scale = Vector{} + plan.inverse_temperature;
  for (int64_t i = 0; i < whole; i += WIDTH) sums += exponential((*(const Vector *)(logits + i) - top) * scale);
  for (int i = 0; i < WIDTH; i++) total += sums[i];
  for (int64_t i = whole; i < vocabulary; i++) total += std::exp((logits[i] - highest) * plan.inverse_temperature);
  if (!std::isfinite(total) || !std::isfinite(highest)) return false;
  // The best of equal logits is the one with the lower number.
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
    nodes.push_back({(int32_t)(plan.ids ? plan.ids[i] : i), parent, joint * p, -1});
  }
  return true;
}

template <class T>
static int64_t draft(const Step *s, const Text *text, const Plan &plan, const void *root, int32_t *tokens,
                     int32_t *parents, float *weights, int64_t *levels, int threads) {
  const int64_t d = s->hidden, v = s->vocabulary, most = plan.top_k * plan.depth;
  T *passed = (T *)scratch<0>((most + 1) * d), *embeddings = (T *)scratch<1>(plan.top_k * d);
  float *logits = scratch<2>(2 * plan.top_k * v), *wide = logits + plan.top_k * v;
  std::copy_n((const T *)text->features, d, passed);  // what the root passes on
  std::vector<Node> nodes;
  std::vector<std::pair<float, int64_t>> best;
  std::vector<int32_t> level{-1};
  std::vector<float> ranked;
  std::vector<std::vector<int64_t>> ancestors;  // of each row of the draft, itself included
  const void *found = root;
  for (*levels = 1;; ++*levels) {
    // 1. The candidates below the nodes of the last level.
    const int64_t first = nodes.size();
    for (size_t i = 0; i < level.size(); i++) {
      const float joint = level[i] < 0 ? 1 : nodes[level[i]].weight;
      const float *own = as_floats((const T *)found + i * v, wide, v);
      if (!add_candidates(own, plan, level[i], joint, nodes, best)) return -1;
    }
    if (*levels == plan.depth) break;
    // 2. The most probable of them that can be in the draft, if the level that follows is expected to pay.
    ranked.clear();
    for (const Node &node : nodes) ranked.push_back(node.weight);
    float least = plan.least;
    if ((int64_t)ranked.size() > plan.nodes) {
      std::nth_element(ranked.begin(), ranked.begin() + plan.nodes, ranked.end(), std::greater<float>());
      least = std::max(least, ranked[plan.nodes]);
    }
    level.clear();
    for (int32_t node = first; node < (int32_t)nodes.size(); node++) level.push_back(node);
    std::stable_sort(level.begin(), level.end(), [&](int32_t a, int32_t b) { return nodes[a].weight > nodes[b].weight; });
    if ((int64_t)level.size() > plan.top_k) level.resize(plan.top_k);
    while (!level.empty() && nodes[level.back()].weight <= least) level.pop_back();
    float gain = 0;
    for (const int32_t node : level) gain += nodes[node].weight;
    if (level.empty() || gain * plan.next_level[*levels - 1] <= plan.level_price) break;
    // 3. Their rows: each sees the committed text, its ancestors and itself.
    const int64_t n = level.size(), rows = ancestors.size(), length = text->length + rows + n;
    std::vector<int64_t> places(n), positions(n, plan.position + *levels - 1);
    std::vector<uint8_t> seen(n * length, 0);
    for (int64_t i = 0; i < n; i++) {
      Node &node = nodes[level[i]];
      const int64_t above = node.parent < 0 ? -1 : nodes[node.parent].row;
      node.row = rows + i;
      places[i] = above + 1;
      ancestors.push_back(above < 0 ? std::vector<int64_t>{} : ancestors[above]);
      ancestors.back().push_back(node.row);
      std::fill_n(seen.begin() + i * length, text->length, 1);
      for (const int64_t row : ancestors.back()) seen[i * length + text->length + row] = 1;
      std::copy_n((const T *)plan.embeddings + (int64_t)node.token * d, d, embeddings + i * d);
    }
    const bool *mask = n == 1 && (int64_t)ancestors.back().size() == rows + 1 ? nullptr : (const bool *)seen.data();
    const Text own{passed, places.data(), positions.data(), mask, text->held, passed + (rows + 1) * d, n, length, n};
    head_step(s, &own, 1, embeddings, logits, threads);
    found = logits;
  }
  for (size_t i = 0; i < nodes.size(); i++) tokens[i] = nodes[i].token, parents[i] = nodes[i].parent, weights[i] = nodes[i].weight;
  return nodes.size();
}

// Grows a draft below a text of `length` committed rows, the most probable paths level by level, from the logits after
// its root and what the root's row passes on (`features`). Writes all candidates, at most top_k + (depth - 1) * top_k^2,
// parents first, and the number of levels; returns how many, or -1 where logits are no numbers.
extern "C" int64_t head_draft(const Step *s, const Text *text, const Plan *plan, const void *root, int32_t *tokens,
                              int32_t *parents, float *weights, int64_t *levels, int threads) {
  return s->is_bf16 ? draft<BFloat16>(s, text, *plan, root, tokens, parents, weights, levels, threads)
                    : draft<float>(s, text, *plan, root, tokens, parents, weights, levels, threads);
}
