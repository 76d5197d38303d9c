"""Memory files of version 0.1 load, and drafts from them are those of the version that wrote them.

The files in tests/data/memories were written by that version, each after the same three texts; drafts.json holds what
it drafted from them. They are part of the promise that memories survive an upgrade: do not write them anew.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from memories import KEPT
from rounds import budget, start
from speculant.api.memory_kinds import find_memory_kind
from speculant.memory.file import read_any_memory
from speculant.registry import BuildContext, build_drafter

FOLDER = Path(__file__).parents[1] / "data" / "memories"
RECORDED = json.loads((FOLDER / "drafts.json").read_text(encoding="utf-8"))


def unpacked(folder: Path, method: str) -> Path:
    """Return a method's memory file."""
    path = folder / "memory"
    path.write_bytes(gzip.decompress((FOLDER / f"{method}.memory.gz").read_bytes()))
    return path


@pytest.mark.parametrize("method", KEPT)
def test_drafts_from_an_older_file(method: str, tmp_path: Path) -> None:
    """Every array arrives where it belongs."""
    recorded = RECORDED["methods"][method]
    held = build_drafter(
        method,
        BuildContext(
            vocabulary=RECORDED["vocabulary"], tokenizer=RECORDED["tokenizer"], memory_limit=recorded["memory_limit"]
        ),
    )
    held.load(unpacked(tmp_path, method))
    for draft in recorded["drafts"]:
        tree = held.open(start(draft["context"])).propose(budget(16))
        assert tree.tokens.tolist() == draft["tokens"]
        assert tree.parents.tolist() == draft["parents"]
        assert np.allclose(tree.weights, draft["weights"], atol=2e-6)


@pytest.mark.parametrize("method", KEPT)
def test_an_older_file_is_written_again_as_it_was(method: str, tmp_path: Path) -> None:
    """Names, types and facts in files do not change; what a method learned is the same when it is saved again."""
    recorded = RECORDED["methods"][method]
    held = build_drafter(
        method,
        BuildContext(
            vocabulary=RECORDED["vocabulary"], tokenizer=RECORDED["tokenizer"], memory_limit=recorded["memory_limit"]
        ),
    )
    held.load(unpacked(tmp_path, method))
    old = read_any_memory(tmp_path / "memory")
    held.save(tmp_path / "again")
    new = read_any_memory(tmp_path / "again")
    assert (new.kind, new.tokenizer, new.facts) == (old.kind, old.tokenizer, old.facts)
    assert {name: array.dtype for name, array in new.arrays.items()} == {
        name: array.dtype for name, array in old.arrays.items()
    }
    kind = find_memory_kind(old.kind)
    assert kind.describe(new) == kind.describe(old)
