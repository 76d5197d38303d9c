"""Traversal verification: a tree is verified from its leaves up, so that a rejected ancestor does not discard a leaf.

Weng et al.: "Traversal Verification for Speculative Tree Decoding", NeurIPS 2025, arXiv 2505.12398. Each node has a
mass w: 1 at the root, and min(1, w p(x) / q(x)) at a child, with w, p and q of its parent. Nodes are tested depth
first, children in draft order before their parent, and pass with a probability equal to their mass. The first node that
passes ends the path, and the next token is drawn from its current p. A child that fails changes its parent: p becomes
max(0, w p - q), normalised by its sum s, w becomes s / (s + 1 - w), and if siblings were drawn without replacement the
token is removed from q. The root always passes. On a chain this is block verification.
"""

from __future__ import annotations

import torch
from torch import Tensor

from speculant.verifiers.forest import Forest, residual, without
from speculant.verifiers.rule import Decision, RuleVerifier


class TraversalVerification(RuleVerifier):
    """Exact in distribution."""

    def rule(self, forest: Forest, p: Tensor, uniforms: Tensor) -> Decision:
        batch, size = forest.tokens.shape
        everyone, tiny = torch.arange(batch, device=p.device), torch.finfo(p.dtype).tiny
        order, depths = _schedule(forest)
        deepest = int(depths.max()) if depths.numel() else 0
        own, q = p.new_zeros(batch, deepest + 1, p.shape[-1]), p.new_zeros(batch, deepest + 1, p.shape[-1])
        mass, rates = p.new_ones(batch, deepest + 1), p.new_zeros(batch, size)
        own[:, 0], q[:, 0] = p[:, 0], forest.q[:, 0]
        rows, open_ = torch.zeros_like(everyone), torch.ones_like(everyone, dtype=torch.bool)
        rest = p[:, 0]
        for step in range(order.shape[1]):
            event = order[:, step]
            node, leaving, idle = event // 2, event % 2 == 1, event < 0
            node = node.clamp(min=0)
            depth = depths[everyone, node]
            above = depth - 1
            proposed = forest.find_proposals(node, q[everyone, above])
            token = forest.tokens[everyone, node]
            weight, parent = mass[everyone, above], own[everyone, above]

            entering = (~leaving & ~idle)[:, None]
            ratio = parent.gather(1, token[:, None])[:, 0] / proposed.gather(1, token[:, None])[:, 0].clamp(min=tiny)
            own[everyone, depth] = torch.where(entering, p[everyone, node + 1], own[everyone, depth])
            q[everyone, depth] = torch.where(entering, forest.q[everyone, node + 1], q[everyone, depth])
            mass[everyone, depth] = torch.where(entering[:, 0], (weight * ratio).clamp(max=1.0), mass[everyone, depth])

            rate = mass[everyone, depth]
            tested = leaving & ~idle & open_
            accepted = tested & (uniforms[everyone, node] < rate)
            rates[everyone, node] = torch.where(tested, rate, rates[everyone, node])
            rows = torch.where(accepted, node + 1, rows)
            rest = torch.where(accepted[:, None], own[everyone, depth], rest)
            open_ = open_ & ~accepted

            failed = tested & ~accepted
            scaled = weight[:, None] * parent
            left = (scaled - proposed).clamp(min=0).sum(1)
            own[everyone, above] = torch.where(failed[:, None], residual(scaled, proposed), parent)
            lower = torch.where(weight < 1, left / (left + 1 - weight).clamp(min=tiny), 1.0)
            mass[everyone, above] = torch.where(failed, lower, weight)
            drawn = failed & forest.sampled[everyone, node] & forest.distinct
            q[everyone, above] = torch.where(drawn[:, None], without(q[everyone, above], token), q[everyone, above])
        rest = torch.where(open_[:, None], own[:, 0], rest)
        return Decision(rows, rest, rates)


def _schedule(forest: Forest) -> tuple[Tensor, Tensor]:
    """Return the events of a depth-first walk of each draft, Int64[B, 2 N], and the depth of each node, Int64[B, N].

    An event is 2 * node on entering a node and 2 * node + 1 on leaving it; -1 is padding.
    """
    events, depths = list[list[int]](), list[list[int]]()
    size = forest.tokens.shape[1]
    for children in forest.below:
        found, deep = list[int](), [1] * size
        stack = [(node, 0, 1) for node in reversed(children[0])]
        while stack:
            node, left, depth = stack.pop()
            found.append(2 * node + left)
            if left:
                continue
            deep[node] = depth
            stack.append((node, 1, depth))
            stack += [(child, 0, depth + 1) for child in reversed(children[node + 1])]
        events.append(found + [-1] * (2 * size - len(found)))
        depths.append(deep)
    device, batch = forest.tokens.device, len(events)
    order = torch.tensor(events, dtype=torch.int64, device=device).reshape(batch, 2 * size)
    return order, torch.tensor(depths, dtype=torch.int64, device=device).reshape(batch, size)
