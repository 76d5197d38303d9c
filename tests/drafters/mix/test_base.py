"""Frozen bases under `mix`: what they add to drafts, and files that cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bases import opened, saved_base
from mixes import VOCABULARY, check, drafter, language, play, trees
from rounds import budget, start
from speculant.core.errors import CorruptMemoryError, FileError, ForeignMemoryError, UnsupportedError
from speculant.drafters.mix.arrays import LEVELS
from speculant.drafters.mix.base import (
    MixBase,
    level_probabilities,
    levels,
    read_base,
    scorer_in_use,
    token_bits,
    write_base,
)
from speculant.drafters.mix.memory import MIX
from speculant.drafters.mix.scores import no_scorer
from speculant.memory.file import read_any_memory, write_memory

CORPUS = [language(0, 3000)]


def test_a_base_is_known_from_the_first_token(tmp_path: Path) -> None:
    """What the corpus holds is drafted in the first request, as trees and as chains, and memory is not taken for it."""
    base = opened(tmp_path / "b", CORPUS, vocabulary=VOCABULARY)
    text = CORPUS[0][500:800]
    without, held = drafter(), drafter(bases=[base])
    assert play(held, text).mat > 1.5 * play(without, text).mat
    assert held.memory_bytes - without.memory_bytes < 1 << 16
    tree = held.open(start(text[:50])).propose(budget(16))
    check(tree, 16)
    chain = held.open(start(text[:50])).propose(budget(6, trees=False))
    assert chain.parents.tolist() == list(range(-1, len(chain) - 1))


def test_an_own_memory_wins_over_a_base(tmp_path: Path) -> None:
    """Traffic that contradicts the base is drafted as well as without one, soon."""
    base = opened(tmp_path / "b", CORPUS, vocabulary=VOCABULARY)
    other = np.tile(language(7, 400), 4)
    assert play(drafter(bases=[base]), other).mat > 0.9 * play(drafter(), other).mat


def test_the_first_request_moves_weights_little(tmp_path: Path) -> None:
    """No further than without a base: more inputs move with every token, and steps as large would diverge at first."""
    base = opened(tmp_path / "b", CORPUS, vocabulary=VOCABULARY)
    moved = []
    for bases in ([base], []):
        held = drafter(bases=bases)
        before = held._tables.mixer.weights.copy()
        play(held, language(52, 300), nodes=4)
        moved.append(np.abs(held._tables.mixer.weights - before).max())
    assert 0.01 < moved[0] < 0.8 * moved[1]


def test_several_bases(tmp_path: Path) -> None:
    """Each is known beside the others; more than three are refused."""
    parts = [language(seed, 3000) for seed in (0, 20, 40)]
    bases = [opened(tmp_path / f"b{i}", [part], vocabulary=VOCABULARY) for i, part in enumerate(parts)]
    held = drafter(bases=bases)
    for part in parts:
        assert play(held, part[500:800]).mat > 1.3 * play(drafter(), part[500:800]).mat
    with pytest.raises(UnsupportedError, match="up to 3 bases, not 4"):
        drafter(bases=[*bases, bases[0]])


def test_the_network_of_the_most_tokens_scores() -> None:
    """A small base in front, such as one of the model's own answers, must not cost the network of a large one."""
    nothing = np.empty((0, 16), np.uint32)

    def base(tokens: int, *, network: bool) -> MixBase:
        scorer = no_scorer() if network else None
        return MixBase(path=Path("base"), lines=nothing, scorer=scorer, facts={"tokens": tokens})

    small, large, counts = base(10, network=True), base(100, network=True), base(1000, network=False)
    for bases in ([small, large, counts], [large, counts, small]):
        assert scorer_in_use(bases) is large.scorer
    assert len(scorer_in_use([counts]).rows) == 0


def test_memories_are_exchanged_with_any_number_of_bases(tmp_path: Path) -> None:
    """A memory learned with a base loads without one, with another number, and back: rows stay, weights are fitted."""
    text = language(3, 600)
    bases = [opened(tmp_path / f"b{i}", CORPUS, vocabulary=VOCABULARY) for i in range(2)]
    for saving in (0, 1, 2):
        learned = drafter(bases=bases[:saving])
        play(learned, text)
        learned.save(tmp_path / "memory")
        for loading in (0, 1, 2):
            held = drafter(bases=bases[:loading])
            held.load(tmp_path / "memory")
            assert play(held, text).mat > 8
        same = drafter(bases=bases[:saving])
        same.load(tmp_path / "memory")
        assert trees(same, text[:60]) == trees(learned, text[:60])


