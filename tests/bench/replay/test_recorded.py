"""Acceptance of other drafters that a trace recorded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripted import recording
from speculant.bench.replay.recorded import list_recorded_names, match_recorded_lengths, replay_recorded
from speculant.bench.replay.traces import read_recordings

DATA = os.environ.get("SPECULANT_DATA")
MATS = {"gsm8k": (1.18, 2.78), "cnn": (1.40, 2.73), "instructcoder": (2.12, 3.49), "sharegpt": (1.35, 2.74)}


def test_a_round_begins_behind_the_last() -> None:
    """Yields are read where rounds begin, and the last round counts only what was left."""
    result = replay_recorded("e", [recording([1, 2, 3, 4, 5], e=[2, 9, 1, 5, 9])])
    assert result.accepted.tolist() == [1, 0, 1]
    assert (result.tokens, result.rounds) == (5, 3)


def test_as_many_as_were_drafted() -> None:
    """With k drafts a round yields at most k + 1 tokens."""
    assert replay_recorded("e", [recording([1] * 6, e=[9] * 6)], drafts=2).accepted.tolist() == [2, 2]


def test_lengths_beside_chains() -> None:
    """Recorded chains are as long as those beside them, and no longer than they were recorded."""
    assert match_recorded_lengths([]) == (20,)
    assert match_recorded_lengths([5, 20, 64]) == (5, 20)


@pytest.mark.parametrize("length", [3, 8])
def test_played_to_the_shorter(length: int) -> None:
    """A list of another run may end before the output or after it."""
    assert replay_recorded("e", [recording([1] * 5, e=[1] * length)]).tokens == min(5, length)


def test_rows_without_a_record_do_not_count() -> None:
    """Requests without a drafter's record do not count as its requests."""
    recordings = [recording([1], "x"), recording([1, 2], "y", e=[1, 1], v=[2, 1])]
    assert list_recorded_names(recordings) == ["e", "v"]
    assert replay_recorded("v", recordings).categories == ("y",)


@pytest.mark.skipif(not DATA, reason="SPECULANT_DATA names no folder with traces")
@pytest.mark.parametrize("name", MATS)
def test_published_acceptance(name: str) -> None:
    """The MAT of the recorded n-gram drafter and of EAGLE on the development traces."""
    recordings = list(read_recordings(Path(DATA or "") / "traces" / f"llama31-8b-{name}.jsonl"))
    found = [replay_recorded(drafter, recordings).mat for drafter in ("vllm-ngram", "eagle")]
    assert found == pytest.approx(MATS[name], abs=0.006)
