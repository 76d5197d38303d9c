"""The mixture: what it looks at, what it comes to believe, and that its numbers stay numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from speculant.drafters.cells import UNIT, Cells, find, new_cells, observe
from speculant.drafters.contexts import CONTEXTS, ECHO_ONE, ECHO_TWO, LEARNED, SKIP, WIDE, WINDOW, hash_contexts
from speculant.drafters.copying import NOWHERE
from speculant.drafters.mixing import (
    CACHE,
    COPY,
    INPUTS,
    LONGEST_ROW,
    RECENCY,
    STATES,
    Scratch,
    correct,
    gather,
    new_mixer,
    new_scratch,
    remember,
    squash,
)
from tables import ids

VOCABULARY = 100


class World:
    """Tables and a mixture that learn a text token by token, each context's row from the first time on."""

    def __init__(self) -> None:
        self.narrow = new_cells(4, 1 << 20, first_bits=9)
        self.wide = new_cells(LONGEST_ROW, 1 << 20, first_bits=6)
        self.mixer = new_mixer(VOCABULARY)
        self.text: list[int] = []
        self.last_use = np.full(VOCABULARY, -1, np.int32)
        self.scratch: Scratch = new_scratch()

    def table(self, context: int) -> Cells:
        """Return the table in which a context's row stands."""
        return self.wide if WIDE[context] else self.narrow

    def hashes(self) -> np.ndarray:
        """Return the contexts at the end of the text."""
        hashes = np.empty(CONTEXTS, np.uint64)
        window = ids(self.text[-WINDOW:])
        hash_contexts(window, len(window), self.mixer.frequency, hashes)
        return hashes

    def gather(self, *, copied: int = NOWHERE, length: int = 0, most: int = LONGEST_ROW) -> int:
        """Collect the candidates for the next token."""
        return gather(
            self.narrow, self.wide, self.mixer, self.hashes(), copied, length, self.last_use, len(self.text), most,
            self.scratch,
        )  # fmt: skip

    def probabilities(self) -> dict[int, float]:
        """Return each candidate's probability."""
        count = self.gather()
        logits = self.scratch.logits[:count]
        return {
            token: squash(self.mixer, z) for token, z in zip(self.scratch.candidates.tolist(), logits, strict=False)
        }

    def learn(self, *tokens: int) -> None:
        """Weigh the evidence for each token, then learn it."""
        for token in tokens:
            correct(self.mixer, self.scratch, self.gather(), token)
            hashes = self.hashes()
            for context in range(LEARNED):
                if hashes[context]:
                    observe(self.table(context), hashes[context], token, 8 * UNIT)
            remember(self.mixer, token)
            self.last_use[token] = len(self.text)
            self.text.append(token)


def test_squash_is_the_logistic_function() -> None:
    """Within 0.00002 of it wherever logits are, rising, and never above 1."""
    mixer = new_mixer(10)
    steps = np.linspace(-12, 12, 5000, dtype=np.float32)
    values = [squash(mixer, z) for z in steps]
    assert values == pytest.approx([1 / (1 + math.exp(-z)) for z in steps.tolist()], abs=2e-5)
    assert values == sorted(values)
    assert 0 < values[0] < values[-1] < 1


def test_candidates_are_what_the_rows_name() -> None:
    """Every token of every row, of the late ones and of the repetition, once each, and no other."""
    world = World()
    world.learn(*np.random.default_rng(0).integers(0, 60, 400).tolist())
    hashes = world.hashes()
    rows = []
    for context in range(CONTEXTS):
        cell = find(world.table(context), hashes[context])
        if cell >= 0:
            rows.append(world.table(context).entries.reshape(-1, world.table(context).entries.shape[2])[cell])
    named = {int(entry) % (1 << 20) for row in rows for entry in row if entry >> 20 & 127}
    late = set(world.mixer.cache[0].tolist())
    assert named - late
    assert len(late) == LONGEST_ROW
    for copied, more in ((NOWHERE, set()), (99, {99})):
        count = world.gather(copied=copied, length=5)
        candidates = world.scratch.candidates[:count].tolist()
        assert len(set(candidates)) == count
        assert set(candidates) == named | late | more
    few = world.scratch.candidates[: world.gather(most=2)].tolist()
    assert set(few) < set(candidates)
    assert set(few) >= set(world.mixer.cache[0, :2].tolist())


