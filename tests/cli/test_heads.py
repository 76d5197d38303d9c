"""--head in the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heads import random_head
from models import tiny_model
from mtps import FAMILIES, all_tensors, modules_of, write_checkpoint
from speculant.api.loading import bundled_heads, load_tokenizer
from speculant.cli.main import main
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import read_checkpoint
from speculant.drafters.heads.checkpoints.formats import check_sizes
from speculant.drafters.heads.eagle import checkpoint as eagle

CaptureFixture = pytest.CaptureFixture[str]
SHORT = ["--max-new-tokens", "8", "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a random head of the small model."""
    found = tmp_path_factory.mktemp("head")
    head: Any = random_head(tiny_model("llama", vocab_size=4096, max_position_embeddings=48))
    eagle.save(head.head, found, head.target)
    return found


def test_generate_unites_a_head_with_mix(tiny_folder: Path, folder: Path, capsys: CaptureFixture) -> None:
    """Guards the default method, the comparison with plain decoding, and settings of the head."""
    argv = ["generate", "The dog", "--model", str(tiny_folder), "--head", str(folder), "--json", "-", *SHORT]
    assert main([*argv, "--set", "depth=2"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "mix-head"
    assert main([*argv, "--method", "eagle2", "--compare"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "eagle2"


def test_check_describes_a_head(tiny_folder: Path, folder: Path, capsys: CaptureFixture) -> None:
    """Guards the report: format, kind, size, taps and vocabulary; a head that does not fit ends with 1 and why."""
    assert main(["check", str(tiny_folder), "--head", str(folder), *SHORT]) == 0
    out = capsys.readouterr().out
    assert "format      EAGLE-1/2, HASS\n" in out
    assert "kind        eagle\n" in out
    assert "taps        outputs of decoder layers 1 (0 to 1)\n" in out
    assert "vocabulary  4096 of 4096 target tokens\n" in out
    assert "fits        yes\n" in out
    assert "acceptance" in out
    assert main(["check", "--head", str(folder), "--json", *SHORT]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["fits"]
    assert "size 32, but the target's have 256" in found["obstacle"]


def test_check_proves_a_head(tiny_folder: Path, folder: Path, capsys: CaptureFixture) -> None:
    """Guards the proof of tokens, which names the method."""
    assert main(["check", str(tiny_folder), "--head", str(folder), "--method", "eagle", *SHORT]) == 0
    assert capsys.readouterr().out.startswith("eagle: 24 tokens: 24 the plain model's argmax")


@pytest.mark.usefixtures("undrawn")
def test_bench_adds_the_heads_method(tiny_folder: Path, folder: Path, tmp_path: Path, capsys: CaptureFixture) -> None:
    """Guards bench: without --methods the head's own is measured beside mix, and results name the head."""
    (tmp_path / "p.jsonl").write_text('{"prompt": "The dog"}\n')
    argv = ["bench", str(tiny_folder), "--tasks", str(tmp_path / "p.jsonl"), "--head", str(folder), "--trials", "1"]
    assert main([*argv, "--out", str(tmp_path / "out"), "--nodes", "4", *SHORT]) == 0
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [row["method"] for row in found["methods"]] == ["none", "mix", "mix-head"]
    assert found["settings"]["head"] == folder.name
    capsys.readouterr()
    assert main([*argv, "--methods", "mix", "--out", str(tmp_path / "other"), *SHORT]) == 2
    assert "--head would be ignored" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--method", "mix"], "takes no head"),
        (["--head", "./nothing"], "there is no head at"),
        (["--method", "eagle2", "--memory", "m.speculant"], "keeps no memory"),
        (["--set", "dept=2"], "Did you mean 'depth'"),
    ],
)
def test_mistakes_are_found_before_the_model_is_loaded(
    folder: Path, options: list[str], reason: str, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Guards long waits: the model named here cannot be loaded, and is not."""
    (tmp_path / "no-model").mkdir()
    (tmp_path / "no-model" / "config.json").write_text("{}")
    assert main(["generate", "The dog", "--model", str(tmp_path / "no-model"), "--head", str(folder), *options]) != 0
    err = capsys.readouterr().err
    assert reason in err
    assert "no-model" not in err


def test_a_head_of_another_model_is_refused_before_that_is_loaded(
    folder: Path, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Guards long waits: this folder holds the config of the target, and no weights."""
    config = tiny_model("llama", vocab_size=4096).config
    config.hidden_size = 48
    config.save_pretrained(tmp_path)
    argv = ["generate", "The dog", "--model", str(tmp_path), "--head", str(folder)]
    assert main(argv) == 2
    assert "size 32, but the target's have 48: it was trained for another model" in capsys.readouterr().err
    config.hidden_size, config.vocab_size = 32, 100
    config.save_pretrained(tmp_path)
    assert main(argv) == 2
    assert "a vocabulary of 4096 tokens, but the target's has 100" in capsys.readouterr().err


@pytest.mark.parametrize("head", bundled_heads(), ids=lambda head: head.name)
def test_sizes_refuse_other_targets_alone(head: Path) -> None:
    """Guards heads that fit: what a config does not tell is left to the loaded target."""
    checkpoint = read_checkpoint(head)
    check_sizes(checkpoint, hidden_size=256, vocabulary=4096, layers=6)
    with pytest.raises(UnsupportedError, match="the target's have 512"):
        check_sizes(checkpoint, hidden_size=512, vocabulary=4096, layers=6)


def test_an_assistant_is_published_not_trained(tiny_folder: Path, capsys: CaptureFixture) -> None:
    """Guards the way out: `speculant train` makes none."""
    assert main(["generate", "The dog", "--model", str(tiny_folder), "--method", "assistant"]) == 2
    err = capsys.readouterr().err
    assert "needs the assistant published for the Gemma 4 model: pass head=" in err
    assert "speculant train" not in err


def test_a_method_that_needs_a_head_says_so(tiny_folder: Path, capsys: CaptureFixture) -> None:
    """Guards against a long wait for a refusal."""
    assert main(["generate", "The dog", "--model", str(tiny_folder), "--method", "eagle"]) == 2
    assert "needs a trained head: pass head=, or --head" in capsys.readouterr().err


def test_mtp_layers_of_the_model_draft(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Guards the default, `--method mix`, which leaves them out, and methods that need a head and find this one."""
    model = tiny_model("qwen2", vocab_size=4096)
    write_checkpoint(tmp_path, model, all_tensors(modules_of(FAMILIES["mimo"], model)))
    load_tokenizer().save_pretrained(tmp_path)
    argv = ["generate", "The dog", "--model", str(tmp_path), "--json", "-", *SHORT]
    for options, method in (([], "mix-head"), (["--method", "mix"], "mix"), (["--method", "mtp"], "mtp")):
        assert main([*argv, *options]) == 0
        assert json.loads(capsys.readouterr().out)["method"] == method


def test_bundled_heads_by_name(capsys: CaptureFixture) -> None:
    """The best one, united with `mix`, without a method, that of the method with one; methods of others are refused."""
    argv = ["generate", "Once upon a time", "--head", "bundled", "--json", "-", *SHORT]
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "mix-head"
    assert main([*argv, "--method", "medusa"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "medusa"
    assert main([*argv, "--method", "hydra"]) == 2
    assert "none of the heads that come with the package" in capsys.readouterr().err
