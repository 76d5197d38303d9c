"""Drafting for speculative contrastive decoding: a chain with the draft model's distribution after every node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from speculant.core.drafter import Budget, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError
from speculant.core.sampler import Sampling
from speculant.core.tree import ROOT, DraftTree, Proposal
from speculant.drafters.models.draft_model import DraftModelDrafter
from speculant.drafters.models.draft_text import DraftText, OpenCache
from speculant.drafters.models.warping import draw_token


class ContrastiveDrafter(DraftModelDrafter):
    """Drafter of the method `contrastive`; see `verifiers.contrastive`."""

    def __init__(self, open_cache: OpenCache, *, vocabulary: int) -> None:
        super().__init__(open_cache, vocabulary=vocabulary)

    @property
    def needs(self) -> RequestedOutputs:
        """No target outputs; but every token must be observed, since q is also needed in rounds without a draft."""
        return RequestedOutputs(max_nodes=self._max_nodes, always=True)

    def open(self, start: SessionRequest) -> Session:
        # If top-k or top-p left q at 0, the contrast would be infinite: only p decides which tokens are plausible.
        unwarped = replace(start, sampling=Sampling(temperature=start.sampling.temperature))
        return ContrastiveSession(self.open_text(unwarped), unwarped)


class ContrastiveSession(Session):
    """Session of one request: its text on the draft model."""

    def __init__(self, text: DraftText, start: SessionRequest) -> None:
        self._text, self._start, self._round = text, start, 0

    def propose(self, budget: Budget) -> DraftTree:
        """Return a chain, which may be empty, with q after the root and every node.

        Raises:
            UnsupportedError: the draft model has no positions left, so there is no q to contrast with.
        """
        first = self._begin()
        sampled = bool(self._start.sampling.temperature)
        generator = torch.Generator().manual_seed(self._start.round_seed(self._round)) if sampled else None
        tokens, weights, distributions, row = list[int](), list[float](), [first], ROOT
        for _ in range(min(budget.nodes, budget.depth, self._text.depth - 1)):
            distribution: Tensor = distributions[-1]
            token = draw_token(distribution, generator)
            weights.append(min(1.0, float(distribution[token])) * (weights[-1] if weights else 1.0))
            tokens.append(token)
            [row], [distribution] = self._text.read([token], [row])
            distributions.append(distribution)
        count = len(tokens)
        proposal = Proposal(torch.stack(distributions), "iid", None if sampled else np.ones(count, bool))
        parents = np.arange(-1, count - 1, dtype=np.int32)
        return DraftTree(np.array(tokens, np.int32), parents, np.array(weights, np.float32), proposal)

    def empty_draft(self) -> DraftTree:
        """Return an empty draft with q after the root; raises the same errors as `propose`."""
        return replace(DraftTree.empty(), proposal=Proposal(self._begin()[None]))

    def _begin(self) -> Tensor:
        if self._text.depth < 1:
            raise UnsupportedError(
                "the draft model has no more positions, and contrastive decoding needs it for every token. Decode "
                "fewer tokens, or use a draft model with more positions."
            )
        return self._text.begin()[0]

    def unread(self) -> int:
        return self._text.unread

    def observe(self, verified: Verified) -> None:
        self._text.observe(verified)
        self._round += 1

    def close(self) -> None:
        self._text.release()
