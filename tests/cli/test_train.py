"""The commands that train heads, from arguments to folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from speculant.cli.main import main
from speculant.cli.train_progress import line
from speculant.cli.values import byte_count
from speculant.training.evaluate import Acceptance
from speculant.training.kinds import KINDS
from speculant.training.progress import Progress
from speculant.training.settings import TrainSettings

CaptureFixture = pytest.CaptureFixture[str]
SHORT = ["--steps", "4", "--evaluate-steps", "2", "--texts", "4", "--anchors", "4", "--threads", "1"]


@pytest.fixture
def texts(tmp_path: Path, tiny_folder: Path) -> Path:
    """Return a folder of texts that the tiny model wrote."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Once upon a time\nTom had a dog\nThe cat sat\n")
    assert main([*DATA, str(tiny_folder), "--prompts", str(prompts), "--out", str(tmp_path / "texts")]) == 0
    return tmp_path / "texts"


DATA = ["train", "data", "--texts", "12", "--rows", "6", "--new-tokens", "20", "--threads", "1", "--model"]


def test_from_prompts_to_a_head_that_drafts(
    texts: Path, tiny_folder: Path, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Guards the path of the manual: write texts, train on them, generate with the head."""
    assert sorted(each.name for each in texts.iterdir()) == ["data.json", "texts-00000.npz", "texts-00001.npz"]
    out = tmp_path / "head"
    given = ["--model", str(tiny_folder), "--data", str(texts), "--out", str(out), *SHORT]
    assert main(["train", "eagle", *given]) == 0
    stdout, stderr = capsys.readouterr()
    assert "acceptance " in stdout
    assert "step 4 of 4" in stderr
    assert "warning" not in stderr
    record = json.loads((out / "training.json").read_text())
    assert record["target"]["name"] == tiny_folder.name
    card = (out / "README.md").read_text()
    assert "| 4 | " in card
    assert str(tmp_path) not in card
    assert main(["train", "eagle", *given]) == 2
    assert "trained head already" in capsys.readouterr().err
    assert main(["train", "eagle", *given, "--resume"]) == 0
    assert "finished" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on(
    texts: Path, tiny_folder: Path, tmp_path: Path, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the message, the exit code, and that the same command with --resume ends the training."""
    import signal

    from speculant.training.trainer import Trainer

    given = [
        "train",
        "eagle",
        "--model",
        str(tiny_folder),
        "--data",
        str(texts),
        "--out",
        str(tmp_path / "head"),
        *SHORT,
    ]
    train = Trainer._step

    def interrupted(self: Trainer, done: float) -> None:
        if self.state.step == 2:
            signal.raise_signal(signal.SIGTERM)
        train(self, done)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", interrupted)
        assert main(given) == 143
    assert "--resume goes on" in capsys.readouterr().err
    assert main(given) == 2
    assert main([*given, "--resume"]) == 0
    assert "going on from step 3" in capsys.readouterr().err


def test_options_of_a_kind_are_set_by_name(
    texts: Path, tiny_folder: Path, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Guards --set: values by the type of their default, names that are not there refused."""
    given = ["--model", str(tiny_folder), "--data", str(texts), "--out", str(tmp_path / "head"), *SHORT]
    assert main(["train", "mlp", *given, "--set", "inner=16", "--set", "tied=true"]) == 0
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["inner_dim"] == 16
    assert config["tie_weights"] is True
    other = [each if each != str(tmp_path / "head") else str(tmp_path / "other") for each in given]
    assert main(["train", "mlp", *other, "--set", "width=16"]) == 2
    assert "inner" in capsys.readouterr().err
    assert main(["train", "mlp", *other, "--set", "inner=big"]) == 2
    assert "whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--data", "nothing-here"], "no data at"),
        (["--data", __file__], r".jsonl file was expected"),
        (["--data", "x", "--loss", "mse"], "no loss"),
        (["--data", "x", "--cache", "much"], "2GB"),
        (["--data", "x", "--lr", "0"], "above 0"),
    ],
)
def test_bad_requests_name_the_reason(
    arguments: list[str], reason: str, tiny_folder: Path, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Guards cause and exit code; nothing is left behind."""
    given = ["train", "eagle", "--model", str(tiny_folder), "--out", str(tmp_path / "head"), *arguments]
    assert main(given) in (1, 2)
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "head").exists()


@pytest.mark.parametrize(
    "arguments",
    [["--temperature", "warm"], ["--opening", "9-3"], ["--temperature", "0:2"], ["--rows", "0"]],
)
def test_bad_requests_of_texts_name_the_option(arguments: list[str], tmp_path: Path, capsys: CaptureFixture) -> None:
    """Guards the options of `train data`, before a model is loaded."""
    assert main(["train", "data", "--prompts", "p.txt", "--out", str(tmp_path / "x"), *arguments]) == 2
    assert arguments[0] in capsys.readouterr().err


def test_help_names_every_kind(capsys: CaptureFixture) -> None:
    """Guards the list of commands."""
    assert main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f" {kind.name} " in out for kind in KINDS)
    assert main(["train", "eagle", "--help"]) == 0
    assert "torchrun" in capsys.readouterr().out


def test_progress_lines_have_losses_and_acceptance() -> None:
    """Guards the line of a measurement, and that of a step without one."""
    found = Acceptance((0.7, 0.5), (0.6, 0.4), 2.2, 1.9, 100)
    now = Progress(200, 0.5, (0.41, 0.52), 30.0, 31.0, 1234.5, found, True)
    settings = TrainSettings(steps=400)
    assert line(now, settings) == (
        "step 200 of 400  loss 0.410 0.520  agreement 0.700 0.500 (chain 2.20) *  1,234 tokens/s  31 seconds left"
    )
    assert line(Progress(3, 0.01, (1.0,), 1.0, None, 10.0), settings) == "step 3 of 400  loss 1.000  10 tokens/s"


def test_numbers_of_bytes() -> None:
    """Guards --cache."""
    assert [byte_count(text) for text in ("0", "2GB", "1.5 mb", "10")] == [0, 2_000_000_000, 1_500_000, 10]
