"""The mixture: what it looks at, what it comes to believe, and that its numbers stay numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mixtures import VOCABULARY, World
from speculant.drafters.mix.arrays import (
    BIASES,
    CACHE,
    COPY,
    FREQUENCIES,
    INPUTS,
    LOGIT,
    LONGEST_ROW,
    MAX_CANDIDATES,
    RECENCY,
    SETS,
    STATES,
)
from speculant.drafters.mix.contexts import SKIP, TARGET_ONE, TARGET_TWO
from speculant.drafters.mix.initial import new_mixer
from speculant.drafters.mix.mixer import count_token, frequency_bands, squash, train
from speculant.drafters.mix.repetition import NOWHERE


def test_squash_is_the_logistic_function() -> None:
    """Within 0.00002 of it wherever logits are, rising, and never above 1."""
    mixer = new_mixer(10)
    steps = np.linspace(-12, 12, 5000, dtype=np.float32)
    values = [squash(mixer, z) for z in steps]
    assert values == pytest.approx([1 / (1 + math.exp(-z)) for z in steps.tolist()], abs=2e-5)
    assert values == sorted(values)
    assert 0 < values[0] < values[-1] < 1


def test_logits_are_sums_over_all_inputs() -> None:
    """What is summed over the inputs that name a candidate equals the sum over all, in the state that each gives it."""
    world, random = World(), np.random.default_rng(5)
    world.learn(*(random.zipf(1.3, 600) % VOCABULARY).tolist())
    world.mixer.weights[:] = random.normal(0, 0.1, world.mixer.weights.shape)
    for copied, length in ((NOWHERE, 0), (7, 4), (int(world.text[-9]), 20)):
        count, features = world.gather(copied=copied, length=length), world.features
        states = np.repeat(features.absent[:, None], MAX_CANDIDATES, axis=1)
        states[RECENCY, :count] = features.recency[:count]
        begin = 0
        for i in range(COPY + 1):
            c, state = features.named[:, begin : features.ends[i]]
            states[i, c] = state
            begin = features.ends[i]
        for c in range(count):
            weights = world.mixer.weights[features.chosen[0]] + world.mixer.weights[SETS + features.bands[c]]
            logits = world.mixer.states[LOGIT, np.arange(INPUTS), states[:, c]]
            bias = world.mixer.biases[features.candidates[c] % BIASES]
            assert features.logits[c] == pytest.approx(np.append(logits, 1) @ weights + bias, abs=1e-4)


def test_tokens_have_biases() -> None:
    """What comes again and again becomes more probable by its own bias, and what is named in vain less."""
    world, fresh = World(), new_mixer(VOCABULARY)
    world.learn(*np.random.default_rng(4).integers(10, 20, 200).tolist())
    world.mixer.biases[:] = 0
    for _ in range(40):
        world.mixer.weights[:], world.mixer.states[:] = fresh.weights, fresh.states
        count = world.gather()
        train(world.mixer, world.features, count, np.int32(world.features.candidates[0]))
    right, *wrong = world.mixer.biases[world.features.candidates[:count]]
    assert right > 0.5
    assert max(wrong) < 0
    assert np.count_nonzero(world.mixer.biases) == count


def test_nothing_seen_nothing_named() -> None:
    """Without any text there are no candidates, and being surprised does no harm."""
    world = World()
    before = [array.copy() for array in world.mixer]
    assert world.gather() == 0
    train(world.mixer, world.features, 0, np.int32(5))
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
    rates, logits, seen = world.mixer.states
    assert rates.shape == (INPUTS, STATES)
    assert 0 < rates.min() <= rates.max() <= 0.9991
    assert logits == pytest.approx(np.log(rates / (1 - rates)), abs=1e-3)
    assert (logits[:, -1] == 0).all()
    assert seen.min() >= 0
    assert np.abs(world.mixer.weights).max() < 20
    assert world.mixer.steps[0] == len(tokens)
    assert seen[[TARGET_ONE, TARGET_TWO, COPY]].sum() == 0
    assert seen[[0, SKIP, CACHE, RECENCY]].sum(axis=1).min() > 0


def test_late_tokens() -> None:
    """The cache holds the recent tokens, heaviest first, and decays slowly; the counts are exact."""
    mixer, random = new_mixer(VOCABULARY), np.random.default_rng(3)
    text = [*(random.zipf(1.5, 3000) % 50), *[77] * 100]
    for token in text:
        count_token(mixer, np.int32(token))
    tokens, weights = mixer.cache
    assert mixer.frequency[:-1].tolist() == np.bincount(text, minlength=VOCABULARY).tolist()
    assert mixer.frequency[-1] == len(text)
    assert mixer.bands.tolist() == frequency_bands(mixer.frequency[:-1]).tolist()
    assert mixer.bands.max() == FREQUENCIES - 1
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
