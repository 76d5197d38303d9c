"""ADED exactly as published, `aded-paper`.

Liu, Lei, Zhang, Xu: "Adaptive Draft-Verification for Efficient Large Language Model Decoding", AAAI 2025,
arXiv 2407.12021 (also called Adaptix there), as in its released code. The search is in puct.py. The constants are
settings, for ablations; the improved method is in drafter.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from speculant.core.byte_size import MEMORY_LIMIT
from speculant.core.drafter import Budget, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree, Int32
from speculant.drafters.aded import puct
from speculant.drafters.aded.drafter import TableDrafter
from speculant.drafters.aded.rows import LONGEST_ROW, WEIGHT_LIMIT
from speculant.drafters.aded.table import LearningRule, TrigramTable, lookup

FALLBACK = 100  # token id that the published code drafts where the table has no entry


@dataclass(frozen=True, slots=True, kw_only=True)
class AdedPaperSettings:
    """Settings of `aded-paper`; the defaults are the published constants.

    Attributes:
        successors: number of most probable successors kept of each row of a corpus.
        step: amount added, when drafting, to the weight of each tri-gram at the end of the text; 0 for a table that
            does not adapt.
        window: tokens at the end of the text whose tri-grams are learned at every draft.
        cap: maximum weight of a tri-gram.
        iterations: number of search iterations.
        c1: weight of the prior in the search.
        c2: scale of visits, at which the weight of the prior starts to grow.
        depth: number of tokens that the search looks ahead; its paths are extended by one.
        paths: number of most visited nodes that become paths of the draft, including the root.

    Raises:
        UsageError: a number is out of its range.
    """

    successors: int = 12
    step: float = 0.04
    window: int = 16
    cap: float = 3.0
    iterations: int = 150
    c1: float = 32.0
    c2: float = 8.0
    depth: int = 3
    paths: int = 24

    def __post_init__(self) -> None:
        largest = WEIGHT_LIMIT // puct.SCALE
        for name, low, high in (
            ("successors", 1, LONGEST_ROW - 1),
            ("step", 0, largest),
            ("window", 3, 4096),
            ("cap", Fraction(1, puct.SCALE), largest),
            ("iterations", 1, 1 << 20),
            ("c1", 0, 1 << 20),
            ("c2", Fraction(1, 1 << 10), 1 << 20),
            ("depth", 1, 16),
            ("paths", 2, 1 << 16),
        ):
            if not low <= getattr(self, name) <= high:
                raise UsageError(f"{name} must be from {low} to {high}, not {getattr(self, name)}.")
        if self.step and not round(self.step * puct.SCALE):
            raise UsageError(f"the smallest step is 1/{puct.SCALE}; give a larger one, or 0 for none.")

    def rule(self) -> LearningRule:
        """Return the table's learning rule. Rows of a corpus are probabilities, which pruning does not rescale."""
        return LearningRule(
            gain=round(self.step * puct.SCALE),
            ceiling=round(self.cap * puct.SCALE),
            memory=0,
            prior=puct.SCALE,
            longest=LONGEST_ROW,
            bigrams=False,
            normalised=True,
            base_longest=self.successors,
        )

    def search(self) -> puct.PuctConstants:
        """Return the constants of the search."""
        return puct.PuctConstants(iterations=self.iterations, states=self.depth + 1, c1=self.c1, c2=self.c2)


class AdedPaperDrafter(TableDrafter):
    """PUCT search, with +0.04 per draft for the last 14 tri-grams; saves nothing."""

    def __init__(
        self,
        *,
        vocabulary: int,
        tokenizer: str = "",
        memory_limit: int = MEMORY_LIMIT,
        settings: AdedPaperSettings | None = None,
    ) -> None:
        """Start with an empty table, like `TableDrafter`; `settings` None for the published ones."""
        self.settings = settings or AdedPaperSettings()
        super().__init__(
            rule=self.settings.rule(), vocabulary=vocabulary, tokenizer=tokenizer, memory_limit=memory_limit
        )

    def _warm_up(self) -> None:
        super()._warm_up()
        levels = self._table.young, self._table.old, self._table.base
        puct.puct(*levels, 0, 0, self._table.rule, self.settings.search(), np.ones(1, np.uint64))

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs this drafter needs: none, since only accepted tokens are learned."""
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        """Start a request; only the end of the prompt is learned."""
        return AdedPaperSession(self, start)

    def step(self, window: Int32, random: npt.NDArray[np.uint64]) -> DraftTree:
        """Learn the window, search from its end, and return the published draft of up to 64 nodes."""
        with self._lock:
            if self.settings.step:
                self._table.learn(window)
            return draft(self._table, int(window[-2]), int(window[-1]), self.settings, random, self.vocabulary)


class AdedPaperSession(Session):
    """Session of one request."""

    def __init__(self, drafter: AdedPaperDrafter, start: SessionRequest) -> None:
        self._drafter = drafter
        self._window = drafter.settings.window
        self._tail = start.prompt[-self._window :]
        self._random = start.seed.generate_state(1, np.uint64) | np.uint64(1)  # xorshift needs a state other than 0
        self._draft: DraftTree | None = None

    def propose(self, budget: Budget) -> DraftTree:
        """Return the published draft, or the part of it that fits the budget.

        The published method learns and draws random numbers when it drafts, so it drafts only once per round.
        """
        if min(budget.nodes, budget.depth) < 1 or len(self._tail) < 2:
            return DraftTree.empty()
        if self._draft is None:
            self._draft = self._drafter.step(self._tail, self._random)
        return self._draft.head(budget.nodes).within(depth=budget.depth, trees=budget.trees)

    def observe(self, verified: Verified) -> None:
        """Keep the committed tokens; they are learned with the next draft."""
        self._tail = np.concatenate([self._tail, verified.tokens])[-self._window :]
        self._draft = None

    def close(self) -> None:
        """Do nothing: what was learned is in the table."""


def draft(
    table: TrigramTable,
    before: int,
    root: int,
    settings: AdedPaperSettings,
    random: npt.NDArray[np.uint64],
    vocabulary: int,
) -> DraftTree:
    """Return the published draft below `root`, which follows the token `before`."""
    levels = table.young, table.old, table.base
    row, weights = np.empty(LONGEST_ROW, np.int64), np.empty(LONGEST_ROW, np.int64)

    def greedy(a: int, b: int) -> int | None:
        length = lookup(*levels, a, b, table.rule, row, weights)
        return int(row[:length][np.argmax(weights[:length])]) if length else None

    tokens, parents, visits = puct.puct(*levels, before, root, table.rule, settings.search(), random)
    paths = puct.select_published_paths(tokens, parents, visits, greedy, top=settings.paths)
    return DraftTree.from_paths(paths or [[FALLBACK % vocabulary]])
