"""Other projects' drafters, wrapped as a `Drafter`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from scripted import recording
from speculant.bench.replay.player import replay
from speculant.bench.replay.traces import read_recordings
from speculant.bench.systems.peers import PEERS, ArcticSuffix, OfficialAded, find_peer, write_official_table
from speculant.core.drafter import Budget, Persistent, SessionRequest
from speculant.core.errors import UnsupportedError, UsageError

DATA = os.environ.get("SPECULANT_DATA")
MODULES = {"peer:draftretriever": "draftretriever", "peer:arctic": "arctic_inference"}
ARCTIC = {"gsm8k": 1.80, "cnn": 1.90, "instructcoder": 3.03, "sharegpt": 1.77}


@pytest.mark.parametrize(("name", "module"), MODULES.items())
def test_a_missing_peer_says_how_to_install_it(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is needed, and the message names the install command."""
    for loaded in [each for each in sys.modules if each.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnsupportedError, match=r"not installed.*pip install"):
        find_peer(name)()


def test_an_unknown_peer() -> None:
    """The message lists them."""
    with pytest.raises(UsageError, match="peer:draftretriever and peer:arctic"):
        find_peer("peer:x")


@pytest.mark.peers
@pytest.mark.parametrize("name", PEERS)
def test_peers_draft(name: str) -> None:
    """Each drafts what repeats within its budget over several requests, and has nothing to save or load."""
    pytest.importorskip(MODULES[name])
    drafter = find_peer(name)()
    result = replay(drafter, [recording([4, 5, 6] * 30, prompt=[1, 2])] * 2, nodes=8)
    assert result.mat > 1.5
    assert result.drafting is not None
    assert result.drafting.nodes.max() <= 8
    assert not isinstance(drafter, Persistent)


@pytest.mark.peers
def test_the_official_drafter_begins_with_a_corpus() -> None:
    """Guards the comparison that its paper makes: what the corpus holds is drafted in the first round."""
    pytest.importorskip("draftretriever")
    corpus, prompt = [np.array([4, 5, 6, 7, 8], np.int32)], np.array([1, 4, 5], np.int32)
    budget = Budget(nodes=64, depth=64)
    drafts = [OfficialAded(documents).open(SessionRequest(prompt=prompt)).propose(budget) for documents in ([], corpus)]
    assert [draft.tokens[:2].tolist() for draft in drafts] == [[], [6, 7]]


@pytest.mark.peers
def test_the_official_drafter_reads_a_written_table(tmp_path: Path) -> None:
    """Guards runs in separate processes, each of which opens the same file: it drafts as one that builds its table."""
    pytest.importorskip("draftretriever")
    write_official_table(tmp_path / "table", [np.array([4, 5, 6, 7, 8], np.int32)])
    session = OfficialAded.read(tmp_path / "table").open(SessionRequest(prompt=np.array([1, 4, 5], np.int32)))
    assert session.propose(Budget(nodes=64, depth=64)).tokens[:2].tolist() == [6, 7]


@pytest.mark.peers
def test_arctic_drafts_chains() -> None:
    """Its own chain search, no longer than asked for."""
    pytest.importorskip("arctic_inference")
    result = replay(ArcticSuffix(), [recording([4, 5, 6] * 30, prompt=[1, 2])] * 2, nodes=6, chain=True)
    assert result.drafting is not None
    assert result.drafting.nodes.max() == result.drafting.deepest.max() == 6


@pytest.mark.peers
def test_arctic_drafts_only_what_it_saw() -> None:
    """Prompts are kept for their request, outputs for all."""
    pytest.importorskip("arctic_inference")
    drafter = ArcticSuffix()
    replay(drafter, [recording([7, 8, 9], prompt=[4, 5, 6])], nodes=8)
    budget = Budget(nodes=8, depth=8)
    session = drafter.open(SessionRequest(prompt=np.array([1, 7, 8], np.int32)))
    assert session.propose(budget).tokens.tolist() == [9]
    session.close()
    assert len(drafter.open(SessionRequest(prompt=np.array([1, 4, 5], np.int32))).propose(budget)) == 0


@pytest.mark.peers
@pytest.mark.skipif(not DATA, reason="SPECULANT_DATA names no folder with traces")
@pytest.mark.parametrize("name", ARCTIC)
def test_arctic_on_the_traces(name: str) -> None:
    """MAT agrees with its own simulator at these settings, in file order, with outputs kept across requests."""
    pytest.importorskip("arctic_inference")
    recordings = read_recordings(Path(DATA or "") / "traces" / f"llama31-8b-{name}.jsonl")
    assert replay(ArcticSuffix(), recordings, nodes=64).mat == pytest.approx(ARCTIC[name], abs=0.006)
