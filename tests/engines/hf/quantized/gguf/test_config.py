"""Settings of GGUF files: what is read, and that nothing which would change the output is overlooked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gguf_families import FAMILIES, architecture_of, family_file, family_model, write_family
from speculant.core.errors import ModelError, SpeculantError, UnsupportedError
from speculant.engines.hf.quantized.gguf.config import read_config
from speculant.engines.hf.quantized.gguf.file import open_gguf

KEPT = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings", "vocab_size", "tie_word_embeddings", "sliding_window", "layer_types", "num_experts",
    "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "attention_bias", "mlp_bias",
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_the_config_is_the_one_that_was_written(family: str) -> None:
    """Sizes, heads, windows, experts and caps."""
    found, expected = read_config(open_gguf(family_file(family))), family_model(family).config
    assert type(found) is type(expected)
    for name in KEPT:
        if family in ("qwen3moe", "qwen2moe") and name == "intermediate_size":
            continue  # of layers without experts, of which there are none
        assert getattr(found, name, None) == getattr(expected, name, None), name
    assert found.rms_norm_eps == pytest.approx(expected.rms_norm_eps)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda writer: writer.add_clamp_kqv(8.0), UnsupportedError, "setting 'qwen2.attention.clamp_kqv'"),
        (lambda writer: writer.add_expert_count(4), UnsupportedError, "setting 'qwen2.expert_count'"),
        (
            lambda writer: writer.add_attention_scale(0.5),
            UnsupportedError,
            "'qwen2.attention.scale' .* does not follow",
        ),
        (lambda writer: writer.add_string("qwen2.rope.scaling.type", "odd"), UnsupportedError, "is scaled by 'odd'"),
        (lambda writer: writer.add_logit_scale(2.0), UnsupportedError, "setting 'qwen2.logit_scale'"),
        (lambda writer: writer.add_causal_attention(False), UnsupportedError, "attention.causal"),
        (lambda writer: writer.add_rope_scaling_factor(float("nan")), ModelError, "'qwen2.rope.scaling.factor' is nan"),
    ],
)
def test_what_is_not_known_is_refused(
    change: Callable[[Any], None], error: type[SpeculantError], said: str, tmp_path: Path
) -> None:
    """By the name of the setting."""

    def describe(writer: Any) -> None:
        writer.add_tokenizer_model("none")
        change(writer)

    write_family(family_model("qwen2"), architecture_of("qwen2"), tmp_path / "m.gguf", describe=describe)
    with pytest.raises(error, match=said):
        read_config(open_gguf(tmp_path / "m.gguf"))


def test_settings_that_change_nothing_are_taken(tmp_path: Path) -> None:
    """No experts, causal attention."""

    def describe(writer: Any) -> None:
        writer.add_tokenizer_model("none")
        writer.add_expert_count(0)
        writer.add_causal_attention(True)

    write_family(family_model("qwen2"), architecture_of("qwen2"), tmp_path / "m.gguf", describe=describe)
    assert read_config(open_gguf(tmp_path / "m.gguf")).num_hidden_layers == 3
