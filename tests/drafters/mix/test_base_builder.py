"""Building a base: probabilities against a slow count, pruning, checkpoints, and what cannot be built."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bases import built
from mixes import VOCABULARY, language
from speculant.core.errors import FileError
from speculant.drafters.mix.arrays import BASE_CONTEXTS, LEVEL_BITS, LINE
from speculant.drafters.mix.base import level_probabilities, token_bits
from speculant.drafters.mix.base_builder import BaseBuilder
from speculant.drafters.mix.contexts import CONTEXTS, hash_contexts
from speculant.drafters.mix.scores import DIMENSIONS, WEIGHTS

BITS = token_bits(VOCABULARY)


def successors(lines: np.ndarray, context: list[int]) -> dict[int, float]:
    """Return the tokens that a base names after a context, and their probabilities."""
    hashes = np.zeros(CONTEXTS, np.uint64)
    window = np.array(context, np.int32)
    hash_contexts(window, len(window), np.zeros(VOCABULARY + 1, np.int64), hashes)
    hashed = int(hashes[len(context) - 1])
    line = lines[((hashed >> 32) * len(lines)) >> 32].astype(np.int64)
    check = hashed & ((1 << (32 - LEVEL_BITS - BITS)) - 1)
    mine = line[(line >> (BITS + LEVEL_BITS) == check) & (line != 0)]
    found = level_probabilities()[(mine >> BITS) & ((1 << LEVEL_BITS) - 1)]
    assert found.tolist() == sorted(found.tolist(), reverse=True)
    return dict(zip((mine & ((1 << BITS) - 1)).tolist(), found.tolist(), strict=True))


def test_frequent_successors_are_named_with_their_shares() -> None:
    """The best successor has about its share of the counts after a context, or after the next shorter one named."""
    text = language(0, 20000)
    base = built([text], vocabulary=VOCABULARY)
    for length in range(1, BASE_CONTEXTS + 1):
        grams = Counter(tuple(text[i : i + length].tolist()) for i in range(len(text) - length))
        context, total = grams.most_common(1)[0]
        following = Counter(
            int(text[i + length]) for i in range(len(text) - length) if tuple(text[i : i + length].tolist()) == context
        )
        token, count = following.most_common(1)[0]
        found = [successors(base.lines, list(context[-known:])).get(token) for known in range(length, 0, -1)]
        assert next(p for p in found if p is not None) == pytest.approx(count / total, rel=0.5)


def test_entries_that_add_nothing_are_left_out() -> None:
    """A longer context whose successor follows the shorter one just as surely has no entry."""
    text = np.tile([1, 2, 3, 4, 5], 400)
    base = built([text], vocabulary=VOCABULARY)
    assert successors(base.lines, [3]) == {4: pytest.approx(0.9)}
    assert base.entries < 2.5 * 5


def test_a_small_budget_keeps_what_adds_most() -> None:
    """The file stays within its budget, and what is drafted most often is still known."""
    text = language(1, 20000)
    whole = built([text], vocabulary=VOCABULARY)
    budget = whole.lines.nbytes // 4
    pruned = built([text], vocabulary=VOCABULARY, budget=budget)
    assert pruned.lines.nbytes <= budget
    assert pruned.entries >= 0.6 * budget / 4
    assert pruned.entries + pruned.dropped == whole.entries + whole.dropped
    token = Counter(text.tolist()).most_common(1)[0][0]
    best = next(iter(successors(whole.lines, [token])))
    assert best in successors(pruned.lines, [token])


def test_contexts_do_not_cross_documents() -> None:
    """The last token of a document is no context of the next one's first."""
    base = built([np.array([1, 2])] * 20 + [np.array([3, 4])] * 20, vocabulary=VOCABULARY)
    assert list(successors(base.lines, [1])) == [2]
    assert successors(base.lines, [2]) == {}


