"""SuffixDecoding: one suffix tree over the request, one over past outputs, and the draft with the better score.

Oliaro, Jia, Campos, Qiao: "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", NeurIPS 2025,
arXiv 2411.04975, section 3. The tree of a request contains its prompt and its output so far; the tree over past outputs
learns an output when its request is closed. Frequencies are relative to all occurrences of a context, including the
current one, so even a context that always continued in the same way has an estimate below 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from speculant.core.byte_size import MEMORY_LIMIT
from speculant.core.drafter import Budget, Session, SessionRequest, Verified
from speculant.core.tree import DraftTree, Int32
from speculant.drafters.suffix.history import HistoryDrafter, PastTexts
from speculant.drafters.suffix.nodes import EDGE
from speculant.drafters.suffix.search import Places, find_suffixes, speculate
from speculant.drafters.suffix.tree import SuffixTree

KIND = "suffix-tree"
Draft = tuple[Int32, Int32, Any, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixSettings:
    """Settings of SuffixDecoding; the defaults are those at which the paper's own package is compared.

    Attributes:
        depth: maximum tokens of context and draft together, the paper's maximum tree depth.
        factor: nodes drafted per matching token of context, the paper's alpha (1 to 4 there).
        min_probability: nodes are drafted only if their estimate is above this.
        max_nodes: maximum nodes per draft, however long the match.
    """

    depth: int = 64
    factor: float = 4.0
    min_probability: float = 0.0
    max_nodes: int = 64


class SuffixDrafter(HistoryDrafter[SuffixTree]):
    """Drafter whose tree over past outputs is shared by all requests of a process behind one lock."""

    kind = KIND

    def __init__(
        self,
        *,
        vocabulary: int,
        tokenizer: str = "",
        memory_limit: int = MEMORY_LIMIT,
        settings: SuffixSettings | None = None,
    ) -> None:
        """Start with an empty tree.

        Args:
            vocabulary: V, the number of token ids.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: maximum bytes for past text and its index; a request's own index is extra.
            settings: None for the defaults.

        Raises:
            UnsupportedError: the vocabulary has more ids than the tree can hold.
        """
        self.settings = settings or SuffixSettings()
        super().__init__(vocabulary=vocabulary, tokenizer=tokenizer, memory_limit=memory_limit)
        self._warm_up()

    def _empty(self, limit: int) -> PastTexts[SuffixTree]:
        return PastTexts(lambda share: SuffixTree(depth=self.settings.depth, limit=share), limit=limit)

    def _warm_up(self) -> None:
        """Load the compiled kernels, so that the first request does not wait for them."""
        session = SuffixSession(self, np.zeros(3, np.int32))
        session.propose(Budget(nodes=1, depth=1))

    def open(self, start: SessionRequest) -> Session:
        """Start a request; its tree starts with the prompt."""
        return SuffixSession(self, start.prompt)

    def draft(self, tree: SuffixTree, places: Places, budget: Budget, *, unseen: int) -> Draft:
        """Return tokens, parents, joint probabilities and score of the best draft from a tree."""
        settings = self.settings
        draft: Draft = speculate(
            tree.tree, tree.log, places, unseen, settings.depth, budget.depth, min(budget.nodes, settings.max_nodes),
            settings.factor, settings.min_probability,
        )  # fmt: skip
        return draft

    def recall(self, context: Int32, budget: Budget) -> list[Draft]:
        """Return the best draft from each generation of past outputs, for a context Int32[T]."""
        with self._learning.lock:
            return [
                self.draft(tree, find_suffixes(tree.tree, tree.log, context), budget, unseen=1)
                for tree in (self._history.young, self._history.old)
            ]


class SuffixSession(Session):
    """Session of one request: its own tree, and its output so far."""

    def __init__(self, drafter: SuffixDrafter, prompt: Int32) -> None:
        self._drafter = drafter
        self._tree = SuffixTree(depth=drafter.settings.depth)
        self._tree.extend(prompt)
        self._output: list[Int32] = []

    def propose(self, budget: Budget) -> DraftTree:
        """Return the draft with the most expected accepted tokens, from the request or from past outputs."""
        tree, ends = self._tree, self._tree.ends[: self._drafter.settings.depth - 1]
        if min(budget.nodes, budget.depth) < 1 or not len(ends):
            return DraftTree.empty()
        places = np.stack([ends, tree.tree.nodes[ends, EDGE] & 127], axis=1)
        best = self._drafter.draft(tree, places, budget, unseen=0)
        for draft in self._drafter.recall(tree.text[-len(ends) :], budget):
            if draft[3] > best[3]:
                best = draft
        tokens, parents, joints, _ = best
        found = DraftTree.trusted(tokens, parents, joints.astype(np.float32))
        return found.within(depth=budget.depth, trees=budget.trees)

    def observe(self, verified: Verified) -> None:
        """Add the committed tokens to the request's tree."""
        self._tree.extend(verified.tokens)
        self._output.append(verified.tokens)

    def close(self) -> None:
        """Add the output to the tree over past outputs."""
        if self._output:
            self._drafter.learn(np.concatenate(self._output))
            self._output = []
