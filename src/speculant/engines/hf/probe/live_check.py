"""A check during verification: a sample of the drafted rows is recomputed, one token per pass.

The probe runs before the first draft, on random texts. It can miss effects that occur only on certain texts, at
certain lengths or at certain pass sizes, so drafted rows are compared with plain passes for as long as the model is
used, beginning with the first.
Checking a row costs one plain pass per token of its path; the cost is saved up over many rounds, at 0.4 % of a plain
pass per round. Two differences beyond rounding among four samples end drafting on this model: a single one may be a
tie between experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from speculant.core.engine import Pass, make_refused
from speculant.core.errors import DraftsRefusedError
from speculant.core.tree import ROOT, DraftTree
from speculant.engines.hf.forward_pass import ModelRunner
from speculant.engines.hf.opening import AnySequence
from speculant.engines.hf.probe.rounds import TOLERANCES, wrong_rows
from speculant.engines.hf.quantized.model_weights import rounding_dtype

SAVED = 1 / 256  # budget per drafted round, in plain passes
FARTHEST = 128  # the last position that the probe has checked
FARTHER = 1.25  # a text this many times as long as any sampled one is sampled at once
DEEPEST = 3  # maximum levels below the root
_CHEAPEST = 2.0  # plain passes that the smallest sample takes
DOUBTFUL = 4  # number of samples, in successive rounds, once one differs
WRONG = 2  # differing samples that end drafting

Drafted = tuple[AnySequence, int, DraftTree]


@dataclass(frozen=True, slots=True, eq=False)
class CheckedRows:
    """Rows of a draft, and the results of plain passes for them.

    Attributes:
        cache: cache of the sequence.
        rows: rows of the drafted pass, from the root down.
        expected: [len(rows), V], their logits.
    """

    cache: AnySequence
    rows: list[int]
    expected: Tensor


class LiveCheck:
    """Compares drafted rows on one model with plain passes. Not thread-safe."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._saved, self._taken = DEEPEST + 1.0, 0  # so the first round is sampled
        self._farthest = FARTHEST
        self._doubts: list[bool] = []  # whether each sample since the first doubtful one differed

    def prepare(self, drafted: Sequence[Drafted]) -> CheckedRows | None:
        """If a check is due, recompute rows of one of these drafts one by one; the cache is left as it was.

        Raises:
            OutOfMemoryError: the device is full.
        """
        if not drafted:
            return None
        self._saved = min(self._saved + SAVED, DEEPEST + 1.0)
        cache, root, tree = drafted[self._taken % len(drafted)]
        due = bool(self._doubts) or cache.position >= FARTHER * self._farthest
        if not due and self._saved < _CHEAPEST:  # so in most rounds: no path needs to be found
            return None
        path = _path(tree, self._taken)
        if not due and self._saved < len(path) + 1:
            return None
        self._farthest = max(self._farthest, cache.position)
        self._saved, self._taken = max(0.0, self._saved - len(path) - 1), self._taken + 1
        expected = cache.plain_logits([root, *(int(tree.tokens[node]) for node in path)])
        return CheckedRows(cache, [0, *(node + 1 for node in path)], expected)

    def compare(self, checked: CheckedRows, result: Pass) -> None:
        """Compare a drafted pass with the plain passes over some of its rows.

        Raises:
            DraftsRefusedError: drafts have changed this model's output; the runner verifies no more drafts.
        """
        differs = _differs(result.logits[checked.rows], checked.expected, rounding_dtype(self._runner.model))
        if not (differs or self._doubts):
            return
        self._doubts.append(differs)
        if sum(self._doubts) >= WRONG:
            reason = (
                "a check while decoding found that passes over drafts change this model's logits, so texts since the "
                "last one that passed may differ from plain decoding"
            )
            self._runner.capabilities = make_refused(self._runner.capabilities, reason)
            raise DraftsRefusedError(self._runner.capabilities.notes[-1])
        if len(self._doubts) >= DOUBTFUL:
            self._doubts = []


def _path(tree: DraftTree, number: int) -> list[int]:
    """Return a path from the root down, at most `DEEPEST` levels; each number selects another node."""
    node, path = number * 7 % len(tree), list[int]()
    while node != ROOT:
        path.insert(0, node)
        node = int(tree.parents[node])
    return path[:DEEPEST]


def _differs(ours: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Return whether rows [R, V] differ beyond rounding; in half precision, whether they would choose other tokens."""
    if dtype in (torch.float32, torch.float64):
        return bool(wrong_rows(ours, expected, dtype).numel())
    tolerance = TOLERANCES.get(dtype, TOLERANCES[torch.bfloat16])
    ours, expected = ours.double(), expected.double()
    chosen = expected.gather(-1, ours.argmax(-1, keepdim=True))[:, 0]
    return bool((expected.amax(-1) - chosen > tolerance * expected.std(-1)).any())