def test_large_buckets_are_counted_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record is counted once, those of one last token together, and no file is left behind."""
    monkeypatch.setattr("speculant.drafters.mix.base_builder._GROUP", 50)
    builder, text = BaseBuilder(tmp_path, vocabulary=VOCABULARY), language(3, 20000)
    builder.add(text)
    builder.checkpoint()
    files = sorted(tmp_path.iterdir())
    groups = list(builder._groups())
    tokens = [set(group["window"][:, 0].tolist()) for group in groups]
    assert sum(map(len, tokens)) == len(set(text[:-1].tolist()))
    assert sum(map(len, groups)) == len(text) - 1
    assert Counter(np.concatenate(groups)["token"].tolist()) == Counter(text[1:].tolist())
    assert len(groups) > 100
    assert sorted(tmp_path.iterdir()) == files


def test_weights(tmp_path: Path) -> None:
    """A document counts as often as its weight says."""
    builder = BaseBuilder(tmp_path, vocabulary=VOCABULARY)
    builder.add([1, 2] * 50, weight=1)
    builder.add([1, 3] * 50, weight=4)
    assert list(successors(builder.build(1 << 16, lambda _tokens: None).lines, [1])) == [3, 2]


def test_a_checkpoint_goes_on_to_the_same_base(tmp_path: Path) -> None:
    """What was added after a checkpoint is dropped, and the rest of the corpus then gives the same file."""
    parts = [language(seed, 4000) for seed in range(3)]
    first = BaseBuilder(tmp_path, vocabulary=VOCABULARY)
    first.add(parts[0])
    state = first.checkpoint()
    first.add(parts[2])
    first.checkpoint()
    second = BaseBuilder(tmp_path, vocabulary=VOCABULARY, state=state)
    second.add(parts[1])
    again = second.build(1 << 20, lambda _tokens: None)
    assert second.tokens == 8000
    np.testing.assert_array_equal(again.lines, built(parts[:2], vocabulary=VOCABULARY).lines)


def test_progress_counts_every_token_with_a_context(tmp_path: Path) -> None:
    """What `advance` is given adds up."""
    counted: list[int] = []
    text = language(2, 1000)
    builder = BaseBuilder(tmp_path, vocabulary=VOCABULARY)
    builder.add(text)
    builder.build(1 << 16, counted.append)
    assert sum(counted) == len(text) - 1


def test_what_cannot_be_built(tmp_path: Path) -> None:
    """Ids beyond the vocabulary, a folder that lost its records, and none; an empty corpus gives an empty base."""
    builder = BaseBuilder(tmp_path, vocabulary=VOCABULARY)
    with pytest.raises(ValueError, match="token ids must be from 0 to 999"):
        builder.add([VOCABULARY])
    builder.add(language(0, 300))
    state = builder.checkpoint()
    for path in tmp_path.glob("contexts-*"):
        path.write_bytes(b"")
    with pytest.raises(FileError, match="lacks records"):
        BaseBuilder(tmp_path, vocabulary=VOCABULARY, state=state)
    with pytest.raises(FileError, match="temporary files"):
        BaseBuilder(tmp_path / "nowhere", vocabulary=VOCABULARY)
    empty = built([], vocabulary=VOCABULARY)
    assert empty.entries == 0
    assert empty.lines.shape == (1, LINE)


def test_a_network_is_trained_on_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A builder that goes on from a checkpoint trains the same network; too few tokens or too little room give none."""
    monkeypatch.setattr("speculant.drafters.mix.base_builder._TRAINABLE", 1000)
    monkeypatch.setattr("speculant.drafters.mix.base_builder._FEWEST_ROWS", 10)
    parts = [language(seed, 700) for seed in range(3)]
    (tmp_path / "whole").mkdir()
    whole = BaseBuilder(tmp_path / "whole", vocabulary=VOCABULARY)
    whole.add(parts[0])
    assert whole.train_scorer(1 << 20, print) is None
    state = BaseBuilder(tmp_path, vocabulary=VOCABULARY)
    state.add(parts[0])
    checkpoint = state.checkpoint()
    state.add(parts[2])
    state.checkpoint()
    resumed = BaseBuilder(tmp_path, vocabulary=VOCABULARY, state=checkpoint)
    for builder in (whole, resumed):
        builder.add(parts[1], weight=2)
    assert whole.train_scorer(2 * VOCABULARY, print) is None
    budget = 2 * VOCABULARY + 4 * WEIGHTS * DIMENSIONS + 40 * 3 * DIMENSIONS
    networks = [builder.train_scorer(budget, lambda _tokens: None) for builder in (whole, resumed)]
    assert networks[0] is not None
    assert networks[1] is not None
    assert networks[0].tables.shape[1] == 40
    for one, two in zip(*networks, strict=True):
        np.testing.assert_array_equal(one, two)


def test_entries_are_kept_where_there_is_room() -> None:
    """With a budget of many times the size few entries are lost to full lines, and the file is not blown up."""
    base = built([language(1, 20000)], vocabulary=VOCABULARY, budget=1 << 24)
    assert base.entries > 1000
    assert base.dropped - base.surplus < base.entries // 30
    assert base.lines.nbytes < 10 * base.entries
