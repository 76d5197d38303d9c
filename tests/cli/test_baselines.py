"""What `generate --compare` decodes beside the drafted text: the same text, by the same passes, teaching nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speculant import Speculator
from speculant.cli.baselines import Baselines
from speculant.cli.loading import Loaded
from speculant.cli.main import main

SHORT = ["--max-new-tokens", "12"]
CaptureFixture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("two_pairs")


@pytest.mark.parametrize("sampling", [[], ["--temperature", "1.2", "--top-k", "20", "--seed", "5"]])
def test_compare_finds_the_same_tokens(sampling: list[str], record: Callable[..., Any]) -> None:
    """Greedy or sampled, the plain loop and model.generate say the same; this is the promise of the project."""
    found = record("Once upon a time", *SHORT, "--compare", *sampling)
    assert found["identical"] is True
    assert found["identical_to_hf"] is True
    low, high = found["speedup_range"]
    assert 0 < low <= found["speedup"] <= high
    assert 1 <= found["pairs"] <= 2
    assert isinstance(found["noisy"], bool)
    assert found["baseline_tokens_per_second"] > 0
    assert found["hf_tokens_per_second"] > 0


def test_compare_with_a_draft_model(tiny_folder: Path, record: Callable[..., Any]) -> None:
    """Greedy, its tokens are those of plain decoding; sampled, only their distribution is, which nobody compares."""
    argv = ["Tom", "--model", str(tiny_folder), "--max-new-tokens", "6", "--nodes", "3", "--compare"]
    argv += ["--method", "draft-model", "--draft-model", str(tiny_folder)]
    greedy = record(*argv)
    assert greedy["identical"] is greedy["identical_to_hf"] is True
    sampled = record(*argv, "--temperature", "1", "--seed", "3")
    assert sampled["identical"] is sampled["identical_to_hf"] is None
    assert sampled["speedup"] > 0


def test_several_draft_models(tiny_folder: Path, record: Callable[..., Any]) -> None:
    """Guards --draft-model where it is repeated: all of them draft, and the text is that of plain decoding."""
    argv = ["Tom", "--model", str(tiny_folder), "--max-new-tokens", "6", "--nodes", "4", "--compare"]
    argv += ["--method", "specinfer", "--draft-model", str(tiny_folder), "--draft-model", str(tiny_folder)]
    found = record(*argv)
    assert found["identical"] is True


@pytest.mark.parametrize("fast", [True, False])
def test_the_baseline_runs_the_same_passes(fast: bool) -> None:
    """A speed-up is that of drafts, whatever --fast and --no-fast make of a pass."""
    speculator = Speculator.from_pretrained(fast=fast)
    baselines = Baselines(Loaded(speculator, None, None, ""), {}, memory_limit=1 << 28, prompts=1)
    assert baselines._plain.fast is speculator.fast
    baselines.close()


def test_compare_leaves_out_what_a_checkpoint_asks_for(
    tiny_folder: Path, tmp_path: Path, record: Callable[..., Any]
) -> None:
    """Guards the reference: where beams are left out of the drafted text, they are left out of `generate`'s."""
    folder = tmp_path / "beams"
    shutil.copytree(tiny_folder, folder)
    config = folder / "generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text("utf-8")) | {"num_beams": 4}), "utf-8")
    found = record("Tom", "--model", str(folder), "--max-new-tokens", "12", "--compare")
    assert found["identical_to_hf"]
    assert any("num_beams=4" in note for note in found["notes"])


def test_compare_without_a_seed_takes_one_and_says_so(capsys: CaptureFixture) -> None:
    """Three runs on three random streams would say three things."""
    assert main(["generate", "Tom", *SHORT, "--compare", "--temperature", "2"]) == 0
    err = capsys.readouterr().err
    assert "--seed 0 is used" in err
    assert "identical   yes" in err


def test_compare_teaches_the_memory_nothing(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The warm-up and the baselines leave the measured memory as it would be without them."""
    for name, more in (("alone", []), ("compared", ["--compare"])):
        for _ in range(2):  # the second time with a memory that is there
            argv = ["generate", "Tom and Sue", *SHORT, "--nodes", "8", "--memory", str(tmp_path / name), *more]
            assert main(argv) == 0
    assert (tmp_path / "alone").read_bytes() == (tmp_path / "compared").read_bytes()


def test_stop_and_compare_agree(record: Callable[..., Any]) -> None:
    """Stop strings reach all three ways of decoding."""
    text = record("Once upon a time", "--max-new-tokens", "40")["text"]
    stop = text[12:15]
    found = record("Once upon a time", "--max-new-tokens", "40", "--stop", stop, "--stop", "qqq", "--compare")
    assert found["finish_reason"] == "stop"
    assert stop in found["text"]
    assert len(found["text"]) < len(text)
    assert found["identical"] is found["identical_to_hf"] is True


def test_a_text_that_fills_the_model_is_compared_too(tiny_folder: Path, record: Callable[..., Any]) -> None:
    """Where positions run out before --max-new-tokens, the reference must stop at the same place."""
    found = record("a b c d", "--model", str(tiny_folder), "--compare", "--max-new-tokens", "100")
    assert found["identical"] is found["identical_to_hf"] is True
    assert "only" in found["notes"][0]