def test_memories_with_and_without_a_base_are_merged(tmp_path: Path) -> None:
    """The merged file knows the texts of both, and loads where there is a base and where there is none."""
    base = opened(tmp_path / "b", CORPUS, vocabulary=VOCABULARY)
    texts = language(3, 600), language(4, 600)
    for name, held, text in zip("xy", (drafter(), drafter(bases=[base])), texts, strict=True):
        play(held, text)
        held.save(tmp_path / name)
    arrays, facts = MIX.merge([read_any_memory(tmp_path / name) for name in "xy"], 8 << 20)
    write_memory(tmp_path / "merged", kind="mix", tokenizer="t", arrays=arrays, facts=facts)
    for held in (drafter(), drafter(bases=[base])):
        held.load(tmp_path / "merged")
        assert min(play(held, text).mat for text in texts) > 6


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """Each is refused with its cause."""
    good = saved_base(tmp_path / "good", CORPUS, vocabulary=VOCABULARY)
    whole = good.read_bytes()
    saved_base(tmp_path / "tokenizer", CORPUS, vocabulary=VOCABULARY, tokenizer="other")
    saved_base(tmp_path / "vocabulary", CORPUS, vocabulary=2 * VOCABULARY)
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "head").write_bytes(whole[:40] + b"#" + whole[41:])
    drafter().save(tmp_path / "memory")
    facts = {"vocabulary": VOCABULARY, "format": 1}
    write_memory(tmp_path / "later", kind="mix-base", tokenizer="t", arrays={}, facts=facts | {"format": 2})
    shape = {"lines": np.zeros((3, 8), np.uint32)}
    write_memory(tmp_path / "shape", kind="mix-base", tokenizer="t", arrays=shape, facts=facts)
    refused: list[tuple[str, type[Exception], str]] = [
        ("missing", FileError, "no memory file"),
        ("tokenizer", ForeignMemoryError, "another tokenizer"),
        ("vocabulary", UnsupportedError, "2000 tokens"),
        ("cut", CorruptMemoryError, "cut short"),
        ("head", CorruptMemoryError, "damaged"),
        ("memory", ForeignMemoryError, "kind 'mix'"),
        ("later", ForeignMemoryError, "format 2"),
        ("shape", CorruptMemoryError, "no valid lines"),
    ]
    for name, error, message in refused:
        with pytest.raises(error, match=message):
            read_base(tmp_path / name, vocabulary=VOCABULARY, tokenizer="t")


def test_a_model_with_more_ids_than_the_tokenizer(tmp_path: Path) -> None:
    """Embeddings are often padded: a base of the tokenizer's ids fits the model, beside one of the model's own."""
    held = [saved_base(tmp_path / str(size), CORPUS, vocabulary=size) for size in (VOCABULARY, 4 * VOCABULARY)]
    bases = [read_base(path, vocabulary=4 * VOCABULARY, tokenizer="t") for path in held]
    text = CORPUS[0][500:800]
    mats = [play(drafter(vocabulary=4 * VOCABULARY, bases=[base]), text).mat for base in bases]
    assert min(mats) > 1.5 * play(drafter(), text).mat
    assert play(drafter(vocabulary=4 * VOCABULARY, bases=bases), text).mat > 0.9 * max(mats)


def test_damaged_lines_cost_drafts_only(tmp_path: Path) -> None:
    """Lines are not verified when they are mapped: any bits in them yield trees of known tokens."""
    random = np.random.default_rng(0)
    lines = random.integers(0, 1 << 32, (512, 16), np.uint32)
    write_base(tmp_path / "noise", lines, vocabulary=VOCABULARY, tokenizer="t", facts={})
    held = drafter(bases=[read_base(tmp_path / "noise", vocabulary=VOCABULARY, tokenizer="t")])
    text = language(5, 400)
    assert play(held, text, text).mat > 0.9 * play(drafter(), text, text).mat
    tree = held.open(start(text[:50])).propose(budget(32))
    check(tree, 32)
    assert tree.tokens.max() < VOCABULARY


def test_a_base_is_replaced_while_it_is_mapped(tmp_path: Path) -> None:
    """Building anew writes aside and renames: what is mapped stays as it was."""
    path = saved_base(tmp_path / "b", CORPUS, vocabulary=VOCABULARY)
    held = drafter(bases=[read_base(path, vocabulary=VOCABULARY, tokenizer="t")])
    before = trees(held, CORPUS[0][:100])
    saved_base(path, [language(9, 200)], vocabulary=VOCABULARY)
    os.unlink(path)
    again = drafter(bases=held.bases)
    assert trees(again, CORPUS[0][:100]) == before


def test_levels() -> None:
    """Probabilities and levels are each other's inverse, and ids of every vocabulary fit."""
    assert levels(level_probabilities()).tolist() == list(range(LEVELS))
    assert levels(np.array([1.0, 0.0])).tolist() == [0, LEVELS - 1]
    assert [token_bits(size) for size in (1, 2, 3, 32000, 128256, 1 << 20)] == [1, 1, 2, 15, 17, 20]
