"""ADED against the official drafter and against itself as published, on recorded outputs of real models."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from speculant.bench.replay.player import replay
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.bench.systems.peers import OfficialAded
from speculant.drafters.aded.corpus import TrigramCounter
from speculant.drafters.aded.drafter import AdedDrafter, save_table
from speculant.drafters.aded.paper import AdedPaperDrafter

DATA = os.environ.get("SPECULANT_DATA")
FILES = sorted(Path(DATA).glob("traces/*.jsonl")) if DATA else []
TOKENS = 6000


def some(file: Path) -> list[Recording]:
    """Return the first requests that hold so many tokens, the last one cut."""
    left, chosen = TOKENS, []
    for recording in read_recordings(file):
        chosen.append(Recording(recording.prompt, recording.output[:left]))
        left -= len(chosen[-1].output)
        if left <= 0:
            break
    return chosen


pytestmark = pytest.mark.skipif(not FILES, reason="SPECULANT_DATA names no folder with traces")


@pytest.mark.peers
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_published_setting_matches_the_official_drafter(file: Path) -> None:
    """Guards `aded-paper`: its MAT is the official drafter's within 3 %."""
    pytest.importorskip("draftretriever")
    recordings = some(file)
    official = replay(OfficialAded(), recordings, nodes=64).mat
    ours = replay(AdedPaperDrafter(vocabulary=128_256), recordings, nodes=64).mat
    assert ours == pytest.approx(official, rel=0.03)


@pytest.mark.peers
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_does_so_above_a_corpus(file: Path, tmp_path: Path) -> None:
    """Guards the initial table: rows are probabilities however rare, of the 12 most probable successors.

    The corpus is the rest of the file. A row that was seen once weighs as much as any other.
    """
    pytest.importorskip("draftretriever")
    recordings = some(file)
    corpus = [each.output for each in read_recordings(file)][len(recordings) :]
    counter = TrigramCounter(128_256)
    for document in corpus:
        counter.add(document)
    save_table(tmp_path / "table", counter.table(), tokenizer="", vocabulary=128_256)
    drafter = AdedPaperDrafter(vocabulary=128_256)
    drafter.load(tmp_path / "table")
    official = replay(OfficialAded(corpus), recordings, nodes=64).mat
    assert replay(drafter, recordings, nodes=64).mat == pytest.approx(official, rel=0.015)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_default_setting_beats_the_published_one(file: Path) -> None:
    """Guards `aded`: at least a fifth more tokens a round on every file."""
    recordings = some(file)
    published = replay(AdedPaperDrafter(vocabulary=128_256), recordings, nodes=64).mat
    ours = replay(AdedDrafter(vocabulary=128_256), recordings, nodes=64).mat
    assert ours > 1.2 * published
