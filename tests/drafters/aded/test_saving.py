"""The files of the drafter of tri-grams: what is saved, loaded, dropped under a limit, and refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mixes import language
from rounds import budget
from speculant.core.errors import CorruptMemoryError, FileError, ForeignMemoryError, UnsupportedError
from speculant.drafters.aded.drafter import (
    AdedDrafter,
    load_table,
    save_table,
)
from speculant.drafters.aded.frozen import freeze, thaw
from speculant.drafters.aded.rows import NONE, UNIT
from speculant.memory.file import write_memory
from tables import contexts_of, ids, row_of
from trees import paths_of

VOCABULARY = 1000


def drafter(**options: object) -> AdedDrafter:
    """Return an empty drafter."""
    return AdedDrafter(**{"vocabulary": VOCABULARY, "tokenizer": "t", **options})


def columns(rows: dict[tuple[int, int], dict[int, int]]) -> list[np.ndarray]:
    """Return rows as the columns that `freeze` takes."""
    entries = [(a, b, c, weight) for (a, b), row in rows.items() for c, weight in row.items()]
    return list(np.array(entries, np.int64).reshape(-1, 4).T)


def test_saved_and_loaded(tmp_path: Path) -> None:
    """A loaded memory drafts as the one that was saved: the same rows, weights to 3 %."""
    text = language(4, 8000)
    held, loaded = drafter(), drafter()
    held.learn(text)
    loaded.learn(ids([7, 8, 9]))
    held.save(tmp_path / "memory")
    loaded.load(tmp_path / "memory")
    assert dict(row_of(loaded._table, 7, 8)) == dict(row_of(held._table, 7, 8))
    assert loaded.memory_bytes < held.memory_bytes
    same = 0
    for at in range(100, 8000, 100):
        a, b = int(text[at]), int(text[at + 1])
        for before in (a, NONE):
            saved, found = dict(row_of(held._table, before, b)), dict(row_of(loaded._table, before, b))
            assert found == pytest.approx(saved, rel=0.034)
        drafts = [set(paths_of(one.search(a, b, budget(16)))) for one in (held, loaded)]
        same += len(drafts[0] & drafts[1]) / len(drafts[0])
    assert same / 79 > 0.9


def test_saving_again_changes_nothing(tmp_path: Path) -> None:
    """A memory that was loaded and saved untouched holds the same rows with the same weights."""
    held = drafter()
    held.learn(language(5, 3000))
    held.save(tmp_path / "one")
    held.load(tmp_path / "one")
    held.save(tmp_path / "two")
    one, two = (
        set(zip(*(column.tolist() for column in thaw(load_table(tmp_path / name, tokenizer="t"))), strict=True))
        for name in ("one", "two")
    )
    assert one == two


def test_learning_goes_on_after_loading(tmp_path: Path) -> None:
    """Three runs with a save between them know the texts of all three."""
    for run in range(3):
        held = drafter()
        if run:
            held.load(tmp_path / "memory")
        held.learn(ids(range(100 * run, 100 * run + 50)))
        held.learn(ids([900, 901, 902 + run]))
        held.save(tmp_path / "memory")
    for run in range(3):
        assert held.search(100 * run, 100 * run + 1, budget(3)).tokens.tolist() == [100 * run + 2 + i for i in range(3)]
    assert sorted(dict(row_of(held._table, 900, 901))) == [902, 903, 904]


def test_after_rotation_everything_held_is_saved(tmp_path: Path) -> None:
    """Young and old generation are both written; of a row that both hold, the newer."""
    held = drafter(memory_limit=200_000)
    held.learn(language(6, 30_000))
    assert len(held._table.old.slots) > 1
    both = contexts_of(held._table)
    held.save(tmp_path / "memory")
    a, b, _, _ = thaw(load_table(tmp_path / "memory", tokenizer="t"))
    kept = set(zip(np.where(a == VOCABULARY, NONE, a).tolist(), b.tolist(), strict=True))
    assert both < kept
    loaded = drafter(memory_limit=1 << 20)
    loaded.load(tmp_path / "memory")
    for context in kept:
        assert dict(row_of(loaded._table, *context)) == pytest.approx(dict(row_of(held._table, *context)), rel=0.034)


@pytest.mark.parametrize("equal", [False, True], ids=["different weights", "equal weights"])
def test_a_small_limit_drops_light_rows(tmp_path: Path, equal: bool) -> None:
    """What is saved can be loaded under the same limit: learned rows stay, the base's lightest go, ties or not."""
    rows = {(i % 100, i // 100): {i % 900: 64 if equal else 20 + 3 * i} for i in range(5000)}
    base = freeze(*columns(rows), vocabulary=VOCABULARY)
    save_table(tmp_path / "memory", base, tokenizer="t", vocabulary=VOCABULARY)
    limit = base.nbytes + 60_000
    held = drafter(memory_limit=limit)
    held.load(tmp_path / "memory")
    held.learn(np.random.default_rng(0).integers(500, 1000, 1500).astype(np.int32))
    learned = contexts_of(held._table)
    held._table.limit = 40_000
    held.save(tmp_path / "memory")
    loaded = drafter(memory_limit=40_000)
    loaded.load(tmp_path / "memory")
    assert 36_000 < loaded._table.base.nbytes <= 40_000
    for context in learned:
        assert row_of(loaded._table, *context)
    kept = [key for key in rows if row_of(loaded._table, *key)]
    assert 0 < len(kept) < 4000
    dropped = [key for key in rows if key not in set(kept)]
    weight = {key: row_of(held._table, *key)[0][1] for key in rows}
    assert min(weight[key] for key in kept) >= max(weight[key] for key in dropped)


@pytest.mark.parametrize("limit", [0, 5000, 60_000])
def test_a_limit_too_small_for_the_index(tmp_path: Path, limit: int) -> None:
    """Saving works even where nothing fits; loading under that limit is refused with a way out."""
    held = drafter(memory_limit=limit, vocabulary=20_000)
    held.learn(language(7, 2000))
    held.save(tmp_path / "memory")
    with pytest.raises(UnsupportedError, match="Raise the limit"):
        held.load(tmp_path / "memory")
    assert len(held.search(1, 31, budget(4)))
    larger = drafter(vocabulary=20_000)
    larger.load(tmp_path / "memory")
    assert larger._table.base.nbytes > limit


def test_a_file_larger_than_the_limit(tmp_path: Path) -> None:
    """It is refused, and what was learned so far is still there."""
    large = drafter()
    large.learn(language(8, 20_000))
    large.save(tmp_path / "memory")
    held = drafter(memory_limit=100_000)
    held.learn(ids([1, 2, 3]))
    with pytest.raises(UnsupportedError, match="memory limit"):
        held.load(tmp_path / "memory")
    assert row_of(held._table, 1, 2) == [(3, UNIT)]


def test_files_that_are_not_this_drafters(tmp_path: Path) -> None:
    """Another tokenizer, another kind of memory, no memory: each has its own error, and nothing learned is lost."""
    held = drafter()
    held.learn(ids([1, 2, 3]))
    drafter(tokenizer="other").save(tmp_path / "other")
    write_memory(tmp_path / "kind", kind="suffix", tokenizer="t", arrays={}, facts={})
    (tmp_path / "text").write_text("no memory")
    for name in ("other", "kind"):
        with pytest.raises(ForeignMemoryError):
            held.load(tmp_path / name)
    with pytest.raises(CorruptMemoryError):
        held.load(tmp_path / "text")
    with pytest.raises(FileError):
        held.load(tmp_path / "missing")
    assert row_of(held._table, 1, 2) == [(3, UNIT)]


def test_models_that_pad_their_vocabulary_differently(tmp_path: Path) -> None:
    """One tokenizer serves models of several sizes; bi-grams survive a save under another number of ids."""
    first = drafter(vocabulary=100)
    first.learn(ids([1, 2, 3] * 5))
    for vocabulary in (100, 120, 90, 110):
        held = drafter(vocabulary=vocabulary)
        if vocabulary == 100:
            held = first
        else:
            held.load(tmp_path / "memory")
        assert held.search(NONE, 2, budget(1)).tokens.tolist() == [3]
        held.learn(ids([50, 2, 4]))
        tree = held.search(50, 2, budget(50))
        assert len(paths_of(tree)) == len(tree)
        held.save(tmp_path / "memory")
