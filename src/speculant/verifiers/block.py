"""Block verification: the tokens of a chain are accepted jointly, as its longest prefix that passes a test.

Sun et al.: "Block Verification Accelerates Speculative Decoding", ICLR 2025, arXiv 2403.10444. With w_0 = 1 and
w_i = min(1, w_{i-1} p(x_i) / q(x_i)), the first i nodes are accepted with probability h_i = s_i / (s_i + 1 - w_i),
where s_i = sum_x max(0, w_i p(x) - q(x)) after node i, and h_g = w_g at the end. All tests are independent, and the
longest prefix that passes is accepted; the next token is drawn from max(0, w_i p - q), normalised. No rule that sees
one chain accepts more tokens on average; token-by-token speculative sampling never accepts more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree
from speculant.verifiers.forest import Forest, refuse_several, residual
from speculant.verifiers.rule import Decision, RuleVerifier


class BlockVerification(RuleVerifier):
    """Exact in distribution, for chains."""

    trees = False

    def check(self, draft: DraftTree) -> None:
        if len(draft) and (draft.parents != range(-1, len(draft) - 1)).any():
            raise UnsupportedError("block verification takes chains; this draft branches. Use 'traversal' for trees.")
        refuse_several(draft, "block verification")

    def rule(self, forest: Forest, p: Tensor, uniforms: Tensor) -> Decision:
        size, tiny = forest.tokens.shape[1], torch.finfo(p.dtype).tiny
        weight, rows, rest, rates = p.new_ones(len(p)), torch.zeros(len(p), dtype=torch.int64), p[:, 0], list[Tensor]()
        rows = rows.to(p.device)
        for row in range(size + 1):
            here = forest.exists[:, row - 1] if row else torch.ones_like(rows, dtype=torch.bool)
            if row:
                node = torch.full_like(rows, row - 1)
                proposed = forest.find_proposals(node, forest.q[:, row - 1])
                drafted = proposed.gather(1, forest.tokens[:, row - 1 : row])[:, 0]
                target = p[:, row - 1].gather(1, forest.tokens[:, row - 1 : row])[:, 0]
                weight = (weight * target / drafted.clamp(min=tiny)).clamp(max=1.0)
            more = forest.exists[:, row] if row < size else torch.zeros_like(here)
            following = (
                forest.find_proposals(torch.full_like(rows, min(row, size - 1)), forest.q[:, row]) if size else p[:, 0]
            )
            scaled = weight[:, None] * p[:, row]
            mass = (scaled - following).clamp(min=0).sum(1)
            share = torch.where(weight < 1, mass / (mass + 1 - weight).clamp(min=tiny), 1.0)
            rate = torch.where(more, share, weight)
            accepted = here & (uniforms[:, row - 1] < rate) if row else here
            rows = torch.where(accepted, row, rows)
            after = torch.where(more[:, None], residual(scaled, following), p[:, row])
            rest = torch.where(accepted[:, None], after, rest)
            rates.append(rate)
        return Decision(rows, rest, torch.stack(rates[1:], 1) if size else p.new_zeros(len(p), 0))
