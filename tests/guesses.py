"""Drafts that are good guesses at texts told before, for requests of several lengths."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from models import VOCABULARY
from speculant import Speculator
from speculant.core.drafter import Needs, Verified
from speculant.core.tree import DraftTree

LENGTHS = (9, 1, 30, 4, 17, 9)


class Guesses:
    """Drafts random trees around texts that it was told, each request its own; `failing` names prompts it fails on."""

    needs = Needs(top_k=2)

    def __init__(self, texts: dict[tuple[int, ...], Sequence[int]], failing: Sequence[tuple[int, ...]] = ()) -> None:
        self.texts, self.failing = texts, failing
        self.opened = self.closed = 0

    def open(self, prompt: Any, *, target: Any = None, seed: int = 0) -> GuessingSession:
        self.opened += 1
        key = tuple(prompt.tolist())
        return GuessingSession(self, self.texts[key], key in self.failing)


class GuessingSession:
    """One request's guesses."""

    def __init__(self, owner: Guesses, text: Sequence[int], fails: bool) -> None:
        self.owner, self.text, self.fails = owner, list(text), fails
        self.at, self.random = 0, random.Random(len(text))

    def propose(self, max_nodes: int) -> DraftTree:
        if self.fails and self.at > 5:
            raise ArithmeticError("a drafter's bug")
        paths = []
        for _ in range(self.random.randint(0, 4)):
            path = self.text[self.at : self.at + self.random.randint(1, 5)]
            if path and self.random.random() < 0.5:
                path[self.random.randrange(len(path))] = self.random.randrange(VOCABULARY)
            paths.append([*path, self.random.randrange(VOCABULARY)])
        return DraftTree.from_paths(paths).head(max_nodes)

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
    """Return what each request says when it is decoded alone and plainly."""
    speculator = Speculator.from_transformers(model, method="none")
    return [speculator.generate(prompt, **own).ids for prompt, own in zip(prompts(), options, strict=True)]


def guessing(model: Any, texts: Sequence[Sequence[int]], *, nodes: int | str = 12, **options: Any) -> Speculator:
    """Return a speculator whose drafts are good guesses at these texts."""
    speculator = Speculator.from_transformers(model, method="none", nodes=nodes)
    told = {tuple(prompt): text for prompt, text in zip(prompts(), texts, strict=True)}
    speculator.drafter = Guesses(told, **options)
    return speculator
