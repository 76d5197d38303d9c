"""The commands that train heads, from arguments to folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models import tiny_model
from speculant.cli.main import main
from speculant.cli.train_progress import line, loss_by_depth
from speculant.training.evaluate import Acceptance
from speculant.training.kinds import DRAFT_MODEL, KINDS
from speculant.training.progress import Progress
from speculant.training.settings import TrainSettings

CaptureFixture = pytest.CaptureFixture[str]
DRAFT = ["train", "draft-model"]
SHORT = ["--steps", "4", "--evaluate-steps", "2", "--texts", "4", "--anchors", "4", "--threads", "1"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """Return a folder of texts that the tiny model wrote."""
    folder = tmp_path_factory.mktemp("texts")
    prompts = folder / "prompts.txt"
    prompts.write_text("Once upon a time\nTom had a dog\nThe cat sat\n")
    assert main([*DATA, str(tiny_folder), "--prompts", str(prompts), "--out", str(folder / "texts")]) == 0
    return folder / "texts"


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model with another vocabulary."""
    folder = tmp_path_factory.mktemp("other")
    tiny_model("llama").save_pretrained(folder)
    return folder


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
    assert "warning: the texts" not in stderr
    record = json.loads((out / "training.json").read_text())
    assert record["target"]["name"] == tiny_folder.name
    card = (out / "README.md").read_text()
    assert "| 4 | " in card
    assert str(tmp_path) not in card
    assert main(["train", "eagle", *given]) == 2
    assert "trained head already" in capsys.readouterr().err
    assert main(["train", "eagle", *given, "--resume"]) == 2
    assert "is finished, so there is nothing to go on with. To train it further" in capsys.readouterr().err


