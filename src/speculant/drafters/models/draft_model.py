"""A smaller model drafts: chains, one forward pass of the draft model per token.

Leviathan, Kalman, Matias: "Fast Inference from Transformers via Speculative Decoding", ICML 2023, arXiv 2211.17192;
Chen et al.: "Accelerating Large Language Model Decoding with Speculative Sampling", 2023, arXiv 2302.01318. The draft
model has a `TargetCache` of its own, on any engine, which is kept in step with the target's text. Where the target is
sampled, tokens are sampled from q, warped as the target's p is; else they are the draft model's argmax.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from speculant.core.drafter import Budget, Drafter, Session, Start, Verified
from speculant.core.engine import NO_NEEDS, Array, Needs, TargetCache
from speculant.core.tree import DraftTree, Int32, Proposal
from speculant.drafters.models.warping import warped


class DraftModelDrafter(Drafter):
    """Opens a cache of the draft model for every request."""

    def __init__(self, open_cache: Callable[[Int32], TargetCache], *, vocabulary: int) -> None:
        """Take the draft model.

        Args:
            open_cache: returns a cache of the draft model for a prompt Int32[T], which is not read yet.
            vocabulary: V of the target; logits of the draft model beyond it are left out, missing ones count as -inf.
        """
        self._open_cache, self._vocabulary = open_cache, vocabulary

    @property
    def needs(self) -> Needs:
        return NO_NEEDS

    def open(self, start: Start) -> Session:
        cache = self._open_cache(start.prompt)
        cache.prefill()
        return DraftModelSession(cache, start, self._vocabulary)


class DraftModelSession(Session):
    """One request: the draft model's cache, and the committed tokens that are not in it yet."""

    def __init__(self, cache: TargetCache, start: Start, vocabulary: int) -> None:
        self._cache, self._sampling, self._vocabulary = cache, start.sampling, vocabulary
        self._seed, self._round = start.seed, 0
        self._unread: list[int] = []
        self._after: Array = None  # logits [1, V] after the last token of the cache's committed text
        self._rows = 0  # drafted tokens that the cache has rows of

    def propose(self, budget: Budget) -> DraftTree:
        """Return a chain. Asked again before `observe`, it draws the same tokens again."""
        self._cache.rollback()
        self._rows = 0
        depth = min(budget.nodes, budget.depth, self._cache.depth + 1 - max(1, len(self._unread)))
        if depth < 1:
            return DraftTree.empty()
        if self._unread:
            read = np.array(self._unread, np.int32)
            result = self._cache.forward(read, _chain(len(read)))
            self._cache.keep(range(len(read)))
            self._unread, self._after = [], result.logits[-1:]
        generator = self._generator()
        tokens, weights, rows = list[int](), list[float](), list[Array]()
        logits = self._after
        for node in range(depth):
            token, probability, q = self._draw(logits, generator)
            tokens.append(token)
            weights.append(probability * (weights[-1] if weights else 1.0))
            rows.append(q)
            if node + 1 < depth:
                logits = self._cache.forward(np.array([token], np.int32), np.array([node - 1], np.int32)).logits
                self._rows += 1
        return DraftTree(
            np.array(tokens, np.int32),
            _chain(depth),
            np.minimum.accumulate(np.array(weights, np.float32)),
            Proposal(torch.cat(rows)) if self._sampling.temperature else None,
        )

    def _generator(self) -> torch.Generator:
        """Return the random stream of this round."""
        seed = np.random.SeedSequence(self._seed.entropy, spawn_key=(*self._seed.spawn_key, self._round))
        return torch.Generator().manual_seed(int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1)))

    def _draw(self, logits: Array, generator: torch.Generator) -> tuple[int, float, Array]:
        """Return a token, its probability and the distribution [1, V] it is from."""
        logits = logits[:, : self._vocabulary]
        if missing := self._vocabulary - logits.shape[1]:
            logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        if not self._sampling.temperature:
            probabilities = logits.float().softmax(-1)
            token = int(probabilities.argmax(-1))
            return token, float(probabilities[0, token]), probabilities
        q = warped(logits, self._sampling)
        token = int(torch.multinomial(q.cpu(), 1, generator=generator))
        return token, float(q[0, token]), q

    def observe(self, verified: Verified) -> None:
        """Keep the rows of accepted tokens; the other committed tokens are read with the next draft."""
        kept = min(len(verified.path), self._rows)
        if len(verified.tree):
            self._cache.keep(range(kept))
        self._rows = 0
        self._round += 1
        self._unread += verified.tokens[kept:].tolist()

    def close(self) -> None:
        self._cache.release()


def _chain(n: int) -> Int32:
    return np.arange(-1, n - 1, dtype=np.int32)