def test_nothing_seen_nothing_named() -> None:
    """Without any text there are no candidates, and being surprised does no harm."""
    world = World()
    before = [array.copy() for array in world.mixer]
    assert world.gather() == 0
    correct(world.mixer, world.scratch, 0, 5)
    same = [np.array_equal(one, two) for one, two in zip(before, world.mixer, strict=True)]
    assert same == [name != "steps" for name in world.mixer._fields]


def test_what_always_follows_becomes_certain() -> None:
    """A token that always follows tends to 1, those that come elsewhere but never here to 0."""
    world, random = World(), np.random.default_rng(1)
    before = {}
    for turn in range(700):
        world.learn(1)
        if turn == 3:
            before = world.probabilities()
        world.learn(2, int(random.integers(10, 14)))
    world.learn(1)
    after = world.probabilities()
    assert before[2] < after[2]
    assert after[2] > 0.99
    assert set(after) == {1, 2, 10, 11, 12, 13}
    assert max(p for token, p in after.items() if token != 2) < 0.005
    world.learn(2)
    coin = world.probabilities()
    assert [coin[token] for token in range(10, 14)] == pytest.approx([0.25] * 4, abs=0.15)
    assert sum(coin.values()) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("text", ["one token", "always new", "noise", "turns"])
def test_numbers_stay_in_bounds(text: str) -> None:
    """Rates stay off 0 and 1, logits are those of the rates, weights stay finite, whatever comes."""
    world, random = World(), np.random.default_rng(2)
    tokens = {
        "one token": [3] * 3000,
        "always new": [i % VOCABULARY for i in range(3000)],
        "noise": random.integers(0, VOCABULARY, 3000).tolist(),
        "turns": [*[3, 4] * 700, *[3, 5] * 700],
    }[text]
    world.learn(*tokens)
    rates, logits, seen = world.mixer.evidence
    assert rates.shape == (INPUTS, STATES)
    assert 0 < rates.min() <= rates.max() <= 0.9991
    assert logits == pytest.approx(np.log(rates / (1 - rates)), abs=1e-3)
    assert (logits[:, -1] == 0).all()
    assert seen.min() >= 0
    assert np.abs(world.mixer.weights).max() < 20
    assert world.mixer.steps[0] == len(tokens)
    assert seen[[ECHO_ONE, ECHO_TWO, COPY]].sum() == 0
    assert seen[[0, SKIP, CACHE, RECENCY]].sum(axis=1).min() > 0


def test_late_tokens() -> None:
    """The cache holds the tokens of late, heaviest first, and forgets slowly; the counts are exact."""
    mixer, random = new_mixer(VOCABULARY), np.random.default_rng(3)
    text = [*(random.zipf(1.5, 3000) % 50), *[77] * 100]
    for token in text:
        remember(mixer, int(token))
    tokens, weights = mixer.cache
    assert mixer.frequency[:-1].tolist() == np.bincount(text, minlength=VOCABULARY).tolist()
    assert mixer.frequency[-1] == len(text)
    assert len(set(tokens.tolist())) == LONGEST_ROW
    assert weights.tolist() == sorted(weights.tolist(), reverse=True)
    assert tokens[:2].tolist() == [77, 1]
    assert 0.9 < weights.sum() / 2**20 / 200 < 1.02


def test_the_same_on_every_run() -> None:
    """The same text gives the same mixture to the last bit: engines with several ranks must draft alike."""
    mixers = []
    for _ in range(2):
        world = World()
        world.learn(*(np.random.default_rng(4).zipf(1.4, 500) % VOCABULARY).tolist())
        mixers.append(world.mixer)
    assert all(np.array_equal(one, two) for one, two in zip(*mixers, strict=True))
