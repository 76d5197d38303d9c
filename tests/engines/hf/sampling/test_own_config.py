"""A model's own generation config: what it asks for that is not decoded here is left out with a note."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from models import tiny_model
from speculant import Speculator
from speculant.api.loading import load_model
from speculant.core.errors import TokenizerError, UnsupportedError
from speculant.engines.hf.sampling.own_config import leave_out_all, leave_out_modes

IDS = [5, 9, 14, 3, 8, 5, 9, 14]
OWN: dict[str, dict[str, Any]] = {
    "beams": {"num_beams": 4, "early_stopping": True, "length_penalty": 2.0, "no_repeat_ngram_size": 3},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 4},
    "lookup": {"prompt_lookup_num_tokens": 3},
    "static cache": {"cache_implementation": "static"},
}


def configured(own: dict[str, Any]) -> Any:
    model = tiny_model("llama")
    for name, value in {**own, "eos_token_id": None}.items():
        setattr(model.generation_config, name, value)
    return model


@pytest.mark.parametrize("name", OWN)
def test_modes_of_a_checkpoint_are_left_out(name: str) -> None:
    """Guards BART, Marian and others whose checkpoints ask for beams: greedy text, with drafts and a note."""
    own, rules = OWN[name], {"no_repeat_ngram_size": 3} if name == "beams" else {}
    expected = configured(rules).generate(torch.tensor([IDS]), max_new_tokens=16, do_sample=False)[0, len(IDS) :]
    result = Speculator.from_transformers(configured(own), method="lookup", fast=False).generate(IDS, max_new_tokens=16)
    assert result.ids == expected.tolist()
    [note] = result.stats.notes
    assert f"left out of the model's generation config: {next(iter(own))}={next(iter(own.values()))!r}." == note


def test_what_generate_would_decode_otherwise_is_refused_with_a_way_out() -> None:
    """Guards `custom_generate`: plain `generate` would search beams, so another text must be asked for by name."""
    model = configured(OWN["beams"])
    speculator, ids = Speculator.from_transformers(model), torch.tensor([IDS])
    with pytest.raises(UnsupportedError, match=r"the model's generation config.*give num_beams=1"):
        model.generate(ids, max_new_tokens=4, custom_generate=speculator)
    found = model.generate(ids, max_new_tokens=4, num_beams=1, custom_generate=speculator)
    assert found.shape == (1, len(IDS) + 4)


def test_a_request_has_precedence() -> None:
    """Guards against overriding what was asked for, which is refused if it cannot be decoded."""
    own, asked = GenerationConfig(num_beams=4), GenerationConfig(num_beams=2)
    assert leave_out_modes(own) == {"num_beams": 1}
    assert leave_out_modes(own, given={"num_beams": 2}) == leave_out_modes(own, asked=asked) == {}
    assert leave_out_modes(own, asked=GenerationConfig(num_beams=1)) == {}
    with pytest.raises(UnsupportedError, match="num_beams=2"):
        Speculator.from_transformers(configured(OWN["beams"])).generate(IDS, num_beams=2)


def test_the_probe_leaves_out_what_rules_tokens_out() -> None:
    """Guards checkpoints that suppress tokens, force the last one or end at strings: their texts are still compared."""
    own = GenerationConfig(suppress_tokens=[7], forced_eos_token_id=2, num_beams=2, eos_token_id=2)
    assert leave_out_all(own) == {"suppress_tokens": None, "forced_eos_token_id": None, "num_beams": 1}
    assert leave_out_all(GenerationConfig(eos_token_id=2, temperature=0.5)) == {}


def test_stop_strings_of_a_checkpoint_end_texts() -> None:
    """Guards `stop_strings` in a generation config, for which `generate` itself asks for a tokenizer in every call."""
    model, tokenizer = load_model(None)
    model.generation_config.stop_strings = ["."]
    speculator, asked = Speculator.from_transformers(model, tokenizer), GenerationConfig(max_new_tokens=60)
    for options in ({"max_new_tokens": 60}, {"generation_config": asked}):
        result = speculator.generate("One day, a girl", **options)
        assert result.finish_reason == "stop"
        assert result.text.count(".") == 1
    with pytest.raises(TokenizerError, match="the generation config has stop strings"):
        Speculator.from_transformers(model).generate(IDS)
