"""Batches of prompts on the command line: order, failures, interrupts, and how they were run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from speculant import Speculator
from speculant.api.batch import Batch
from speculant.cli.main import main
from speculant.engines.hf.batch_pass import BatchPass
from speculant.verifiers.sample_then_follow import SampleThenFollow

SHORT = ["--max-new-tokens", "12"]
CaptureFixture = pytest.CaptureFixture[str]


def test_a_batch_prints_texts_in_order(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The texts of a batch are those of prompts one by one, in their order, and the block counts the time once."""
    prompts = tmp_path / "p.json"
    prompts.write_text(json.dumps(["Once upon a time", "The dog", "One day"]))
    argv = ["generate", "--prompts", str(prompts), *SHORT, "--temperature", "0.8", "--seed", "4", "--top-k", "20"]
    assert main([*argv, "--batch", "2", "--json", str(tmp_path / "out.json")]) == 0
    out, err = capsys.readouterr()
    assert "prompts per pass" in err
    assert err.index("--- 1 of 3") < err.index("--- 2 of 3") < err.index("--- 3 of 3")
    speculator = Speculator.from_pretrained(method="none")
    options = {"max_new_tokens": 12, "temperature": 0.8, "top_k": 20}
    texts = [
        speculator.generate(prompt, seed=4 + place, **options).text
        for place, prompt in enumerate(["Once upon a time", "The dog", "One day"])
    ]
    assert [json.loads(line)["text"] for line in out.splitlines()] == texts
    assert [each["text"] for each in json.loads((tmp_path / "out.json").read_text())] == texts


def test_a_batch_is_for_many_prompts(capsys: CaptureFixture) -> None:
    """What a batch cannot do is said before a model is loaded."""
    assert main(["generate", "Once", "--batch", "2"]) == 2
    assert "--batch is for --prompts" in capsys.readouterr().err


MANY = ["Once upon a time", "The dog", "One day", "Tom sat"]


@pytest.fixture
def batched(tmp_path: Path) -> list[str]:
    """Return the arguments for a batch of prompts, with a method that learns when a request ends."""
    (tmp_path / "p.json").write_text(json.dumps(MANY))
    files = ["--prompts", str(tmp_path / "p.json"), "--json", str(tmp_path / "out.json")]
    return ["generate", *files, *SHORT, "--batch", "4", "--method", "suffix", "--memory", str(tmp_path / "memory")]


def test_a_batch_goes_on_after_a_failure(
    tmp_path: Path, batched: list[str], monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """The texts of the others are printed, what there is of the failed one too, and the end names it."""
    walk, walks = SampleThenFollow.walk, []

    def failing(rule: SampleThenFollow, draft: Any, *rest: Any) -> Any:
        walks.append(draft)
        if len(walks) == 10:  # after four prompts and a round of four
            raise ZeroDivisionError("a bug")
        return walk(rule, draft, *rest)

    monkeypatch.setattr(SampleThenFollow, "walk", failing)
    assert main(batched) == 1
    out, err = capsys.readouterr()
    records = json.loads((tmp_path / "out.json").read_text())
    assert [found["finish_reason"] for found in records] == ["length", "error", "length", "length"]
    assert [json.loads(line)["text"] for line in out.splitlines()] == [found["text"] for found in records]
    assert [found["tokens"] for found in records] == [12, len(records[1]["ids"]), 12, 12]
    assert "error: 1 of 4 prompts failed: 2. The cause for prompt 2 is ZeroDivisionError: a bug" in err
    assert err.count(", failed\n") == 1


def test_an_interrupted_batch_keeps_texts_and_memory(
    tmp_path: Path, batched: list[str], monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """Ctrl-C prints what there is of every text, in order, and what was learned is saved."""
    decode, rounds = Batch._round, []

    def interrupted(batch: Batch) -> Any:
        rounds.append(batch)
        if len(rounds) == 5:
            raise KeyboardInterrupt
        return decode(batch)

    monkeypatch.setattr(Batch, "_round", interrupted)
    assert main(batched) == 130
    out, err = capsys.readouterr()
    records = json.loads((tmp_path / "out.json").read_text())
    assert all(0 < found["tokens"] < 12 for found in records)
    assert [json.loads(line)["text"] for line in out.splitlines()] == [found["text"] for found in records]
    assert err.count(", interrupted\n") == 4
    empty = tmp_path / "empty"
    Speculator.from_pretrained(method="suffix").save(empty)
    assert (tmp_path / "memory").stat().st_size > empty.stat().st_size


def test_a_batch_says_how_it_was_run(
    tmp_path: Path, batched: list[str], monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """Where a model's sequences cannot share a pass, the block says so."""
    monkeypatch.setattr(BatchPass, "_together", lambda *_: [][1])
    assert main(batched) == 0
    assert "note        the sequences of a batch are run one after the other" in capsys.readouterr().err
