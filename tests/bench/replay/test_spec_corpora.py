"""Replays of methods that start with a corpus, and the corpora."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

import spec_corpora_runs
from mix_base import built_aded
from mix_corpora import answers, asked, documents
from scripted import recording
from spec_corpora import built_authors, built_sam
from spec_corpora_runs import AUTHORS, STARTS, AuthorsRun, SamRun, Start, played, replayed_apart, run_of
from speculant.bench.replay.player import replay
from speculant.bench.replay.runs import Run
from speculant.drafters.suffix.sam import SamDrafter
from speculant.registry import METHODS
from speculant.sizing.step_cost import StepCost

COST = StepCost(np.array([0.0, 64.0]), np.array([1.0, 1.2]))
OUTPUT = [*range(10, 30), 2]
CORPUS = [np.array(OUTPUT, np.int32), np.array([5, 6, 7, 2], np.int32)]
REQUESTS = [recording(OUTPUT, prompt=[8, 9, 10, 11])]


def runs(folder: Path) -> dict[tuple[str, str], Run]:
    """Return the run of every start."""
    found = {}
    for start in STARTS:
        found[start.method, start.corpus] = run_of(start, "a", REQUESTS, folder, COST, shape="tree")
    return found


def test_every_start_gets_its_file(tmp_path: Path) -> None:
    """A frozen base is no corpus, and the code of ADED's authors reads a table of its own."""
    found = runs(tmp_path / "llama2")
    assert {run.bases[0].name for (method, _), run in found.items() if method == "mix"} == {
        "mix-mixed-64-MB",
        "mix-chat-64-MB",
    }
    kinds = {method: run.corpus.kind for (method, _), run in found.items() if run.corpus is not None}
    assert kinds == {"aded": "trigram", "aded-paper": "trigram", "rest": "suffix"}
    official = found[AUTHORS, "chat"]
    assert isinstance(official, AuthorsRun)
    assert official.table.name == "draftretriever"
    sam = found["sam", "chat"]
    assert isinstance(sam, SamRun)
    assert sam.text.name == "sam"


def test_every_replayable_method_that_takes_a_corpus_starts_with_one() -> None:
    """A new method of this kind is not left out of the page."""
    taking = {method.name for method in METHODS.values() if method.replayable and method.corpus}
    assert taking <= {start.method for start in STARTS}


def test_rows_are_those_of_a_replay_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request is drafted from the corpus in both shapes and all sizes, and the file is named in each row."""
    folder = tmp_path / "llama2"
    folder.mkdir()
    built_aded(folder / "aded", CORPUS, 32_000)
    built_sam(folder / "sam", CORPUS, 32_000)
    monkeypatch.setattr(spec_corpora_runs, "STARTS", (Start("aded", "chat", "aded"), Start("sam", "chat", "sam")))
    rows = list(played("a", REQUESTS, folder, COST))
    assert [(row["shape"], row["nodes"]) for row in rows[:10]] == [
        (shape, nodes) for shape in ("tree", "chain") for nodes in ("auto", 3, 7, 20, 63)
    ]
    for row in rows:
        assert (row["corpus"], row["corpus_bytes"]) == ("chat", (folder / row["method"]).stat().st_size)
        assert row["speedup"] is not None
    assert all(row["mat"] > 5 for row in rows if row["nodes"] == 63)


def test_runs_of_sam_do_not_learn_from_each_other(tmp_path: Path) -> None:
    """The automata are built once, but each run starts with those of the corpus alone, as a loaded file would."""
    folder = tmp_path / "llama2"
    folder.mkdir()
    built_sam(folder / "sam", CORPUS, 32_000)
    requests = [recording([100, 101, 102, *OUTPUT], prompt=[8, 9])] * 2
    run = run_of(Start("sam", "chat", "sam"), "a", requests, folder, COST, shape="chain")
    loaded = SamDrafter(vocabulary=32_000)
    loaded.load(folder / "sam")
    expected = replay(loaded, requests, nodes="auto", chain=True, cost=COST).accepted.tolist()
    assert [run.replay().accepted.tolist() for _ in range(2)] == [expected] * 2


@pytest.mark.peers
def test_the_code_of_adeds_authors_runs_apart(tmp_path: Path) -> None:
    """Its memory grows with every draft, so it is replayed, with its table, in a process that ends."""
    pytest.importorskip("draftretriever")
    folder = tmp_path / "llama2"
    folder.mkdir()
    built_authors(folder / "draftretriever", CORPUS)
    run = run_of(Start(AUTHORS, "chat", "draftretriever"), "a", REQUESTS, folder, COST, shape="tree")
    assert replayed_apart(run).mat > 2


def test_answers_to_replayed_instructions_are_left_out(tmp_path: Path) -> None:
    """The instructions of one recording are those that the corpus answers, so its answers would give them away."""
    (tmp_path / "corpora").mkdir()
    texts = [("how?", "so"), ("how?", "thus"), ("why?", "since")]
    for part, chosen in (("a", texts[:2]), ("b", texts[2:])):
        lines = [json.dumps({"prompt": prompt, "output": output}) + "\n" for prompt, output in chosen]
        (tmp_path / "corpora" / f"answers-{part}.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))

    def encode(text: str) -> list[int]:
        return [*text.encode(), 0]

    answered = asked(tmp_path, encode, [recording([1], prompt=[300, *b"USER: how? A:"])])
    assert answered == {"how?"}
    assert len(list(answers(tmp_path))) == 3
    assert next(documents(tmp_path, answered)) == ("chat", "since")
