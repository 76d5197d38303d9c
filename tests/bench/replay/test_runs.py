"""Runs of a method on a file's recordings."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripted import recording
from speculant.bench.replay.corpora import CorpusFile
from speculant.bench.replay.runs import Run, check_method, in_order, vocabulary_of
from speculant.core.errors import UnknownMethodError, UnsupportedError, UsageError
from speculant.drafters.aded.corpus import TrigramCounter
from speculant.drafters.aded.drafter import save_table
from speculant.registry import METHODS, methods

LIMIT = 1 << 20
REPEATS = recording([4, 5, 6] * 8, prompt=[4, 5, 6, 4, 5, 6])


def make(method: str = "aded", **changes: Any) -> Run:
    settings: dict[str, Any] = {"recordings": [REPEATS, REPEATS], "nodes": 8, "keep_memory": True, "vocabulary": 9}
    return Run(**{"file": "f", "method": method, "memory_limit": LIMIT, "corpus": None, **settings, **changes})


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.replayable])
def test_every_replayable_method_plays(name: str) -> None:
    """Each commits exactly the recorded tokens, and rounds are deterministic."""
    run = pickle.loads(pickle.dumps(make(name)))
    result = run.replay()
    assert result.tokens == run.tokens == 48
    assert np.array_equal(result.accepted, make(name).replay().accepted)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.replayable])
def test_every_replayable_method_drafts_chains(name: str) -> None:
    """Guards the comparison with engines that verify chains: no draft branches or is longer than was asked for."""
    result = make(name, nodes=5, chain=True).replay()
    assert result.tokens == 48
    assert result.drafting is not None
    assert np.array_equal(result.drafting.nodes, result.drafting.deepest)
    assert result.drafting.nodes.max() <= 5


def test_memory_is_kept_or_not() -> None:
    """Without it, the second request has the rounds of the first."""
    kept, fresh = (make(keep_memory=keep).replay() for keep in (True, False))
    assert fresh.accepted[fresh.request == 0].tolist() == fresh.accepted[fresh.request == 1].tolist()
    assert kept.rounds <= fresh.rounds


@pytest.mark.parametrize("method", ["aded", "aded-paper"])
def test_methods_start_with_a_table(method: str, tmp_path: Path) -> None:
    """A method that reads a corpus but saves nothing starts with one, too."""
    counter = TrigramCounter(9)
    counter.add([4, 5, 7, 8, 4, 5])
    save_table(tmp_path / "table", counter.table(), tokenizer="", vocabulary=9)
    corpus = CorpusFile(tmp_path / "table", "trigram", tokenizer="")
    recordings = [recording([7, 8, 4, 5], prompt=[4, 5])]
    assert make(method, recordings=recordings, corpus=corpus).replay().rounds < 4
    assert make(method, recordings=recordings).replay().rounds == 4


def test_what_cannot_be_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that learns from logits is refused by name, with those that can be replayed."""
    method = replace(METHODS["aded"], name="logits", replayable=False)
    monkeypatch.setattr(methods, "METHODS", {**METHODS, "logits": method})
    with pytest.raises(UnsupportedError, match=r"'logits' drafts with a model or from the target's logits.* aded"):
        check_method("logits")
    check_method("aded")


@pytest.mark.parametrize(("name", "error"), [("nonsense", UnknownMethodError), ("peer:nonsense", UsageError)])
def test_what_does_not_exist(name: str, error: type[Exception]) -> None:
    """A misspelt name is found before anything is read."""
    with pytest.raises(error, match="there is no"):
        check_method(name)


def test_order() -> None:
    """Recordings keep the file's order or are shuffled by the seed, and are limited afterwards."""
    recordings = [recording([i + 1]) for i in range(20)]
    assert in_order(recordings, shuffled=False, seed=1, limit=3) == recordings[:3]
    shuffles = [in_order(recordings, shuffled=True, seed=seed, limit=None) for seed in (1, 1, 2)]
    assert shuffles[0] == shuffles[1] != shuffles[2]
    assert {id(each) for each in shuffles[0]} == {id(each) for each in recordings}


def test_vocabulary() -> None:
    """The largest id of prompts and outputs decides."""
    assert vocabulary_of([recording([3], prompt=[7]), recording([5])]) == 8
