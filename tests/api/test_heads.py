"""Heads through the API: by folder, opened before, bundled, and of the wrong kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from heads import random_head
from models import tiny_model
from passes import plain_text
from speculant import Speculator
from speculant.api.heads import open_head
from speculant.core.errors import ModelNotFoundError, UnsupportedError, UsageError
from speculant.drafters.heads.eagle import checkpoint as eagle

PROMPT = [5, 9, 14, 3, 8]


@pytest.fixture(scope="module")
def model() -> Any:
    """A target."""
    return tiny_model("llama")


@pytest.fixture
def folder(model: Any, tmp_path: Path) -> Path:
    """A random EAGLE head of the target, as its authors publish one."""
    head: Any = random_head(model)
    eagle.save(head.head, tmp_path, head.target)
    return tmp_path


def test_heads_are_united_with_mix(model: Any, folder: Path) -> None:
    """Guards the default: a head is united with `mix`, unless another method is named; without one it is `mix`."""
    speculator = Speculator.from_transformers(model, head=str(folder), nodes=6)
    assert speculator.method == "mix-head"
    text = speculator.generate(PROMPT, max_new_tokens=12, temperature=0).ids
    assert text == plain_text(model, torch.tensor([PROMPT]), 12)
    assert Speculator.from_transformers(model, head=folder, method="eagle2").method == "eagle2"
    drawn = Speculator.from_transformers(model, head=folder, verifier="speculative-sampling")
    assert drawn.method == "eagle2"
    assert Speculator.from_transformers(model).method == "mix"


def test_an_opened_head_is_shared(model: Any, folder: Path) -> None:
    """Guards memory: speculators of one model share one head, and another model does not take it."""
    head = open_head(folder, model)
    assert Speculator.from_transformers(model, head=head).drafter.head is head  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="opened for another model"):
        Speculator.from_transformers(tiny_model("llama"), head=head)


def test_wrong_heads_are_refused(model: Any, folder: Path, tmp_path: Path) -> None:
    """Guards what cannot work: another size, no such folder, no head, a method that takes none or other kinds."""
    with pytest.raises(UnsupportedError, match="size 32, but the target's have 64"):
        Speculator.from_transformers(tiny_model("llama", hidden_size=64), head=folder)
    with pytest.raises(ModelNotFoundError, match="there is no head at"):
        Speculator.from_transformers(model, head=str(tmp_path / "nothing"))
    for wrong in (7, ""):
        with pytest.raises(UsageError, match="head must be a folder, a hub id"):
            Speculator.from_transformers(model, head=wrong)
    with pytest.raises(UsageError, match="takes no head"):
        Speculator.from_transformers(model, head=folder, method="mix")
    for method in ("eagle", "mix-head"):
        with pytest.raises(UsageError, match="needs a trained head"):
            Speculator.from_transformers(model, method=method)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", "[1]", "is not a JSON object"),
        ("config.json", "{", "is not JSON"),
        ("config.json", '{"num_attention_heads": "many"}', "cannot be built from its config.json"),
        ("config.json", "{}", "'num_attention_heads'"),
        ("model.safetensors", "abc", "cannot be read as weights"),
    ],
)
def test_damaged_files_are_one_paragraph(model: Any, folder: Path, name: str, content: str, reason: str) -> None:
    """Guards messages: one paragraph with the cause, never a traceback of json, torch or safetensors."""
    (folder / name).write_text(content)
    with pytest.raises((ModelNotFoundError, UnsupportedError), match=reason) as caught:
        Speculator.from_transformers(model, head=folder)
    assert "\n" not in str(caught.value)


def test_pickles_with_code_are_not_executed(model: Any, folder: Path) -> None:
    """Guards the user: such a file is refused in one paragraph; states that trainers leave are not read at all."""
    weights = folder / "model.safetensors"
    torch.save(Path("x"), folder / "training_args.bin")
    Speculator.from_transformers(model, head=folder)
    weights.unlink()
    torch.save({"a": Path("x")}, folder / "pytorch_model.bin")
    with pytest.raises(ModelNotFoundError, match="no code is run") as caught:
        Speculator.from_transformers(model, head=folder)
    assert "\n" not in str(caught.value)
    torch.save([torch.zeros(2)], folder / "pytorch_model.bin")
    with pytest.raises(ModelNotFoundError, match="not tensors by name"):
        Speculator.from_transformers(model, head=folder)
