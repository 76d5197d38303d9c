"""Speculative sampling, and recursive rejection, its extension to several candidates.

Leviathan, Kalman, Matias: "Fast Inference from Transformers via Speculative Decoding", ICML 2023, arXiv 2211.17192,
algorithm 1; Chen et al. 2023, arXiv 2302.01318, theorem 1. A token x drawn from q is accepted with probability
min(1, p(x) / q(x)). If it is rejected, p becomes the residual max(0, p - q), normalised, and the next candidate for the
same position is tested against that; after the last one, the token is drawn from it.

- Candidates drawn with replacement: SpecInfer (Miao et al., ASPLOS 2024, arXiv 2305.09781), multi-step sampling, where
  candidates for one position may come from several draft models, each tested against the q that it was drawn from.
- Without replacement: RSD (Jeon et al. 2024, arXiv 2402.14160), MCSD (Yang et al. 2024, arXiv 2401.06706), Sequoia
  (Chen et al. 2024, arXiv 2402.12374): after a rejection the token also leaves q.
- A chosen candidate counts as drawn from a one-hot q: it is accepted with probability p(x), else removed from p.

The output has exactly the distribution p, whatever q is. p and q are both warped (temperature, top-k, top-p) before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from speculant.verifiers.forest import Forest, residual, without
from speculant.verifiers.rule import Choice, DescentVerifier


class SpeculativeSampling(DescentVerifier):
    """Exact in distribution; token-identical if decoding is greedy."""

    def choose(self, forest: Forest, rows: Tensor, p: Tensor, uniforms: Tensor) -> Choice:
        return recursive_rejection(forest, rows, p, uniforms)


def recursive_rejection(forest: Forest, rows: Tensor, p: Tensor, uniforms: Tensor, *, lenience: float = 1.0) -> Choice:
    """Test the children of one row per draft in turn, each against the residual left by the rejected ones before it.

    Args:
        forest: the drafts.
        rows: Int64[B], the row of each draft.
        p: [B, V], target distributions after these rows.
        uniforms: [B, W], a uniform number for each child.
        lenience: factor of q; below 1, more tokens are accepted and the output is no longer distributed as p (Leviathan
            et al., appendix A.5).
    """
    everyone = torch.arange(len(rows), device=p.device)
    nodes, q = forest.children[everyone, rows], forest.q[everyone, rows]
    taken, rates = torch.full_like(rows, -1), list[Tensor]()
    for place in range(nodes.shape[1]):
        node = nodes[:, place]
        proposed = forest.find_proposals(node, q)
        tokens = forest.tokens.gather(1, node.clamp(min=0)[:, None])
        target, drafted = p.gather(1, tokens)[:, 0], lenience * proposed.gather(1, tokens)[:, 0]
        rates.append((target / drafted.clamp(min=torch.finfo(p.dtype).tiny)).clamp(max=1.0))
        tested = (node >= 0) & (taken < 0)
        accepted = tested & (uniforms[:, place] * drafted < target)
        taken = torch.where(accepted, place, taken)
        rejected = (tested & ~accepted)[:, None]
        p = torch.where(rejected, residual(p, lenience * proposed), p)
        drawn = forest.sampled.gather(1, node.clamp(min=0)[:, None]) & forest.distinct[:, None]
        q = torch.where(rejected & drawn, without(q, tokens[:, 0]), q)
    return Choice(taken, p, torch.stack(rates, 1) if rates else p.new_zeros(len(p), 0))
