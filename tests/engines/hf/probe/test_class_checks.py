"""What models are accepted, and how the others are refused."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    Gemma3Config,
    LlamaModel,
    T5Config,
)

from architecture_matrix.catalogue import build, names
from models import SHAPE, tiny_model
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.probe import class_checks
from speculant.engines.hf.probe.class_checks import check_model


def test_llama_takes_trees() -> None:
    """Guards the common case: trees, bool masks, no notes."""
    abilities = check_model(tiny_model("llama"))
    assert abilities.trees
    assert not abilities.additive
    assert abilities.positions == 256
    assert abilities.notes == ()


def test_gemma_mixes_full_and_sliding_layers() -> None:
    """Guards dict masks: they are needed only where layer types alternate."""
    gemma, mistral = check_model(tiny_model("gemma3")), check_model(tiny_model("mistral"))
    assert (gemma.mixed, gemma.window) == (True, 12)
    assert (mistral.mixed, mistral.window) == (False, 12)


def test_eager_attention_gets_additive_masks() -> None:
    """Guards against bool masks under eager attention, which are silently wrong."""
    assert check_model(tiny_model("llama", "eager")).additive


def test_flash_attention_falls_back_to_chains_and_says_so() -> None:
    """Guards kernels without tree masks."""
    model = tiny_model("llama")
    model.config._attn_implementation = "flash_attention_2"
    abilities = check_model(model)
    assert not abilities.trees
    assert "sdpa" in abilities.notes[0]


def test_alibi_models_verify_chains() -> None:
    """Guards models whose positions cannot be given."""
    abilities = check_model(tiny_model("bloom"))
    assert not abilities.trees
    assert "chains" in abilities.notes[0]


def test_half_precision_and_quantised_weights_are_noted() -> None:
    """Guards the honest word about near-ties."""
    model = tiny_model("llama").to(torch.bfloat16)
    model.config.quantization_config = {"quant_method": "gptq"}
    notes = " ".join(check_model(model).notes)
    assert "gptq" in notes
    assert "bfloat16" in notes


def test_a_model_without_a_head_is_refused() -> None:
    """Guards against errors deep in a pass: what cannot be decoded says what to load instead."""
    with pytest.raises(UnsupportedError, match="head"):
        check_model(LlamaModel(tiny_model("llama").config))


def test_encoder_decoders_draft_on_their_decoder() -> None:
    """Guards trees on decoders that take no positions, and passes over texts of several sources."""
    found = check_model(AutoModelForSeq2SeqLM.from_config(_encoder_decoder()))
    assert found.encoder
    assert found.trees
    assert found.placing == ("decoder.block.0.layer.0.SelfAttention",)
    assert found.batches


def test_states_on_modules_need_layers_that_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards releases of transformers whose caches have none, where the texts of a model would share a state."""
    monkeypatch.setattr(class_checks, "find_mixers", lambda _: None)
    with pytest.raises(UnsupportedError, match="on its modules"):
        check_model(build("recurrent_gemma", "eager"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("openai-gpt", "has no key-value cache"),
        ("xlnet", "has no key-value cache"),
        ("xlm", "has no key-value cache"),
        ("cpmant", "prompt tokens of its own"),
        ("prophetnet", "several tokens ahead"),
    ],
)
def test_what_is_no_plain_decoder_is_refused_for_what_it_is(name: str, reason: str) -> None:
    """Guards messages: these failed with errors about caches in use elsewhere and the like."""
    with pytest.raises(UnsupportedError, match=reason):
        check_model(build(name, "eager"))


def test_models_without_a_cache_are_refused_by_the_setting() -> None:
    """Guards models whose generation config turns the cache off: the message names the setting."""
    model = build("llama", "eager")
    model.generation_config.use_cache = False
    with pytest.raises(UnsupportedError, match=r"Set `model\.generation_config\.use_cache` to True"):
        check_model(model)


def test_encoders_are_refused_unless_they_decode() -> None:
    """Guards masks: BERT and its like attend in both directions unless their config says otherwise."""
    model = build("bert", "sdpa")
    assert check_model(model).trees
    model.config.is_decoder = False
    with pytest.raises(UnsupportedError, match="both directions"):
        check_model(model)


@pytest.mark.skipif("glm5_next" not in names(), reason="this release of transformers has no such model")
def test_an_index_that_goes_by_places_verifies_chains() -> None:
    """Guards GLM-5-Next, which pools the rows of its cache in order, whatever a mask says: the reason is told."""
    abilities = check_model(build("glm5_next", "eager"))
    assert not abilities.trees
    assert abilities.drafts
    assert "by their places in the cache" in abilities.notes[0]


def test_layers_that_attend_in_chunks_verify_chains() -> None:
    """Guards Llama 4, whose chunks go by cache slot."""
    capabilities = check_model(build("llama4_text", "sdpa"))
    assert not capabilities.trees
    assert "chunks" in capabilities.notes[0]


def test_a_window_that_the_class_ignores_is_the_caches() -> None:
    """Guards configs with a window left in: Llama's masks have none, but `generate` hands it a cache that forgets."""
    llama, mistral = build("llama (a window left in its config)", "sdpa"), tiny_model("mistral")
    assert check_model(llama).window_by_cache
    assert not check_model(mistral).window_by_cache


def _encoder_decoder() -> T5Config:
    return T5Config(d_model=32, d_kv=8, d_ff=32, num_layers=1, vocab_size=40)


def _multimodal() -> Gemma3Config:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return Gemma3Config(
        text_config=SHAPE | {"head_dim": 8, "sliding_window": 8},
        vision_config=vision | {"image_size": 28, "patch_size": 14},
    )
