"""Folders with quantised weights: written once, loaded as any other, and damage is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from speculant import Speculator
from speculant.api.loading import load_model
from speculant.api.quantize import quantize_model
from speculant.core.errors import FileError, ModelError, UnsupportedError

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.mark.parametrize("scheme", [pytest.param("int8", marks=pytest.mark.slow), "int4"])
def test_a_folder_is_the_model(tmp_path: Path, scheme: str) -> None:
    """Guards config, tokenizer, chat template and weights: what --quantize makes is what the folder holds."""
    folder = tmp_path / "small"
    said = quantize_model("bundled", folder, scheme=scheme, sample="Once upon a time there was a little girl.")
    assert said.loss is not None
    assert said.loss.tokens == 11
    assert said.loss.divergence < (2e-3 if scheme == "int8" else 0.1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small"]
    assert (folder / "chat_template.jinja").exists()
    assert (folder / "model.safetensors").stat().st_mode & 0o444 == (folder / "config.json").stat().st_mode & 0o444
    model, tokenizer = load_model(str(folder))
    direct, _ = load_model(None, quantize=scheme, packed_cache=False)
    ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, direct(ids).logits)
    drafted = Speculator.from_transformers(model, tokenizer).generate("Once upon a time", max_new_tokens=40)
    plain = Speculator.from_transformers(model, tokenizer, method="none").generate(
        "Once upon a time", max_new_tokens=40
    )
    assert drafted.ids == plain.ids


def test_folders_are_not_overwritten(tmp_path: Path) -> None:
    """Guards other people's files, folders that are quantised already, and damaged ones."""
    folder = tmp_path / "small"
    quantize_model("bundled", folder)
    with pytest.raises(FileError, match="not overwritten"):
        quantize_model("bundled", folder)
    with pytest.raises(UnsupportedError, match="already"):
        quantize_model(str(folder), tmp_path / "again")
    with pytest.raises(UnsupportedError, match="quantised already"):
        load_model(str(folder), quantize="int4")
    with pytest.raises(UnsupportedError, match="run on CPUs"):
        load_model(str(folder), device="meta")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match="damaged"):
        load_model(str(folder))


def test_heads_draft_for_quantised_models() -> None:
    """Guards `from_pretrained(head=...)`: a head reads the quantised embedding and output head."""
    texts = [
        Speculator.from_pretrained(quantize="int8", packed_cache=False, **options).generate("Once", max_new_tokens=40)
        for options in ({"head": "bundled", "method": "eagle2", "nodes": 8}, {"method": "none"})
    ]
    assert texts[0].ids == texts[1].ids
    assert texts[0].stats.accepted > 0


def test_the_config_names_the_format(tmp_path: Path) -> None:
    """Guards against other programs that would read the weights as floats."""
    quantize_model("bundled", tmp_path / "small", scheme="int4")
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "speculant", "scheme": "int4", "layout": 1}
