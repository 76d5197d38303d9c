"""Shared n-grams of tokens."""

from __future__ import annotations

import numpy as np

from speculant.memory.ngrams import LENGTH, NgramSet


def test_a_shared_ngram_is_found_anywhere() -> None:
    """At the beginning, in the middle and at the end, but not where it is interrupted."""
    known = np.arange(100, 140)
    held = NgramSet()
    held.add(known)
    quotation = known[5 : 5 + LENGTH].tolist()
    assert held.shares(quotation)
    assert held.shares([1, 2, *quotation])
    assert held.shares([*quotation, 1])
    assert not held.shares([*quotation[:6], 1, *quotation[6:]])
    assert not held.shares(quotation[1:])
    assert not held.shares(quotation[::-1])


def test_texts_shorter_than_an_ngram() -> None:
    """They have none: nothing is excluded by them, and they are not excluded."""
    held = NgramSet(3)
    held.add([1, 2])
    held.add([])
    assert len(held) == 0
    assert not held.shares([1, 2])
    held.add([1, 2, 3])
    assert len(held) == 1
    assert not held.shares([])
    assert held.shares([0, 1, 2, 3])


def test_random_texts_share_nothing() -> None:
    """Hashes of 64 bits do not collide on any corpus of practical size."""
    generator = np.random.default_rng(1)
    held = NgramSet()
    for _ in range(20):
        held.add(generator.integers(0, 50, 2000))
    assert len(held) == 20 * (2000 - LENGTH + 1)
    assert not any(held.shares(generator.integers(0, 50, 2000)) for _ in range(20))


def test_removed_ngrams() -> None:
    """What a chat template writes is not compared."""
    held = NgramSet(3)
    held.add([1, 2, 3, 4])
    held.remove([1, 2, 3, 9])
    assert not held.shares([1, 2, 3])
    assert held.shares([2, 3, 4])
