"""K-SEQ: candidates drawn independently from one q, each tested against the same scaled ratio.

Sun et al.: "SpecTr: Fast Speculative Decoding via Optimal Transport", NeurIPS 2023, arXiv 2310.15141. With k candidates
for one position and b(r) = sum_x min(q(x), p(x) / r), r is the root in [1, k] of 1 - (1 - b(r))^k = r b(r). Candidates
are accepted in order, each with probability min(1, p(x) / (r q(x))); if none is, the token is drawn from
p(x) - min(q(x), p(x) / r) (1 - (1 - b)^k) / b, normalised. Any r at or above the root is exact; bisection returns its
upper bound.
"""

from __future__ import annotations

import torch
from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree
from speculant.verifiers.forest import Forest, refuse_several
from speculant.verifiers.rule import Choice, DescentVerifier

_HALVINGS = 50


class KSeq(DescentVerifier):
    """Exact in distribution, for drafts whose siblings were drawn with replacement."""

    def check(self, draft: DraftTree) -> None:
        proposal = draft.proposal
        if len(draft) and (proposal is None or proposal.drawn != "iid" or proposal.chosen is not None):
            raise UnsupportedError(
                "K-SEQ takes candidates that were drawn with replacement; these were chosen, or drawn without. "
                "Use the verifier 'speculative-sampling'."
            )
        refuse_several(draft, "K-SEQ")

    def choose(self, forest: Forest, rows: Tensor, p: Tensor, uniforms: Tensor) -> Choice:
        everyone = torch.arange(len(rows), device=p.device)
        nodes, q = forest.children[everyone, rows], forest.q[everyone, rows]
        if not nodes.shape[1]:
            return Choice(torch.full_like(rows, -1), p, p.new_zeros(len(p), 0))
        count = (nodes >= 0).sum(1, keepdim=True).to(p)
        scale = _scale(p, q, count)
        common = torch.minimum(q, p / scale)
        tokens = forest.tokens.gather(1, nodes.clamp(min=0))
        rates = (common.gather(1, tokens) / q.gather(1, tokens).clamp(min=torch.finfo(p.dtype).tiny)).clamp(max=1.0)
        accepted = (nodes >= 0) & (uniforms < rates)
        taken = torch.where(accepted.any(1), accepted.int().argmax(1), -1)
        overlap = common.sum(1, keepdim=True)
        some = 1 - (1 - overlap) ** count
        rest = (p - common * torch.where(overlap > 0, some / overlap.clamp(min=torch.finfo(p.dtype).tiny), 0.0)).clamp(
            min=0
        )
        return Choice(taken, torch.where((count > 0) & (rest.sum(1, keepdim=True) > 0), rest, p), rates)


def _scale(p: Tensor, q: Tensor, count: Tensor) -> Tensor:
    """Return r [B, 1], the upper bound of a bisection."""
    low, high = torch.ones_like(count), count.clamp(min=1)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        overlap = torch.minimum(q, p / middle).sum(1, keepdim=True)
        enough = 1 - (1 - overlap) ** count <= middle * overlap
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high
