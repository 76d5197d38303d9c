"""Tables with one, two and three tokens of context for the study of ADED, all with the same update and search.

Plain Python, since the library's table has at most two tokens of context; its speed is not representative.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from mix_corpora import Tokens
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.tree import DraftTree, Int32

BITS = 15  # bits per id in a key; Llama 2 has 32,000 ids
STEP, WINDOW, CAP, SUCCESSORS, DEPTH = 0.04, 16, 3.0, 12, 4  # as published
LONGEST = 3
Row = dict[int, float]


class ContextTable:
    """Weights of the successors of each context of `context` tokens: shares in a corpus, updated as published."""

    def __init__(self, texts: Sequence[Tokens], context: int) -> None:
        """Count a corpus."""
        self.context = context
        spans = [np.lib.stride_tricks.sliding_window_view(text, context + 1) for text in texts if len(text) > context]
        grams = np.concatenate(spans).astype(np.uint64)
        keys = np.zeros(len(grams), np.uint64)
        for column in grams.T:
            keys = keys << np.uint64(BITS) | column
        keys, counts = np.unique(keys, return_counts=True)
        contexts = keys >> np.uint64(BITS)
        order = np.lexsort((-counts, contexts))
        contexts, keys, counts = contexts[order], keys[order], counts[order]
        starts = np.flatnonzero(np.append(True, contexts[1:] != contexts[:-1]))
        totals = np.repeat(np.add.reduceat(counts, starts), np.diff(np.append(starts, len(keys))))
        rank = np.arange(len(keys)) - np.repeat(starts, np.diff(np.append(starts, len(keys))))
        kept = rank < SUCCESSORS
        self._contexts = contexts[kept]
        self._tokens = (keys[kept] & np.uint64((1 << BITS) - 1)).astype(np.int64)
        self._shares = counts[kept] / totals[kept]
        self._learned: dict[int, Row] = {}
        self.published_bytes = 8 + (8 + 4 * context) * len(starts) + 8 * int(kept.sum())

    def forget(self) -> None:
        """Reset the table to the corpus."""
        self._learned.clear()

    def row(self, tokens: Sequence[int]) -> Row:
        """Return the successors of the last tokens with their weights."""
        key = 0
        for token in tokens[len(tokens) - self.context :]:
            key = key << BITS | token
        if key in self._learned:
            return self._learned[key]
        low, high = np.searchsorted(self._contexts, [np.uint64(key), np.uint64(key + 1)])
        return dict(zip(self._tokens[low:high].tolist(), self._shares[low:high].tolist(), strict=True))

    def learn(self, window: Sequence[int]) -> None:
        """Add the step to every n-gram of the window."""
        for end in range(self.context, len(window)):
            before = window[end - self.context : end]
            key = 0
            for token in before:
                key = key << BITS | token
            row = self._learned.setdefault(key, self.row(before))
            row[window[end]] = min(CAP, row.get(window[end], 0.0) + STEP)


class ContextDrafter(Drafter):
    """Best-first search over the row of the longest known context."""

    def __init__(self, tables: Sequence[ContextTable]) -> None:
        """Take tables, the longest context first."""
        self.tables = tables

    @property
    def needs(self) -> RequestedOutputs:
        """Request no outputs."""
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        """Begin a request; only the end of the prompt is learned."""
        return _ContextSession(self, start.prompt)


class _ContextSession(Session):
    def __init__(self, drafter: ContextDrafter, prompt: Int32) -> None:
        self._tables = drafter.tables
        self._tail = prompt[-WINDOW:].tolist()

    def propose(self, budget: Budget) -> DraftTree:
        for table in self._tables:
            table.learn(self._tail)
        tokens: list[int] = []
        parents: list[int] = []
        joints: list[float] = []
        root = self._tail[-LONGEST:]
        frontier = [(-1.0, 0, -1, root)]
        waiting = 0
        while frontier and len(tokens) < budget.nodes:
            joint, _, parent, text = heapq.heappop(frontier)
            here = -1
            if len(text) > len(root):
                here = len(tokens)
                tokens.append(text[-1])
                parents.append(parent)
                joints.append(-joint)
            if len(text) == len(root) + DEPTH:
                continue
            row = next((found for table in self._tables if (found := table.row(text))), {})
            total = sum(row.values())
            for token, weight in row.items():
                waiting += 1
                heapq.heappush(frontier, (joint * weight / total, waiting, here, [*text, token]))
        return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), np.array(joints, np.float32))

    def observe(self, verified: Verified) -> None:
        self._tail = [*self._tail, *verified.tokens.tolist()][-WINDOW:]

    def close(self) -> None:
        pass
