"""The command that times methods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig, AutoTokenizer

from bases import saved_base
from models import SHAPE
from speculant.bench.suite.runner import Runner
from speculant.cli import bench_progress
from speculant.cli.main import main
from speculant.core.errors import SpeculantError
from speculant.drafters.mix.drafter import MixDrafter
from speculant.memory.fingerprint import tokenizer_fingerprint

CaptureFixture = pytest.CaptureFixture[str]
METHODS = "none,aded,mix,hf:generate,hf:prompt-lookup"


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


@pytest.fixture(autouse=True)
def however_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print no progress on a machine so busy that a run of milliseconds takes minutes."""
    monkeypatch.setattr(bench_progress, "LONG", float("inf"))


@pytest.fixture
def forced(tmp_path: Path) -> list[str]:
    """Return the arguments of a forced run on a small shape: two outputs, the first too long for its positions."""
    rows = [{"prompt_ids": [1, i], "output_ids": [4, 5, 6, 2] * (30 // i), "category": "x"} for i in (1, 3)]
    trace = write(tmp_path / "model-task.jsonl", *rows)
    config = write(tmp_path / "config.json", SHAPE | {"model_type": "llama", "max_position_embeddings": 64})
    return ["bench", "--forced", trace, "--config", config, "--out", str(tmp_path / "out"), "--device", "cpu"]


def test_a_forced_run(forced: list[str], tmp_path: Path, capsys: CaptureFixture) -> None:
    """All methods follow the recording, and the promised files say how; none holds a path."""
    assert main([*forced, "--methods", METHODS, "--nodes", "8"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [line.split()[:2] for line in out.splitlines()[1:6]] == [["model-task", name] for name in METHODS.split(",")]
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    for row in found["methods"]:
        assert {"method", "task", "tokens", "rounds", "mat", "tokens_per_second", "speedup"} <= row.keys()
        assert row["time_share"].keys() == {"draft", "target", "rest"}
        assert (row["tokens"], row["identical"], row["compared"]) == (62 + 40, 2, 2)
    by_method = {row["method"]: row for row in found["methods"]}
    assert by_method["none"]["mat"] == by_method["hf:generate"]["mat"] == by_method["none"]["speedup"] == 1.0
    assert min(by_method[name]["mat"] for name in ("aded", "mix", "hf:prompt-lookup")) > 1.5
    assert found["labels"] == ["forced", "random weights"]
    assert (found["settings"]["trials"], found["settings"]["tasks"]) == (1, {"model-task": 2})
    assert "python" in found["environment"]
    for name in ("result.json", "table.md", "report.html"):
        text = (tmp_path / "out" / name).read_text()
        assert "1 of 2 outputs were cut" in text
        assert str(tmp_path) not in text
    assert not (tmp_path / "out" / "memory").exists()


@pytest.mark.usefixtures("undrawn")
def test_going_on(forced: list[str], tmp_path: Path, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished run is only written again; other settings are refused until --restart."""
    assert main([*forced, "--methods", "none"]) == 0
    before = (tmp_path / "out" / "result.json").read_text()
    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr(Runner, "warm_up", None)
        assert main([*forced, "--methods", "none"]) == 0
    assert "continuing the run" in capsys.readouterr().err
    assert (tmp_path / "out" / "result.json").read_text() == before
    assert main([*forced, "--methods", "none", "--limit", "1", "--max-depth", "2"]) == 2
    assert "other settings (limit, max_depth)" in capsys.readouterr().err
    assert main([*forced, "--methods", "none", "--limit", "1", "--restart"]) == 0


@pytest.mark.usefixtures("undrawn")
def test_a_free_run(tmp_path: Path, tiny_folder: Path) -> None:
    """A model answers prompts, greedily and by chance, as plain decoding does; several trials give a spread."""
    task = write(tmp_path / "mine.jsonl", {"turns": ["Once upon a time", "And then"]}, {"prompt": "The dog"})
    argv = ["bench", str(tiny_folder), "--tasks", task, "--methods", "lookup,hf:generate,hf:prompt-lookup"]
    argv += [
        "--temperature",
        "0,1",
        "--max-new-tokens",
        "6",
        "--trials",
        "2",
        "--out",
        str(tmp_path / "out"),
        "--device",
        "cpu",
    ]
    assert main(argv) == 0
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    compared = {(row["temperature"], row["method"]): row["compared"] for row in found["methods"]}
    assert set(compared.values()) == {0, 6}
    assert [key for key, each in compared.items() if not each] == [(1.0, "hf:prompt-lookup")]
    for row in found["methods"]:
        assert row["identical"] == row["compared"]
        assert (row["requests"], row["trials"]) == (3, 2)
        assert len(row["speedup_spread"]) == 2
    text = (tmp_path / "out" / "rows.jsonl").read_text() + json.dumps(found)
    assert "Once upon" not in text
    assert found["settings"]["model"] == tiny_folder.name


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("option", ["--draft-model", pytest.param("--assistant", marks=pytest.mark.slow)])
def test_methods_with_a_draft_model(option: str, tmp_path: Path, tiny_folder: Path) -> None:
    """They are timed beside the others and hf:assisted; sampled text is compared only where its tokens are promised."""
    task = write(tmp_path / "mine.jsonl", {"prompt": "The dog"}, {"prompt": "A cat"})
    methods = "draft-model,opt-tree,hf:assisted"
    argv = ["bench", str(tiny_folder), "--tasks", task, "--methods", methods, option, str(tiny_folder)]
    argv += ["--temperature", "0,1", "--max-new-tokens", "8", "--trials", "1", "--nodes", "4", "--batch", "1,2"]
    argv += ["--set", "draft-model.length=3", "--set", "top_k=2", "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main(argv) == 0
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert found["settings"]["draft_model"] == tiny_folder.name
    settings = found["settings"]["method_settings"]
    assert (settings["draft-model"]["length"], settings["opt-tree"]["top_k"]) == (3, 2)
    rows = {(row["method"], row["temperature"], row["batch"]): row for row in found["methods"]}
    uncompared = {key for key, row in rows.items() if not row["compared"]}
    assert uncompared == {("draft-model", 1.0, 1), ("draft-model", 1.0, 2), ("hf:assisted", 1.0, 1)}
    assert all(row["identical"] == row["compared"] for row in rows.values())
    assert rows["draft-model", 0.0, 1]["mat"] > 2
    assert "Settings of opt-tree: depth=5, top_k=2" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_run_with_a_base(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base that is named is used and stands in the results; those of the user's folder are not."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    vocabulary = AutoConfig.from_pretrained(tiny_folder).vocab_size
    texts = [np.random.default_rng(0).integers(0, len(tokenizer), 2000).astype(np.int32)]
    folder, fingerprint = tmp_path / "bases", tokenizer_fingerprint(tokenizer, vocabulary)
    folder.mkdir()
    monkeypatch.setenv("SPECULANT_BASES", str(folder))
    base = saved_base(folder / "b.speculant", texts, vocabulary=vocabulary, tokenizer=fingerprint)
    task = write(tmp_path / "mine.jsonl", {"prompt": "The dog"})
    used: list[int] = []
    monkeypatch.setattr(MixDrafter, "open", _counted(MixDrafter.open, used))
    argv = ["bench", str(tiny_folder), "--tasks", task, "--methods", "mix,lookup", "--max-new-tokens", "6"]
    argv += ["--trials", "1", "--nodes", "4", "--device", "cpu"]
    for name, options, count in (("with", ["--base", str(base)], 1), ("without", [], 0)):
        used.clear()
        assert main([*argv, *options, "--out", str(tmp_path / name)]) == 0
        assert set(used) == {count}
        found = json.loads((tmp_path / name / "result.json").read_text())
        assert [each["name"] for each in found["settings"].get("bases", [])] == ["b.speculant"] * count
        assert all(row["identical"] == row["compared"] for row in found["methods"])
        assert ("b.speculant" in (tmp_path / name / "report.html").read_text()) == bool(count)


@pytest.mark.usefixtures("undrawn")
def test_a_forced_run_with_a_base(forced: list[str], tiny_folder: Path, tmp_path: Path, capsys: CaptureFixture) -> None:
    """Guards speed with a base on a shape: --tokenizer says whose ids the recordings hold, and the base is used."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    known = np.array([4, 5, 6, 2] * 500, np.int32)
    fingerprint = tokenizer_fingerprint(tokenizer, len(tokenizer))
    argv = [*forced, "--methods", "mix", "--nodes", "4", "--tokenizer", str(tiny_folder)]
    config = json.loads((tmp_path / "config.json").read_text()) | {"vocab_size": len(tokenizer)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    mats = {}
    for name, print_ in (("fit", fingerprint), ("foreign", "other")):
        base = saved_base(tmp_path / name, [known], vocabulary=len(tokenizer), tokenizer=print_)
        code = main([*argv, "--base", str(base), "--out", str(tmp_path / f"out-{name}")])
        assert (code == 0) is (name == "fit")
    assert "tokenizer" in capsys.readouterr().err
    assert main(argv) == 0
    for name in ("out", "out-fit"):
        found = json.loads((tmp_path / name / "result.json").read_text())
        mats[name] = found["methods"][1]["mat"]
        assert [each["name"] for each in found["settings"].get("bases", [])] == ["fit"] * (name == "out-fit")
    assert mats["out-fit"] > mats["out"]


def _counted(open_session: Any, used: list[int]) -> Any:
    """Return `MixDrafter.open`, which notes how many bases its drafter has."""

    def opened(self: MixDrafter, start: Any) -> Any:
        used.append(len(self.bases))
        return open_session(self, start)

    return opened


@pytest.mark.usefixtures("undrawn")
def test_an_inflated_run(tmp_path: Path, tiny_folder: Path) -> None:
    """The model is padded, and every report says so."""
    trace = write(tmp_path / "t.jsonl", {"prompt_ids": [1, 5], "output_ids": [4, 5, 6]})
    argv = ["bench", str(tiny_folder), "--forced", trace, "--inflate", "4x64", "--methods", "none"]
    assert main([*argv, "--out", str(tmp_path / "out"), "--device", "cpu"]) == 0
    assert json.loads((tmp_path / "out" / "result.json").read_text())["labels"] == ["forced", "inflated"]
    assert "Inflated to 4x64" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--batch", "2,x"], "--batch must be a whole number of 1 or more, not 'x'"),
        (["--tasks", "gsm8k"], "either --tasks, or --forced"),
        (["--temperature", "1"], "samples nothing"),
        (["--temperature", "x"], "--temperature must be a number, not 'x'"),
        (["--temperature", "inf"], "--temperature must be 0, for greedy decoding, or a finite number"),
        (["--max-new-tokens", "3", "--data", "x"], "leave --max-new-tokens and --data out"),
        (["--methods", "recycling"], "without --forced"),
        (["--methods", "mxi"], "Did you mean 'mix'"),
        (["--draft-model", "an/other"], "--draft-model would be ignored"),
        (["--assistant", "an/other"], "--draft-model would be ignored"),
        (["--methods", "draft-model", "--draft-model", "an/other"], "would have to continue the recorded text"),
        (["--set", "copied=3"], "has no setting 'copied'"),
        (["--methods", "mix,aded", "--set", "cut=0.3"], "fits mix and aded. Say which one: --set mix.cut=0.3"),
        (["--set", "lookup.copied=3"], "'lookup' is none of the methods none, mix"),
        (["--config", "nowhere"], "cannot read nowhere"),
        (["--inflate", "many"], "--inflate takes"),
        (["--inflate", "1x4"], "it can be inflated, not cut to 1 layers and 4"),
        (["--forced", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
        (["--forced", "a/t.jsonl", "b/t.jsonl"], "different names"),
        (["--seed", "1"], "--seed would be ignored"),
        (["--base", "missing"], "there is no base missing"),
        (["--base", "bundled"], "name the recordings' by --tokenizer"),
        (["--methods", "aded", "--base", "bundled"], "--base would be ignored: none of none, aded takes one"),
    ],
)
def test_faults_come_before_the_work(
    argv: list[str], message: str, forced: list[str], capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot go well is said before anything is decoded."""
    monkeypatch.setattr(Runner, "warm_up", None)
    assert main([*forced, *argv]) in (1, 2)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "either --tasks"),
        (["--tasks", ","], "at least one task"),
        (["--tasks", "x", "--config", "c"], "--config needs --forced"),
        (["m", "--forced", "x", "--config", "c"], "leave one out"),
        (["--tasks", "nothing"], "no task 'nothing'"),
        (["m", "--tasks", "gsm8k", "--tokenizer", "t"], "--tokenizer is for recordings"),
    ],
)
def test_misuse(argv: list[str], message: str, tmp_path: Path, capsys: CaptureFixture) -> None:
    """Options that contradict each other are told apart."""
    assert main(["bench", *argv, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_the_output_must_be_a_folder(forced: list[str], tmp_path: Path, capsys: CaptureFixture) -> None:
    """Said before the model is made."""
    (tmp_path / "out").write_text("")
    assert main(forced) == SpeculantError.exit_code
    assert "is a file" in capsys.readouterr().err


def test_files_of_others_are_not_overwritten(forced: list[str], tmp_path: Path, capsys: CaptureFixture) -> None:
    """A report or rows that no run left there may be somebody's work."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.html").write_text("mine")
    assert main(forced) == 2
    assert "holds report.html that" in capsys.readouterr().err
    (tmp_path / "out" / "report.html").unlink()
    (tmp_path / "out" / "rows.jsonl").write_text("mine")
    assert main([*forced, "--restart"]) == 2
    assert "holds rows.jsonl that" in capsys.readouterr().err
    assert (tmp_path / "out" / "rows.jsonl").read_text() == "mine"


def test_table_and_json_without_the_page(
    forced: list[str], tmp_path: Path, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the packages of the page the figures are written all the same, and that is said before the work."""
    monkeypatch.setattr("speculant.bench.report.extra.find_spec", lambda _: None)
    assert main([*forced, "--methods", "none"]) == 0
    assert "report.html is not: pages with charts need" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["result.json", "rows.jsonl", "table.md"]


@pytest.mark.usefixtures("undrawn")
def test_bad_rows_are_skipped_and_counted(forced: list[str], tmp_path: Path, capsys: CaptureFixture) -> None:
    """One bad row of a recording costs that row alone, as in a replay."""
    with Path(forced[2]).open("a") as file:
        file.write("{no json\n")
    assert main([*forced, "--methods", "none"]) == 0
    out, err = capsys.readouterr()
    assert "model-task.jsonl:3: not JSON" in err
    assert "Rows left out, since they could not be used: 1." in out
    assert "MAT: mean accepted tokens per target pass" in " ".join(out.split())