def test_a_training_that_gained_nothing_says_so(
    texts: Path, tiny_folder: Path, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Guards against a head that is as it was at first and looks trained; losses before the first step are no 0.000."""
    given = ["--model", str(tiny_folder), "--data", str(texts), "--out", str(tmp_path / "head"), *SHORT]
    assert main(["train", "eagle", *given, "--lr", "1e-12"]) == 0
    err = capsys.readouterr().err
    assert "warning: no measurement was better than the first, so the head is unchanged" in err
    assert "step 0 of 4  loss -  agreement" in err


def test_as_many_texts_as_prompts(tiny_folder: Path, tmp_path: Path, capsys: CaptureFixture) -> None:
    """Without --texts and --rows no more are written than there are prompts, and later more can be added."""
    (tmp_path / "p.txt").write_text("Once upon a time\nTom had a dog\nThe cat sat\n")
    argv = ["train", "data", "--model", str(tiny_folder), "--prompts", str(tmp_path / "p.txt"), "--new-tokens", "5"]
    argv += ["--out", str(tmp_path / "texts"), "--threads", "1"]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert "texts       3 in" in out
    assert "1 shard of 3 texts" in err
    assert main([*argv, "--texts", "6"]) == 0
    assert "found       1 shard of an earlier run" in capsys.readouterr().out


def test_from_texts_to_a_draft_model_that_drafts(
    texts: Path, tiny_folder: Path, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Guards the path of the manual for draft models: train one, align it, generate with it; the text is the same."""
    out, given = tmp_path / "draft", ["--model", str(tiny_folder), "--data", str(texts), *SHORT]
    assert main([*DRAFT, *given, "--out", str(out), "--set", "hidden=32", "--set", "layers=1"]) == 0
    assert "draft model " in capsys.readouterr().out
    files = {each.name for each in out.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md", "training.json"} <= files
    card = (out / "README.md").read_text()
    assert "new weights (hidden=32, layers=1)" in card
    assert str(tmp_path) not in card
    aligned = [*DRAFT, *given, "--out", str(tmp_path / "aligned"), "--init", str(out), "--before", str(out)]
    assert main([*aligned, "--on-policy", "0.5", "--new-tokens", "6", "--save-dtype", "bfloat16"]) == 0
    card = (tmp_path / "aligned" / "README.md").read_text()
    assert "| begun with | draft |" in card
    assert "50% of the batches" in card
    assert "| complements | draft:" in card
    assert main([*DRAFT, *given, "--out", str(out)]) == 2
    assert "trained draft model already" in capsys.readouterr().err
    generate = ["generate", "Once", "--model", str(tiny_folder), "--max-new-tokens", "12", "--threads", "1", "--method"]
    assert main([*generate, "none"]) == 0
    plain = capsys.readouterr().out
    assert main([*generate, "draft-model", "--draft-model", str(tmp_path / "aligned"), "--nodes", "3"]) == 0
    assert capsys.readouterr().out == plain


def test_from_texts_to_a_pard_model_that_drafts(
    texts: Path, tiny_folder: Path, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Guards the path of the manual for PARD models: the folder is a model with its mask, and drafts as a head."""
    out, given = tmp_path / "pard", ["--model", str(tiny_folder), "--data", str(texts), *SHORT, "--depth", "2"]
    assert main(["train", "pard", *given, "--out", str(out), "--set", "hidden=32", "--set", "layers=1"]) == 0
    assert {"model.safetensors", "tokenizer.json", "training.json"} <= {each.name for each in out.iterdir()}
    assert "pard_token" in json.loads((out / "config.json").read_text())
    assert "parallel_drafting" in (out / "README.md").read_text()
    generate = ["generate", "Once", "--model", str(tiny_folder), "--max-new-tokens", "12", "--threads", "1", "--method"]
    capsys.readouterr()
    assert main([*generate, "none"]) == 0
    plain = capsys.readouterr().out
    assert main([*generate, "pard", "--head", str(out), "--nodes", "3"]) == 0
    assert capsys.readouterr().out == plain


def test_a_draft_model_of_another_shape(texts: Path, tiny_folder: Path, tmp_path: Path) -> None:
    """Guards --like: the config of another model with the target's vocabulary."""
    tiny_model("qwen3").config.save_pretrained(tmp_path / "shape")
    given = ["--model", str(tiny_folder), "--data", str(texts), "--out", str(tmp_path / "draft"), *SHORT]
    assert main([*DRAFT, *given, "--like", str(tmp_path / "shape"), "--set", "layers=2"]) == 0
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert (config["model_type"], config["vocab_size"], config["num_hidden_layers"]) == ("qwen3", 4096, 2)
    assert "the shape of shape, layers=2" in (tmp_path / "draft" / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--on-policy", "1.5"], "share from 0 to 1"),
        (["--on-policy", "much"], "--on-policy"),
        (["--new-tokens", "8"], "--new-tokens would be ignored without --on-policy"),
        (["--temperature", "0"], "above 0"),
        (["--init", "x", "--like", "y"], "leave one of them out"),
        (["--init", "x", "--set", "layers=1"], "no effect"),
        (["--init", "./nowhere"], "there is no model at ./nowhere"),
        (["--before", "./nowhere"], "there is no model at ./nowhere"),
        (["--like", "./nowhere"], "there is no model at ./nowhere"),
        (["--init", "{other}"], "another vocabulary"),
        (["--before", "{other}"], "another vocabulary"),
        (["--set", "depth=1"], "the kind 'draft-model' has no setting 'depth'"),
        (["--set", "layers=-1"], "must be 1 or more"),
        (["--depth", "2"], "no option --depth"),
    ],
)
def test_bad_requests_of_draft_models_name_the_reason(
    arguments: list[str],
    reason: str,
    texts: Path,
    other_model: Path,
    tiny_folder: Path,
    tmp_path: Path,
    capsys: CaptureFixture,
) -> None:
    """Guards cause and exit code, for draft models of another vocabulary too; nothing is left behind."""
    given = [each.format(other=other_model) for each in arguments]
    out = tmp_path / "draft"
    assert main([*DRAFT, "--model", str(tiny_folder), "--data", str(texts), "--out", str(out), *given]) in (1, 2)
    assert reason in capsys.readouterr().err
    assert not out.exists()


def test_heads_have_no_options_of_draft_models(capsys: CaptureFixture) -> None:
    """Guards options that would have no effect, in the help and when they are given."""
    assert main(["train", "eagle", "--data", "x", "--out", "y", "--on-policy", "0.5"]) == 2
    assert "--on-policy" in capsys.readouterr().err
    for kind in ("eagle", "draft-model", "pard"):
        assert main(["train", kind, "--help"]) == 0
        listed = capsys.readouterr().out
        assert ("--on-policy" in listed) is (kind == "draft-model")
        assert ("--like" in listed) is (kind != "eagle")
        assert ("--feature-weight" in listed) is (kind == "eagle")
        assert ("--depth " in listed) is (kind != "draft-model")


def test_heads_and_model_trained_together(
    texts: Path, tiny_folder: Path, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Guards --joint from the command to a whole model beside the heads, and that other kinds do not have it."""
    out = tmp_path / "pair"
    given = ["--data", str(texts), "--out", str(out), *SHORT, "--rank", "2", "--joint-from", "0.5"]
    assert main(["train", "medusa", "--model", str(tiny_folder), *given]) == 2
    assert "--joint-from would be ignored without --joint" in capsys.readouterr().err
    assert main(["train", "medusa", "--model", str(tiny_folder), *given, "--joint"]) == 0
    assert "nats of KL from the original" in capsys.readouterr().out
    assert json.loads((out / "training.json").read_text())["settings"]["feature_weight"] == 5
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {each.name for each in (out / "model").iterdir()}
    assert main(["train", "eagle", "--model", str(tiny_folder), *given, "--joint"]) == 2


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
    assert "--resume continues" in capsys.readouterr().err
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
        (["--data", "nothing-here"], "there is no file or folder nothing-here"),
        (["--data", __file__], r".jsonl file was expected"),
        (["--data", __file__, "--loss", "mse"], "no loss"),
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
    assert all(f" {kind.name} " in out for kind in (*KINDS, DRAFT_MODEL))
    assert main(["train", "eagle", "--help"]) == 0
    assert "torchrun" in capsys.readouterr().out


def test_progress_lines_have_losses_and_acceptance() -> None:
    """Guards the line of a measurement, and that of a step without one."""
    found = Acceptance((0.7, 0.5), (0.6, 0.4), 2.2, 1.9, 100)
    now = Progress(200, 0.5, (0.41, 0.52), 30.0, 31.0, 1234.5, found, True)
    settings = TrainSettings(steps=400)
    assert line(now, settings) == (
        "step 200 of 400  loss at depths 1 to 2: 0.410 0.520  agreement 0.700 0.500 (chain of 2.20 tokens, best so far)"
        "  1,234 tokens/s  31 seconds left"
    )
    assert loss_by_depth(Progress(0, 0.0, (0.5, 0.0), 0.0, None, 0.0)) == "loss at depths 1 to 2: 0.500 -"
    assert line(Progress(3, 0.01, (1.0,), 1.0, None, 10.0), settings) == "step 3 of 400  loss 1.000  10 tokens/s"
