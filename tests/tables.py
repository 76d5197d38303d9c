"""Reading the successor tables in tests, and the slow but obvious table they must agree with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from speculant.drafters.aded.frozen import Frozen, empty_frozen
from speculant.drafters.aded.rows import LONGEST_ROW, NONE, UNIT, export, new_level
from speculant.drafters.aded.table import LearningRule, TrigramTable, learn_rows, lookup

Row = list[tuple[int, int]]
COUNTS = LearningRule(gain=UNIT, ceiling=8191, memory=8 * UNIT, prior=16 * UNIT, longest=16, bigrams=True)


def table(rule: LearningRule = COUNTS, *, limit: int = 1 << 30, base: Frozen | None = None) -> TrigramTable:
    """Return an empty table."""
    return TrigramTable(rule=rule, limit=limit, base=base or empty_frozen())


def ids(tokens: Iterable[int]) -> np.ndarray:
    """Return token ids as the drafters get them."""
    return np.array(list(tokens), np.int32)


def learn_target_rows(held: TrigramTable, contexts: np.ndarray, best: np.ndarray, shares: np.ndarray) -> None:
    """Let a table learn the shares [R, k] of the target's best tokens after contexts [R, 2]."""
    start = 0
    while True:
        start = learn_rows(held.young, held.old, held.base, contexts, best, shares, start, held.rule)
        if start == len(contexts):
            return
        held.make_room()


def row_of(held: TrigramTable, a: int, b: int) -> Row:
    """Return what the table knows to follow (a, b), in its order."""
    tokens, weights = np.empty(LONGEST_ROW, np.int64), np.empty(LONGEST_ROW, np.int64)
    n = lookup(held.young, held.old, held.base, a, b, held.rule, tokens, weights)
    return list(zip(tokens[:n].tolist(), weights[:n].tolist(), strict=True))


def contexts_of(held: TrigramTable) -> set[tuple[int, int]]:
    """Return the contexts in the young level."""
    a, b, _, _ = export(held.young, new_level(1, 0))
    return set(zip(a.tolist(), b.tolist(), strict=True))


class NaiveTable:
    """The learning rule on plain lists, without any bound."""

    def __init__(self, rule: LearningRule) -> None:
        self.rule = rule
        self.rows: dict[tuple[int, int], Row] = {}

    def learn(self, text: Sequence[int]) -> None:
        for i in range(1, len(text)):
            if i >= 2:
                self.observe(text[i - 2], text[i - 1], text[i])
            if self.rule.bigrams:
                self.observe(NONE, text[i - 1], text[i])

    def observe(self, a: int, b: int, c: int, observations: float = 1) -> None:
        row, rule = self.rows.get((a, b), []), self.rule
        gain = int(observations * rule.gain)
        total = sum(weight for _, weight in row) + gain
        if rule.memory and total > rule.memory:
            row = [(token, max(1, weight * rule.memory // total)) for token, weight in row]
        others = [(token, weight) for token, weight in row if token != c]
        weight = sum(weight for token, weight in row if token == c)
        if len(others) == len(row):
            others = others[: rule.longest - 1]
        weight = min(weight + gain, rule.ceiling)
        heavier = [entry for entry in others if entry[1] > weight]
        self.rows[a, b] = [*heavier, (c, weight), *others[len(heavier) :]]
