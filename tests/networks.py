"""A small language that a network learns and counts do not, for tests, and bases of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from speculant.drafters.mix.base import MixBase, read_base, write_base
from speculant.drafters.mix.base_builder import BaseBuilder
from speculant.drafters.mix.documents import Documents
from speculant.drafters.mix.score_training import token_rows, train_scorer
from speculant.drafters.mix.scores import Scorer

VOCABULARY = 1000
VERBS, CLASSES, NOUNS, GENDERS = 100, 25, 400, 4
ENDINGS = 500  # the first of them
BUDGET = 1 << 20


def sentences(seed: int, count: int) -> np.ndarray:
    """Return a text of a verb, a noun and the ending that the verb's class and the noun's gender ask for, repeatedly.

    Most of the 40,000 pairs of a verb and a noun are new in any text: what ends them follows from other pairs.
    """
    random = np.random.default_rng(seed)
    verbs, nouns = random.integers(0, VERBS, count), random.integers(0, NOUNS, count)
    endings = ENDINGS + verbs % CLASSES * GENDERS + nouns % GENDERS
    return np.stack([verbs, VERBS + nouns, endings], 1).ravel().astype(np.int32)


def trained(text: np.ndarray, *, seed: int = 0) -> Scorer:
    """Return a network that was trained on a text."""
    documents = Documents(ids=text, lengths=np.array([len(text)]), weights=np.ones(1, np.float32))
    counts = np.bincount(text, minlength=VOCABULARY).astype(float)
    return read_only(
        train_scorer(documents, token_rows(counts, BUDGET), counts, advance=lambda _tokens: None, seed=seed)
    )


def read_only(scorer: Scorer) -> Scorer:
    """Return a network whose arrays are as those of a file; for others numba would compile the kernels again."""
    for array in scorer:
        array.flags.writeable = False
    return scorer


@cache
def known() -> tuple[np.ndarray, Scorer]:
    """Return a text and a network that was trained on it."""
    text = sentences(0, 20_000)
    return text, trained(text)


def base_of(folder: Path, text: np.ndarray, scorer: Scorer | None) -> MixBase:
    """Return a base of a text with a network or without, opened from a file in the folder."""
    folder.mkdir()
    builder = BaseBuilder(folder, vocabulary=VOCABULARY)
    builder.add(text)
    lines = builder.build(BUDGET, lambda _tokens: None).lines
    write_base(folder / "base", lines, scorer, vocabulary=VOCABULARY, tokenizer="t", facts={})
    return read_base(folder / "base", vocabulary=VOCABULARY, tokenizer="t")
