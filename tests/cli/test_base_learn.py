"""The command that makes a base of a model's answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from speculant import Speculator
from speculant.api.batch import Batch
from speculant.cli.base_learn import package_prompts
from speculant.cli.main import main
from speculant.cli.prompts import read_prompts
from speculant.memory.bases import read_base_header

CaptureFixture = pytest.CaptureFixture[str]
SHORT = ["--tokens", "60", "--max-new-tokens", "10", "--batch", "3"]


def learn(out: Path, *argv: str) -> int:
    return main(["base", "learn", "--model", "bundled", "-o", str(out), *argv])


def test_the_package_has_prompts() -> None:
    """They are many, all different, and of one line each."""
    prompts = read_prompts(package_prompts())
    assert len(set(map(str, prompts))) == len(prompts) >= 150


def test_answers_become_a_base(tmp_path: Path, capsys: CaptureFixture) -> None:
    """From prompts to a base that drafts; more tokens add to the answers; the base says what it is of."""
    (tmp_path / "p.txt").write_text("Once upon a time\nThe dog\n")
    out = tmp_path / "own.base"
    assert learn(out, *SHORT, "--prompts", str(tmp_path / "p.txt"), "--license", "MIT") == 0
    printed, err = capsys.readouterr()
    assert [line.split()[0] for line in printed.splitlines()] == ["tokens", "source", "entries", "bytes"]
    assert f"in {out}.jsonl" in err
    first = Path(f"{out}.jsonl").read_text()
    facts = read_base_header(out).facts
    assert (facts["license"], facts["source"]) == ("MIT", "answers of bundled")
    assert learn(out, *SHORT, "--tokens", "120", "--prompts", str(tmp_path / "p.txt")) == 0
    assert Path(f"{out}.jsonl").read_text().startswith(first)
    assert f"continuing {out}.jsonl" in capsys.readouterr().err
    assert sum(len(json.loads(line)["output_ids"]) for line in Path(f"{out}.jsonl").read_text().splitlines()) >= 120
    assert Speculator.from_pretrained(base=str(out)).generate("The dog", max_new_tokens=4).ids


def test_an_interrupt_makes_the_base(tmp_path: Path, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the answers so far, and the exit code tells; the same command goes on."""
    out, step, steps = tmp_path / "own.base", Batch.step, 0

    def interrupted(batch: Batch) -> object:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt
        return step(batch)

    monkeypatch.setattr(Batch, "step", interrupted)
    assert learn(out, *SHORT) == 130
    assert "building the base from the answers so far" in capsys.readouterr().err
    held = read_base_header(out).facts["tokens"]
    assert learn(out, *SHORT) == 0
    assert read_base_header(out).facts["tokens"] > held


def test_answers_of_a_log(tmp_path: Path, capsys: CaptureFixture) -> None:
    """They are learned without a model being loaded, and beside new ones."""
    log, out = tmp_path / "log.jsonl", tmp_path / "own.base"
    log.write_text(
        json.dumps({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]})
    )
    assert learn(out, "--answers", str(log)) == 0
    assert "source      log.jsonl" in capsys.readouterr().out
    assert not Path(f"{out}.jsonl").exists()
    both = tmp_path / "both.base"
    assert learn(both, *SHORT, "--answers", f"{log}@0.5") == 0
    assert [source["name"] for source in read_base_header(both).facts["sources"]] == ["both.base.jsonl", "log.jsonl"]


def test_what_is_refused(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Before a model is loaded, with a way out."""
    out = tmp_path / "own.base"
    (tmp_path / "log.jsonl").write_text('{"text": "a"}\n')
    for argv, reason in (
        ([], "set --minutes or --tokens"),
        (["--tokens", "1", "--minutes", "1"], "Leave one out"),
        (["--prompts", "p.txt", "--answers", str(tmp_path / "log.jsonl")], "--prompts would be ignored"),
        (["--answers", str(tmp_path / "log.jsonl"), "--top-k", "4"], "would be ignored"),
        (["--answers", str(tmp_path / "log.jsonl"), "--batch", "4"], "would be ignored"),
        (["--tokens", "1", "--temperature", "0", "--seed", "1"], "--seed would be ignored"),
    ):
        assert learn(out, *argv) == 2
        assert reason in capsys.readouterr().err
    out.write_text("mine")
    assert learn(out, "--tokens", "1") == 2
    assert "is not overwritten" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert learn(tmp_path / "b", "--tokens", "1", "--prompts", str(tmp_path / "none.txt")) == 1
    assert "cannot read the prompts" in capsys.readouterr().err
