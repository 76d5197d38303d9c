"""Chains for requests for which an engine's own head has drafted, combining the head's drafts with a memory's.

The engine names its requests and shows their texts and its head's tokens. A memory drafts a tree for each, and
`ChainUnion` merges both into one chain. Drafts depend only on tokens and on the order of steps. After an error, a step
loses only the memory's part of its drafts: the head's are passed on unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from speculant.core.drafter import Drafter
from speculant.core.tree import ROOT, UNLIMITED, DraftTree
from speculant.integrations.chain_union import AgreementHistory, ChainUnion
from speculant.integrations.drafting import RowDrafter
from speculant.integrations.growing_text import GrowingText
from speculant.integrations.load import bound_drafts, opinion_budget
from speculant.integrations.rows import EngineRow

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class HeadRow:
    """A request in one step of an engine.

    Attributes:
        name: the engine's name for it.
        tokens: its whole text; only new tokens are read.
        head: the tokens that the head drafted; empty if it did not.
        maximum: maximum number of drafted tokens.
        ended: whether its text is complete; this is the last time it is learned from.
    """

    name: str
    tokens: Sequence[int]
    head: Sequence[int] = ()
    maximum: int = 0
    ended: bool = False


@dataclass(slots=True, eq=False)
class _HeadRequest:
    """A request's text, its number among the texts with the same name, and its chains."""

    text: GrowingText
    number: int = 0
    drafted: bool = False
    history: AgreementHistory = field(default_factory=AgreementHistory)


class HeadRows:
    """Chains for the requests of a batch.

    Attributes:
        rows: the memory's drafts.
        union: merges both into chains.
        faults: errors while chains were chosen.
    """

    def __init__(
        self,
        drafter: Drafter,
        *,
        vocabulary: int,
        max_per_step: int,
        min_probability: float = 0.0,
        ends: frozenset[int] = frozenset(),
    ) -> None:
        """Start without requests.

        Args:
            drafter: the memory, a drafter of chosen tokens that learns from text, with probabilities as weights.
            vocabulary: V.
            max_per_step: maximum tokens drafted per step, for all requests together.
            min_probability: minimum acceptance probability of a drafted token.
            ends: tokens that end a text.
        """
        self.faults = 0
        self._max_per_step, self._min_probability = max_per_step, min_probability
        self._requests: dict[str, _HeadRequest] = {}
        self.union = ChainUnion()
        self.rows = RowDrafter(drafter, vocabulary=vocabulary, budget=opinion_budget, max_per_step=UNLIMITED, ends=ends)

    def step(self, rows: Sequence[HeadRow]) -> list[list[int]]:
        """Learn what was committed since the last step and return each request's chain."""
        try:
            return self._step(rows)
        except Exception as error:
            self.faults += 1
            if self.faults == 1:
                logger.error("uniting drafts failed; the head's are used alone in steps like this.", exc_info=error)
            return [list(row.head) for row in rows]

    def forget(self) -> None:
        """End all requests; what was learned is kept."""
        self.rows.finish()
        self._requests.clear()

    def _step(self, rows: Sequence[HeadRow]) -> list[list[int]]:
        trees = self.rows.step([self._row(row) for row in rows])
        chains = [self._chain(row, tree) for row, tree in zip(rows, trees, strict=True)]
        for row in rows:
            if row.ended:
                del self._requests[row.name]
        chains = bound_drafts(chains, self._max_per_step, minimum=self._min_probability)
        return [chain.tokens.tolist() for chain in chains]

    def _row(self, row: HeadRow) -> EngineRow:
        """Return the row to show to the memory; a text that does not continue the known one is another request."""
        known = self._requests.get(row.name)
        if known is None or not _continues(known.text, row.tokens):
            number = 0 if known is None else known.number + 1
            known = self._requests[row.name] = _HeadRequest(GrowingText(row.tokens[:]), number)
            fresh = 1
        else:
            fresh = len(row.tokens) - known.text.length
            known.text.extend(row.tokens[known.text.length :])
        return EngineRow(known.text.tokens, fresh, row.maximum, (row.name, known.number))

    def _chain(self, row: HeadRow, tree: DraftTree) -> DraftTree:
        request = self._requests[row.name]
        self.union.observe(request.history, request.text.tokens, ended=row.ended)
        if row.maximum < 1:
            return DraftTree.empty()
        at = request.text.length
        chain = self.union.unite(request.history, at=at, head=row.head, memory=tree, maximum=row.maximum)
        return _fill_from_head(chain, row.head[: row.maximum])


def _continues(text: GrowingText, tokens: Sequence[int]) -> bool:
    return text.length <= len(tokens) and int(text.tokens[-1]) == tokens[text.length - 1]


def _fill_from_head(chain: DraftTree, head: Sequence[int]) -> DraftTree:
    """Extend a chain to the head's length, appending the head's tokens at the same positions.

    Engines run batches of equal draft lengths with recorded graphs, others without.
    """
    missing = list(head[len(chain) :])
    if not missing:
        return chain
    last = float(chain.weights[-1]) if len(chain) else 1.0
    length = len(chain) + len(missing)
    return DraftTree.trusted(
        np.concatenate([chain.tokens, np.array(missing, np.int32)]),
        np.arange(ROOT, length - 1, dtype=np.int32),
        np.concatenate([chain.weights, last * np.float32(0.01) ** np.arange(1, len(missing) + 1, dtype=np.float32)]),
    )
