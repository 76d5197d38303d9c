"""The network that scores candidates: its kernels, and bases that hold one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from mixes import check, drafter, play, trees
from networks import VOCABULARY, base_of, known, read_only, sentences
from rounds import budget, start
from speculant.core.errors import CorruptMemoryError, ForeignMemoryError
from speculant.drafters.mix.arrays import BASE_CONTEXTS, FREQUENCIES, INPUTS, LOGIT, new_features
from speculant.drafters.mix.base import MixBase, read_base
from speculant.drafters.mix.initial import new_mixer
from speculant.drafters.mix.memory import MIX
from speculant.drafters.mix.mixer import add_scores, score_bounds
from speculant.drafters.mix.scores import (
    BIAS,
    BINS,
    CONSTANT,
    DECAY,
    DIMENSIONS,
    EARLIER,
    INNER,
    LATEST,
    OUTER,
    OUTPUT,
    PLACES,
    SCALE,
    TOPIC,
    WEIGHTS,
    Scorer,
    add_to_topic,
    no_scorer,
    query,
    score,
    score_rates,
)
from speculant.memory.file import read_any_memory, write_memory
from tables import ids


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> tuple[MixBase, MixBase]:
    """Return a base without a network, and one of the same text with it."""
    folder, (text, scorer) = tmp_path_factory.mktemp("bases"), known()
    return base_of(folder / "without", text, None), base_of(folder / "with", text, scorer)


def noise() -> Scorer:
    """Return a network with random values of a usual size."""
    random = np.random.default_rng(0)
    return read_only(
        Scorer(
            random.integers(0, 40, VOCABULARY).astype(np.uint16),
            random.integers(-127, 128, (3, 40, DIMENSIONS)).astype(np.int8),
            (random.standard_normal((WEIGHTS, DIMENSIONS)) * 0.02).astype(np.float32),
        )
    )


def test_scores_are_those_of_the_formula() -> None:
    """States of candidates are binned products of their vectors with what layers and topic make of the last tokens."""
    rows, tables, weights = noise()
    text, candidates = [7, 3, 900, 12, 5, 77, 800], [1, 500, 999, 7]
    topic = np.zeros(DIMENSIONS, np.float32)
    mean = np.zeros(DIMENSIONS)
    for token in text:
        add_to_topic(noise(), topic, np.int32(token))
        mean = DECAY * mean + (1 - DECAY) * tables[EARLIER, rows[token]]
    np.testing.assert_allclose(topic, mean, rtol=1e-4, atol=1e-5)
    x = weights[TOPIC] * mean
    for place in range(PLACES):
        x = x + weights[place] * tables[LATEST if place == 0 else EARLIER, rows[text[-1 - place]]]
    hidden = np.maximum(weights[INNER:OUTER] @ x + weights[BIAS], 0)
    q = (x + weights[OUTER:] @ hidden) * weights[SCALE]
    q[CONSTANT] = weights[SCALE, CONSTANT]
    expected = np.clip(np.floor(tables[OUTPUT, rows[candidates]] @ q * 8 + BINS), 0, BINS - 1)
    integers = np.empty(DIMENSIONS, np.float32)
    unit = query(noise(), ids(text), topic, integers)
    found = [score(noise(), integers, unit, token) for token in candidates]
    assert np.abs(found - expected).max() <= 1  # of a value at the border of a bin
    np.testing.assert_allclose(score_rates()[[-1, -9]], np.exp([-1 / 16, -17 / 16]))


def test_short_texts_and_tokens_beyond_the_vocabulary() -> None:
    """A text shorter than the network's places has a score, and so have ids that only the model knows."""
    q = np.empty(DIMENSIONS, np.float32)
    for text in ([], [3], [VOCABULARY + 1, 2]):
        unit = query(noise(), ids(text), np.zeros(DIMENSIONS, np.float32), q)
        assert all(0 <= score(noise(), q, unit, token) < BINS for token in (5, VOCABULARY + 7))


def test_only_hopeless_candidates_have_no_score() -> None:
    """Logits above a bound are those of scoring all candidates; what is left out would have stayed below it."""
    random, count = np.random.default_rng(1), 40
    mixer, window = new_mixer(VOCABULARY, 1, scored=True), ids([7, 3, 900, 12, 5])
    mixer.states[LOGIT, -1, :BINS] = random.normal(-1, 1.5, BINS)
    topic = np.zeros(DIMENSIONS, np.float32)

    def logits(minimum: float) -> np.ndarray:
        features = new_features(INPUTS + BASE_CONTEXTS + 1)
        features.candidates[:count] = np.random.default_rng(2).integers(0, VOCABULARY, count)
        features.bands[:count] = np.random.default_rng(3).integers(0, FREQUENCIES, count)
        features.logits[:count] = np.random.default_rng(4).normal(-2, 2, count)
        features.sums[:] = np.random.default_rng(5).normal(0.2, 0.4, features.sums.shape)
        add_scores(mixer, noise(), window, topic, features, count, minimum, score_bounds(mixer))
        return features.logits[:count].copy()

    whole = logits(-np.inf)
    for minimum in (-3.0, -1.0, 1.0):
        kept = logits(minimum) == whole
        assert 0 < kept.sum() < count
        assert (whole[~kept] <= minimum).all()
        assert (logits(minimum)[~kept] < -11).all()
    assert score_bounds(new_mixer(VOCABULARY)) == (0, 0)  # without a network nothing happens
    add_scores(new_mixer(9), no_scorer(), window, topic, new_features(INPUTS), 0, 0.0, (0.0, 0.0))


