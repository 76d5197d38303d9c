"""Models that drafts cannot be verified on, from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, cache_utils

from speculant.api.loading import load_model
from speculant.cli.main import main


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a random model without a cache, and the bundled model's tokenizer."""
    return saved(tmp_path_factory.mktemp("refused"), "openai-gpt", num_hidden_layers=2)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a random model with convolutions and attention."""
    shape = {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
    return saved(tmp_path_factory.mktemp("hybrid"), "lfm2", **shape)


def saved(folder: Path, kind: str, **shape: Any) -> str:
    _, tokenizer = load_model(None)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    tokens = {"eos_token_id": None, "bos_token_id": 1, "pad_token_id": 0}
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), **sizes, **shape, **tokens)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.skipif(
    not hasattr(cache_utils, "LinearAttentionLayer"),
    reason="LFM2's own passes over several tokens forget what came before in old releases",
)
def test_a_hybrid_model_is_drafted_for(hybrid: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards the first command of who runs a hybrid model, and its check against plain passes."""
    assert main(["generate", "Once upon", "--model", hybrid, "--max-new-tokens", "40"]) == 0
    out, err = capsys.readouterr()
    assert out.strip()
    assert "plainly" not in err
    assert main(["check", hybrid, "--method", "recycling", "--max-new-tokens", "20"]) == 0


def test_it_is_decoded_plainly_and_a_line_says_so(refused: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards the first command of who runs such a model: text, and one line before it."""
    assert main(["generate", "Once upon", "--model", refused, "--max-new-tokens", "5"]) == 0
    out, err = capsys.readouterr()
    assert out.strip()
    assert "OpenAIGPTLMHeadModel has no key-value cache" in err
    assert "decoded plainly, without drafts." in err


def test_strict_refuses_it(refused: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards who pays for speed: --strict ends with the reason before anything is decoded."""
    assert main(["generate", "Once upon", "--model", refused, "--strict"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert "Leave out `strict`" in err


def test_a_memory_is_kept(refused: str, tmp_path: Path) -> None:
    """Guards the file of who drafts with another model: it is saved as ever."""
    memory = tmp_path / "m.speculant"
    assert main(["generate", "Once", "--model", refused, "--max-new-tokens", "3", "--memory", str(memory)]) == 0
    assert memory.exists()
