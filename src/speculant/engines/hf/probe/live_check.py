"""A check while drafts are verified: a sample of their rows is computed once more, one token a pass.

The probe runs before the first draft, on random texts. What acts only on certain texts, at certain lengths or in
passes of certain sizes can slip past it, so drafted rows are compared with plain passes as long as the model is used,
beginning with the first.
A row of a draft costs as many plain passes as its path has tokens; they are saved up over many rounds, so that the
check costs 0.4 % of a plain pass per round. Two differences beyond rounding among four samples end drafting on this
model: a single one may be a tie between experts.
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

SAVED = 1 / 256  # of a plain pass, in every drafted round
FARTHEST = 128  # the position up to which the probe has looked
FARTHER = 1.25  # times as long as any text that was sampled: sampled at once
DEEPEST = 3  # levels below the root
DOUBTFUL = 4  # samples, in successive rounds, of which the first differs
WRONG = 2  # of these, which end drafting

Drafted = tuple[AnySequence, int, DraftTree]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Rows of a draft, and what plain passes return for them.

    Attributes:
        cache: of the sequence.
        rows: the rows of the drafted pass, from the root down.
        expected: [len(rows), V], their logits.
    """

    cache: AnySequence
    rows: list[int]
    expected: Tensor


class LiveCheck:
    """Compares rows of drafts on one model with plain passes. Not for several threads at once."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._saved, self._taken = DEEPEST + 1.0, 0  # the first round is one of the sample
        self._farthest = FARTHEST
        self._doubts: list[bool] = []  # whether each sample since the first doubtful one differed

    def sample(self, drafted: Sequence[Drafted]) -> Sample | None:
        """Return rows of one of these drafts, computed one by one, if it is time; the cache is left as it was.

        Raises:
            OutOfMemoryError: the device is full.
        """
        if not drafted:
            return None
        self._saved = min(self._saved + SAVED, DEEPEST + 1.0)
        cache, root, tree = drafted[self._taken % len(drafted)]
        path, far = _path(tree, self._taken), cache.position >= FARTHER * self._farthest
        if self._saved < len(path) + 1 and not self._doubts and not far:
            return None
        self._farthest = max(self._farthest, cache.position)
        self._saved, self._taken = max(0.0, self._saved - len(path) - 1), self._taken + 1
        expected = cache.plain_logits([root, *(int(tree.tokens[node]) for node in path)])
        return Sample(cache, [0, *(node + 1 for node in path)], expected)

    def compare(self, sample: Sample, result: Pass) -> None:
        """Compare a drafted pass with a sample of it.

        Raises:
            DraftsRefusedError: drafts have changed this model's output; the runner verifies none from now on.
        """
        differs = _differs(result.logits[sample.rows], sample.expected, rounding_dtype(self._runner.model))
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
    """Return the path of nodes from the root down to some node, another one for every number; at most `DEEPEST`."""
    node, path = number * 7 % len(tree), list[int]()
    while node != ROOT:
        path.insert(0, node)
        node = int(tree.parents[node])
    return path[:DEEPEST]


def _differs(ours: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Return whether rows [R, V] differ beyond rounding; in half precision, whether other tokens would be chosen."""
    if dtype in (torch.float32, torch.float64):
        return bool(wrong_rows(ours, expected, dtype).numel())
    tolerance = TOLERANCES.get(dtype, TOLERANCES[torch.bfloat16])
    ours, expected = ours.double(), expected.double()
    chosen = expected.gather(-1, ours.argmax(-1, keepdim=True))[:, 0]
    return bool((expected.amax(-1) - chosen > tolerance * expected.std(-1)).any())
