"""Drafts that are good guesses at known texts, for requests of several lengths."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from models import VOCABULARY
from speculant import Speculator
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.tree import DraftTree

LENGTHS = (9, 1, 30, 4, 17, 9)


class Guesses(Drafter):
    """Drafts random trees around known texts, each request its own; `failing` names prompts it fails on."""

    def __init__(self, texts: dict[tuple[int, ...], Sequence[int]], failing: Sequence[tuple[int, ...]] = ()) -> None:
        self.texts, self.failing = texts, failing
        self.opened = self.closed = 0

    @property
    def needs(self) -> RequestedOutputs:
        return RequestedOutputs(top_k=2, always=True)

    def open(self, start: SessionRequest) -> GuessingSession:
        self.opened += 1
        key = tuple(start.prompt.tolist())
        return GuessingSession(self, self.texts[key], key in self.failing)


class GuessingSession(Session):
    """One request's guesses."""

    def __init__(self, owner: Guesses, text: Sequence[int], fails: bool) -> None:
        self.owner, self.text, self.fails, self.at = owner, list(text), fails, 0

    def propose(self, budget: Budget) -> DraftTree:
        if self.fails and self.at > 5:
            raise ArithmeticError("a drafter's bug")
        paths, source = [], random.Random(len(self.text) * 1000 + self.at)
        for _ in range(source.randint(0, 4)):
            path = self.text[self.at : self.at + source.randint(1, 5)]
            if path and source.random() < 0.5:
                path[source.randrange(len(path))] = source.randrange(VOCABULARY)
            paths.append([*path, source.randrange(VOCABULARY)])
        return DraftTree.from_paths(paths).head(budget.nodes).within(depth=budget.depth, trees=budget.trees)

    def observe(self, verified: Verified) -> None:
        assert verified.top_ids is not None
        assert verified.top_ids.shape == (len(verified.tree) + 1, 2)
        assert verified.tokens.tolist() == self.text[self.at : self.at + len(verified.tokens)]
        self.at += len(verified.tokens)

    def close(self) -> None:
        self.owner.closed += 1


def prompts() -> list[list[int]]:
    """Return prompts of different lengths."""
    source = np.random.default_rng(3)
    return [source.integers(3, VOCABULARY, length).tolist() for length in LENGTHS]


def alone(model: Any, options: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Return each request's text when it is decoded alone and plainly."""
    speculator = Speculator.from_transformers(model, method="none")
    return [
        speculator.generate(prompt, **own).ids for prompt, own in zip(prompts()[: len(options)], options, strict=True)
    ]


def guessing(model: Any, texts: Sequence[Sequence[int]], *, nodes: int | str = 12, **options: Any) -> Speculator:
    """Return a speculator whose drafts are good guesses at these texts."""
    speculator = Speculator.from_transformers(model, method="none", nodes=nodes)
    known = {tuple(prompt): text for prompt, text in zip(prompts()[: len(texts)], texts, strict=True)}
    speculator.drafter = Guesses(known, **options)
    return speculator