def test_a_network_adds_to_a_base(bases: tuple[MixBase, MixBase]) -> None:
    """Pairs that the corpus lacks are continued better than by counts alone, as trees and as chains."""
    new = sentences(1, 150)
    without, held = drafter(bases=bases[:1]), drafter(bases=bases[1:])
    assert play(held, new, nodes=6).mat > 1.1 * play(without, new, nodes=6).mat
    tree = held.open(start(new[:50])).propose(budget(16))
    check(tree, 16)
    chain = held.open(start(new[:50])).propose(budget(6, trees=False))
    assert chain.parents.tolist() == list(range(-1, len(chain) - 1))
    after = held.open(start(new[:50])).propose_after(new[50:52].tolist(), budget(6))
    check(after, 6)


def test_memories_are_exchanged(bases: tuple[MixBase, MixBase], tmp_path: Path) -> None:
    """A memory learned with a network loads without one and back, and merges with one that has none."""
    text = sentences(2, 90)
    choices = ((), bases[:1], bases[1:], bases)
    for number, saving in enumerate(choices):
        learned = drafter(bases=saving)
        play(learned, text)
        learned.save(tmp_path / str(number))
        for loading in choices:
            held = drafter(bases=loading)
            held.load(tmp_path / str(number))
            assert play(held, text).mat > 8
        same = drafter(bases=saving)
        same.load(tmp_path / str(number))
        assert trees(same, text[:40]) == trees(learned, text[:40])
    arrays, facts = MIX.merge([read_any_memory(tmp_path / str(number)) for number in range(4)], 8 << 20)
    write_memory(tmp_path / "merged", kind="mix", tokenizer="t", arrays=arrays, facts=facts)
    held = drafter(bases=bases)
    held.load(tmp_path / "merged")
    assert play(held, text).mat > 8


def test_files_that_cannot_be_used(bases: tuple[MixBase, MixBase], tmp_path: Path) -> None:
    """A network that is incomplete, of other shapes, of another version or with rows that do not exist is refused."""
    good = read_any_memory(bases[1].path)
    tables = good.arrays["scores.tables"]
    broken = {
        "missing": {name: array for name, array in good.arrays.items() if name != "scores.weights"},
        "small": {**good.arrays, "scores.tables": tables[:, : tables.shape[1] // 2]},
        "wide": {**good.arrays, "scores.tables": np.zeros((3, 9999, 32), np.int8)},
        "short": {**good.arrays, "scores.rows": good.arrays["scores.rows"][:-1]},
    }
    for name, arrays in broken.items():
        write_memory(tmp_path / name, kind="mix-base", tokenizer="t", arrays=arrays, facts=good.facts)
        with pytest.raises(CorruptMemoryError, match="no valid network"):
            read_base(tmp_path / name, vocabulary=VOCABULARY, tokenizer="t")
    later = {**good.facts, "scores": 2}
    write_memory(tmp_path / "later", kind="mix-base", tokenizer="t", arrays=good.arrays, facts=later)
    with pytest.raises(ForeignMemoryError, match="network of format 2"):
        read_base(tmp_path / "later", vocabulary=VOCABULARY, tokenizer="t")


@pytest.mark.parametrize("value", [0, 0x7F, 0xFF])
def test_damaged_networks_cost_drafts_only(bases: tuple[MixBase, MixBase], value: int) -> None:
    """Values are not verified when a file is mapped: any bits, NaN among them, yield trees of known tokens."""
    base = bases[1]
    assert base.scorer is not None
    weights = np.full(base.scorer.weights.nbytes, value, np.uint8).view(np.float32).reshape(base.scorer.weights.shape)
    weights.flags.writeable = False
    damaged = dataclasses.replace(base, scorer=base.scorer._replace(weights=weights))
    held = drafter(bases=[damaged])
    text = sentences(3, 100)
    assert play(held, text, text).mat > 0.9 * play(drafter(), text, text).mat
    check(held.open(start(text[:50])).propose(budget(32)), 32)
