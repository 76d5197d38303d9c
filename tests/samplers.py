"""Samplers for tests of verifiers: scripted tokens, and every outcome of every draw with its exact probability."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from speculant.core.engine import EngineArray
from speculant.core.sampler import Sampler
from speculant.core.tree import DraftTree

Text = tuple[int, ...]
Distribution = Callable[[Text], Sequence[float]]
Outcome = TypeVar("Outcome")


class ScriptedSampler(Sampler):
    """Draws the tokens of a list, one after another, and remembers the rows asked for."""

    def __init__(self, tokens: Sequence[int], *, end: int | None = None, room: int = 1 << 30) -> None:
        self._script, self._end, self._room = list(tokens), end, room
        self.tokens: list[int] = []
        self.rows: list[int] = []
        self.drawn: list[Any] | None = None

    @property
    def room(self) -> int:
        return self._room - len(self.tokens)

    def load(self, logits: EngineArray) -> None:
        pass

    def draw_all(self, tree: DraftTree) -> EngineArray | None:
        return None

    def set_drawn(self, drawn: list[Any]) -> None:
        self.drawn = drawn

    def draw(self, row: int) -> int:
        self.rows.append(row)
        return self._script[len(self.rows) - 1]

    def commit(self, token: int) -> bool:
        self.tokens.append(token)
        return token == self._end or not self.room

    def end_round(self) -> None:
        pass


class Branches:
    """Outcomes of draws: those of the script first, then the first possible one, with all alternatives kept."""

    def __init__(self, script: Sequence[int]) -> None:
        self.probability = 1.0
        self.taken: list[int] = []
        self.open: list[list[int]] = []  # scripts of the outcomes not taken
        self._script = script

    def take(self, distribution: Sequence[float]) -> int:
        """Return an outcome of a draw with these probabilities."""
        if len(self.taken) < len(self._script):
            outcome = self._script[len(self.taken)]
        else:
            possible = [i for i, probability in enumerate(distribution) if probability > 0]
            outcome = possible[0]
            self.open += [[*self.taken, other] for other in possible[1:]]
        self.taken.append(outcome)
        self.probability *= distribution[outcome]
        return outcome


class EnumeratingSampler(Sampler):
    """Draws from a table of exact probabilities by the text, and branches at every draw.

    A pass's rows have the distribution after the text that they stand for, so a verifier that asks for the wrong row
    or at the wrong time is found out.
    """

    def __init__(
        self, distribution: Distribution, branches: Branches, *, text: Text = (), length: int, end: int | None = None
    ) -> None:
        self._law, self._branches, self._length, self._end = distribution, branches, length, end
        self.tokens = list(text)
        self._rows: list[Text] = []

    @property
    def room(self) -> int:
        return self._length - len(self.tokens)

    def load(self, logits: EngineArray) -> None:
        """Take the text that each row stands for."""
        self._rows = logits

    def draw_all(self, tree: DraftTree) -> EngineArray | None:
        return None

    def set_drawn(self, drawn: list[Any]) -> None:
        raise AssertionError("nothing was chosen beforehand")

    def draw(self, row: int) -> int:
        assert self._rows[row] == tuple(self.tokens)
        return self._branches.take([float(p) for p in self._law(self._rows[row])])

    def commit(self, token: int) -> bool:
        self.tokens.append(token)
        return token == self._end or not self.room

    def end_round(self) -> None:
        pass


def rows_of(tree: DraftTree, text: Text) -> list[Text]:
    """Return the text that each row of a pass stands for."""
    return [text, *(text + tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree)))]


def enumerate_outcomes(run: Callable[[Branches], Outcome]) -> Iterator[tuple[Outcome, float]]:
    """Yield every outcome of `run` with its probability, one per sequence of draws."""
    scripts: list[list[int]] = [[]]
    while scripts:
        branches = Branches(scripts.pop())
        yield run(branches), branches.probability
        scripts += branches.open
