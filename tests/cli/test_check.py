"""The command that proves that drafts change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models import tiny_model
from speculant.bench.suite import margins as judged
from speculant.bench.suite.margins import Margin
from speculant.cli.main import main
from vocabularies import byte_level

CaptureFixture = pytest.CaptureFixture[str]
SHORT = ["--max-new-tokens", "12", "--device", "cpu"]


def test_fp32_is_exact(tiny_folder: Path, capsys: CaptureFixture) -> None:
    """Every token of every prompt is the plain model's own choice."""
    assert main(["check", str(tiny_folder), "--method", "recycling", *SHORT]) == 0
    out, err = capsys.readouterr()
    assert out == "recycling: 36 tokens: 36 the plain model's argmax, 0 near-ties, 0 wrong; largest margin 0\n"
    assert len(err.splitlines()) == 3


def test_faults_are_listed_and_end_with_1(
    tiny_folder: Path, tmp_path: Path, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near-ties are no fault, another token is; the JSON holds no text."""

    def some(*_: Any) -> list[Margin]:
        return [Margin(0.0, 0.1), Margin(0.05, 0.1), Margin(0.5, 0.1)]

    (tmp_path / "p.txt").write_text("The dog\n")
    monkeypatch.setattr(judged, "margins", some)
    argv = ["check", str(tiny_folder), "--method", "none", "--prompts", str(tmp_path / "p.txt"), *SHORT]
    assert main(argv) == 1
    out = capsys.readouterr().out
    assert "prompt 1, token 2: margin 0.05 (rounding explains 0.1): near-tie\n" in out
    assert "prompt 1, token 3: margin 0.5 (rounding explains 0.1): WRONG\n" in out
    assert main([*argv, "--json"]) == 1
    text = capsys.readouterr().out
    found = json.loads(text)
    assert (found["tokens"], found["near_ties"], found["wrong"], len(found["places"])) == (3, 1, 1, 2)
    assert "dog" not in text


def test_a_prompt_that_does_not_fit(tiny_folder: Path, tmp_path: Path, capsys: CaptureFixture) -> None:
    """It is named by its number."""
    (tmp_path / "p.txt").write_text("The dog\n" + "The dog " * 60)
    assert main(["check", str(tiny_folder), "--prompts", str(tmp_path / "p.txt"), *SHORT]) == 2
    assert "prompt 2: the prompt has" in capsys.readouterr().err


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a smaller random model with a byte-level tokenizer of 320 tokens."""
    folder = tmp_path_factory.mktemp("draft")
    byte_level().save_pretrained(folder)
    tiny_model("llama", vocab_size=320, num_hidden_layers=1, max_position_embeddings=32).save_pretrained(folder)
    return folder


def test_a_pair_of_the_same_vocabulary(tiny_folder: Path, capsys: CaptureFixture) -> None:
    """Guards the report: a model accepts all of its own tokens, and is no use as its own draft model."""
    argv = ["check", str(tiny_folder), "--draft-model", str(tiny_folder), *SHORT]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "vocabulary  the same (4096 of 4096 target tokens, 100.0% are shared)\n" in out
    assert "special     equal: bos, eos, pad, unk\n" in out
    assert "acceptance  100.0% sampled at temperature 1, 100.0% greedy, over 36 tokens\n" in out
    assert "estimated at best 1.00x by parameters and greedy agreement: no speed-up expected.\n" in out


def test_a_pair_of_other_vocabularies(tiny_folder: Path, draft_folder: Path, capsys: CaptureFixture) -> None:
    """Guards pairs that share too few tokens: only drafting through text is left, and the reason is there."""
    argv = ["check", str(tiny_folder), "--draft-model", str(draft_folder), *SHORT]
    assert main([*argv, "--draft-dtype", "bfloat16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["vocabularies"] == "different"
    assert found["methods"] == ["uag"]
    assert found["acceptance"] is None
    assert "share only" in found["obstacles"]["tokens"]
    assert (found["draft"]["dtype"], found["target"]["dtype"]) == ("bfloat16", "float32")
    assert found["draft"]["positions"] == 32
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "verdict     can be used with uag only: the tokenizers" in out
    assert "positions   drafting ends where the draft model has read 32 tokens\n" in out


def test_a_larger_vocabulary_of_the_draft_model(
    tiny_folder: Path, draft_folder: Path, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Guards measured acceptance through the shared tokens, with prompts of the user's."""
    (tmp_path / "p.txt").write_text("The dog\nA bird\n")
    options = ["--prompts", str(tmp_path / "p.txt"), "--device", "cpu", "--max-new-tokens", "4"]
    assert main(["check", str(draft_folder), "--draft-model", str(tiny_folder), *options]) == 0
    out = capsys.readouterr().out
    assert "greedy, over 8 tokens\n" in out
    assert "methods     draft-model, " in out


def test_a_pair_that_cannot_be_used(tiny_folder: Path, tmp_path: Path, capsys: CaptureFixture) -> None:
    """Guards the exit code: without the draft model's tokenizer other sizes cannot be translated."""
    tiny_model("llama", vocab_size=900).save_pretrained(tmp_path)
    assert main(["check", str(tiny_folder), "--draft-model", str(tmp_path), *SHORT]) == 1
    out = capsys.readouterr().out
    assert "methods     none\n" in out
    assert "verdict     cannot be used: the draft model has 900 tokens and the target 4096" in out


def test_a_method_with_a_draft_model_is_proved(tiny_folder: Path, draft_folder: Path, capsys: CaptureFixture) -> None:
    """Guards --method beside --draft-model: drafts through another vocabulary change nothing."""
    argv = ["check", str(tiny_folder), "--method", "uag", "--draft-model", str(draft_folder), *SHORT]
    assert main(argv) == 0
    assert "0 near-ties, 0 wrong" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--draft-dtype", "bfloat16"], "--draft-dtype would be ignored without --draft-model"),
        (["--draft-model", "x", "--nodes", "3"], "belong to a method"),
        (["--draft-model", "x", "--draft-model", "y"], "only one draft model"),
        (["--model", "x"], "both name the model"),
        (["--draft-model", "{draft}", "--draft-device", "nowhere"], "--draft-device: there is no device"),
        (["--draft-model", "{draft}", "--draft-dtype", "float99"], "there is no dtype"),
    ],
)
def test_options_of_draft_models(
    tiny_folder: Path, draft_folder: Path, capsys: CaptureFixture, options: list[str], reason: str
) -> None:
    """Guards options that would be ignored or do not exist."""
    given = [each.format(draft=draft_folder) for each in options]
    assert main(["check", str(tiny_folder), *given, *SHORT]) == 2
    assert reason in " ".join(capsys.readouterr().err.split())
