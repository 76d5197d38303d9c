"""The parts of a target that heads use: embeddings, final norm and projection give the model's own logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from models import SHAPE, deep_model
from passes import IDS
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.views.target_parts import HFTargetParts

MODELS = ["llama", "qwen2", "qwen3", "gemma3", "mistral", "mixtral", "phi3", "gpt2", "gpt_neox", "bloom"]


def last_tap(model: Any) -> torch.Tensor:
    """Return the output [T, D] of the last decoder layer at every token of a prompt."""
    cache, result = HFEngine(model).open(IDS), None
    while result is None:
        result = cache.prefill(needs=RequestedOutputs(hidden_layers=(-1,), prompt=True))
    return torch.as_tensor(result.hidden[:, -1])


def scaled(name: str) -> Any:
    """Return a tiny model that scales or caps its logits after the projection."""
    opt = {key: SHAPE[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "hidden_size")}
    builders: dict[str, Any] = {
        "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=8, final_logit_softcapping=2.0)),
        "cohere": lambda: CohereForCausalLM(CohereConfig(**SHAPE, logit_scale=0.5)),
        "granite": lambda: GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=8.0)),
        "opt": lambda: OPTForCausalLM(
            OPTConfig(
                **opt,
                ffn_dim=48,
                num_hidden_layers=3,
                num_attention_heads=4,
                max_position_embeddings=64,
                word_embed_proj_dim=32,
            )
        ),
    }
    torch.manual_seed(3)
    return builders[name]().eval()


@pytest.mark.parametrize("name", MODELS)
def test_norm_and_projection_of_the_last_tap_are_the_models_logits(name: str) -> None:
    """Guards every architecture that verifies trees: a head that returns the true state returns the true logits."""
    model = deep_model(name)
    parts = HFTargetParts(model)
    with torch.no_grad():
        found, wanted = parts.project(parts.norm(last_tap(model))), model(IDS).logits[0]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert (parts.layers, parts.hidden_size, parts.vocabulary) == (3, 32, 61)


@pytest.mark.parametrize("name", ["gemma2", "cohere", "granite", "opt"])
def test_logits_are_scaled_and_capped_as_by_the_model(name: str) -> None:
    """Guards q under sampling: what these models do to the output of their projection belongs to p as well."""
    model = scaled(name)
    parts = HFTargetParts(model)
    with torch.no_grad():
        normed = parts.norm(last_tap(model))
        raw, found, wanted = model.get_output_embeddings()(normed), parts.project(normed), model(IDS).logits[0]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    assert torch.allclose(raw, wanted, atol=1e-3) == (name == "opt")


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_embeddings_are_those_that_the_layers_read(name: str) -> None:
    """Guards models that scale their embeddings; learned positions, which GPT-2 adds later, are not in them."""
    model = deep_model(name)
    parts, found = HFTargetParts(model), list[torch.Tensor]()
    layers = model.transformer.h if name == "gpt2" else model.model.layers

    def read(_module: nn.Module, given: tuple[torch.Tensor, ...], options: dict[str, Any]) -> None:
        found.append(given[0] if given else options["hidden_states"])

    handle = layers[0].register_forward_pre_hook(read, with_kwargs=True)
    with torch.no_grad():
        model(IDS)
        handle.remove()
        embedded = parts.embed(IDS)
        if name == "gpt2":
            embedded = embedded + model.transformer.wpe(torch.arange(IDS.shape[1]))
    torch.testing.assert_close(embedded, found[0])


def test_the_weights_stay_the_models_own() -> None:
    """Guards memory and updates: the modules are shared, and two views of one model are recognised as such."""
    model = deep_model("llama")
    parts = HFTargetParts(model)
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
        assert not parts.project(torch.ones(1, 32)).any()
    assert parts.same_model(HFTargetParts(model))
    assert not parts.same_model(HFTargetParts(deep_model("llama")))


def test_models_without_a_final_norm_are_refused() -> None:
    """Guards models whose parts cannot be found: the message says what, and what works instead."""
    model = deep_model("llama")
    del model.model.norm
    with pytest.raises(UnsupportedError, match=r"final norm of LlamaForCausalLM cannot be found.*'mix'"):
        HFTargetParts(model)
    model = deep_model("llama")
    model.config.num_hidden_layers = 2
    with pytest.raises(UnsupportedError, match=r"decoder layers.*cannot be found"):
        HFTargetParts(model)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 5000.0},
        {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
        {
            "rope_type": "llama3",
            "rope_theta": 5000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rotary_frequencies_are_those_of_transformers(rope: dict[str, Any]) -> None:
    """Guards heads of long-context models, whose rotary embedding is scaled."""
    other = deep_model("llama", rope_parameters=rope)
    found, scale = HFTargetParts(deep_model("llama")).frequencies(rope, 8, 256)
    torch.testing.assert_close(found, other.model.rotary_emb.inv_freq)
    assert scale == other.model.rotary_emb.attention_scaling


def test_an_unknown_rotary_embedding_is_refused() -> None:
    """Guards a config of a later release."""
    with pytest.raises(UnsupportedError, match="unknown kind 'spiral'"):
        HFTargetParts(deep_model("llama")).frequencies({"rope_type": "spiral", "rope_theta": 1.0}, 8, 64)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_the_projections_weights_give_its_logits(name: str) -> None:
    """Guards copies of the output projection that heads begin with."""
    parts = HFTargetParts(deep_model(name))
    hidden = torch.randn(3, 32)
    with torch.no_grad():
        torch.testing.assert_close(hidden @ parts.projection().T, parts.project(hidden), atol=1e-5, rtol=1e-5)
    assert len(parts.projection()) == parts.vocabulary
