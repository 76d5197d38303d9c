"""Every outcome of a program's random choices: it runs once for each, with the probability of all its choices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from speculant.verifiers import rule
from speculant.verifiers.forest import Forest
from speculant.verifiers.rule import Choice
from speculant.verifiers.speculative_sampling import SpeculativeSampling


class Outcomes:
    """Replaces random choices by a script, and notes the scripts that lead to the outcomes not seen yet."""

    def __init__(self) -> None:
        self._scripts, self._script, self._place = [list[int]()], list[int](), 0
        self._chances = list[float]()

    def __iter__(self) -> Iterator[Outcomes]:
        """Yield before each run of the program, until all outcomes have been seen."""
        while self._scripts:
            self._script, self._place, self._chances = self._scripts.pop(), 0, []
            yield self

    @property
    def probability(self) -> float:
        """Return the probability of the choices of this run."""
        return math.prod(self._chances)

    def pick(self, chances: Sequence[float]) -> int:
        """Return the index that the script chooses, among those with a chance above 0."""
        if self._place == len(self._script):
            first, *others = [index for index, chance in enumerate(chances) if chance > 0]
            self._scripts += [[*self._script, other] for other in others]
            self._script = [*self._script, first]
        index = self._script[self._place]
        self._place += 1
        self._chances.append(chances[index] / math.fsum(chances))
        return index

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Take every random choice of drafting by a model, of speculative sampling, and of the target's own tokens."""
        choose = SpeculativeSampling.choose

        def draw(p: Tensor, uniforms: Tensor) -> Tensor:
            return torch.tensor([self.pick(p[0].double().tolist())])

        def draw_some(q: Tensor, count: int, replacement: bool = False, *, generator: torch.Generator) -> Tensor:
            left, tokens = q.double().flatten().tolist(), list[int]()
            for _ in range(count):
                tokens.append(self.pick(left))
                left = left if replacement else [*left[: tokens[-1]], 0.0, *left[tokens[-1] + 1 :]]
            return torch.tensor(tokens)

        def test(self_: SpeculativeSampling, forest: Forest, rows: Tensor, p: Tensor, uniforms: Tensor) -> Choice:
            tests = torch.full_like(uniforms, 1 - 2**-53)  # fails each test that can fail
            rates = choose(self_, forest, rows, p, tests).rates[0].tolist()
            for place, rate in enumerate(rates[: len(forest.below[0][int(rows)])]):
                if self.pick([rate, 1 - rate]) == 0:
                    tests[0, place] = 0
                    break
            return choose(self_, forest, rows, p, tests)

        patch.setattr(torch, "multinomial", draw_some)
        patch.setattr(rule, "draw", draw)
        patch.setattr(SpeculativeSampling, "choose", test)
