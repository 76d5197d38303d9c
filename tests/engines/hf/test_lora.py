"""LoRA adapters: what is refused before a model is loaded, and what merging one gives."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from models import endless
from speculant.core.errors import ModelError, ModelNotFoundError, UnsupportedError
from speculant.engines.hf.lora import check_adapter, merge_adapter

peft = pytest.importorskip("peft", reason="needs the extra `lora`")


@pytest.fixture
def base(tmp_path: Path) -> tuple[Any, str]:
    """Return a random model and its folder."""
    model = endless("llama")
    model.save_pretrained(tmp_path / "base")
    return model, str(tmp_path / "base")


@pytest.fixture
def adapter(base: tuple[Any, str], tmp_path: Path) -> str:
    """Return the folder of a random adapter of it."""
    return save_adapter(base[0], tmp_path / "adapter")


def save_adapter(model: Any, folder: Path, **options: Any) -> str:
    """Save a random adapter of a model."""
    torch.manual_seed(0)
    config = peft.LoraConfig(
        **{"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"], "init_lora_weights": False} | options
    )
    peft.get_peft_model(copy.deepcopy(model), config).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}])
def test_merged_logits(base: tuple[Any, str], tmp_path: Path, options: dict[str, Any]) -> None:
    """Guards merging: logits are those of PEFT's own passes, and not those of the model without it."""
    folder, (model, source) = save_adapter(base[0], tmp_path / "adapter", **options), base
    check_adapter(folder, source)
    ids = torch.arange(3, 23)[None]
    with torch.no_grad():
        plain = model(ids).logits
        wanted = peft.PeftModel.from_pretrained(copy.deepcopy(model), folder)(ids).logits
        found = merge_adapter(copy.deepcopy(model), folder)(ids).logits
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert (found - plain).abs().max() > 0.1


def test_what_is_refused(base: tuple[Any, str], adapter: str, tmp_path: Path) -> None:
    """Guards bad adapters: none there, of another kind, of another model's sizes or modules, incomplete, damaged."""
    model, source = base
    with pytest.raises(ModelNotFoundError, match="no adapter at"):
        check_adapter(str(tmp_path / "none"), source)
    with pytest.raises(ModelNotFoundError, match="cannot be read"):
        check_adapter(source, source)
    peft.get_peft_model(copy.deepcopy(model), peft.IA3Config(task_type="CAUSAL_LM")).save_pretrained(tmp_path / "ia3")
    with pytest.raises(UnsupportedError, match="IA3"):
        check_adapter(str(tmp_path / "ia3"), source)
    endless("llama", hidden_size=64).save_pretrained(tmp_path / "wider")
    with pytest.raises(ModelError, match=r"was not made for .*size mismatch"):
        check_adapter(adapter, str(tmp_path / "wider"))
    endless("gpt2").save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match="was not made for"):
        check_adapter(adapter, str(tmp_path / "other"))
    endless("llama", num_hidden_layers=1).save_pretrained(tmp_path / "shorter")
    with pytest.raises(ModelError, match=r"no place for .*layers"):
        check_adapter(adapter, str(tmp_path / "shorter"))
    weights = Path(adapter) / "adapter_model.safetensors"
    tensors = load_file(weights)
    tensors.pop(next(name for name in tensors if "lora_A" in name))
    save_file(tensors, weights)
    with pytest.raises(ModelError, match="is missing"):
        check_adapter(adapter, source)
    weights.write_bytes(b"no weights")
    with pytest.raises(ModelNotFoundError, match="cannot be read"):
        check_adapter(adapter, source)
    config = Path(adapter) / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"peft_type": "NONE_SUCH"}))
    with pytest.raises(ModelNotFoundError, match="cannot be read"):
        check_adapter(adapter, source)
