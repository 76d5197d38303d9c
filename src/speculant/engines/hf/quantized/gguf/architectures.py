"""The GGUF architectures that run on transformers' models, with their naming and storage of weights.

Tensor names are llama.cpp's, as in gguf-py (`constants.py`, github.com/ggml-org/llama.cpp). Besides names, a file
differs from transformers' model in:

- *paired rows*: llama.cpp rotates neighbouring pairs of a head's dimensions for `llama` and `mistral3`, so rows of q
  and k are permuted in their files; transformers pairs the two halves.
- *shifted norms*: files of Gemma store 1 + w for each norm; transformers adds the 1 itself.
- *experts*: a file has one tensor for all experts of a layer and projection; see `experts.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

OUTER = MappingProxyType(
    {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
)
HEAD = "output.weight"  # without it the head is tied to the embedding
ROPE_FREQS = "rope_freqs.weight"  # divisors of the rotary frequencies, as for Llama 3
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"  # the same, for long and short texts
_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
_INNER = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERTS = {
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_ROUTED = {**_EXPERTS, "ffn_gate_inp": "mlp.gate"}
_SHARED = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_SINKS = {
    **_EXPERTS,
    "ffn_gate_inp": "mlp.router",
    "attn_sinks": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
}
_BARE = ("self_attn.sinks", *_EXPERTS.values())  # parameters that are not a module's weight
_EXPERT_SETTINGS = ("expert_count", "expert_used_count", "expert_feed_forward_length")
_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """An architecture of GGUF files.

    Attributes:
        name: name in GGUF files.
        model_type: name in transformers.
        inner: names of a layer's modules in files -> in transformers.
        paired: whether rows of q and k are stored in rotary pairs.
        shifted_norms: whether norms are stored with 1 added.
        optional_biases: whether individual biases may be missing, meaning 0.
        rope: tensors that describe the rotary embedding.
        settings: metadata keys, after the architecture's name, that are specific to it and that `config` reads.
    """

    name: str
    model_type: str
    inner: Mapping[str, str] = field(default_factory=dict)
    paired: bool = False
    shifted_norms: bool = False
    optional_biases: bool = False
    rope: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    def parameter(self, tensor: str) -> str | None:
        """Return the name of the parameter that a tensor holds; None if the architecture has no such tensor."""
        if tensor in OUTER:
            return OUTER[tensor]
        found = _LAYER.fullmatch(tensor)
        if found is None:
            return None
        layer, module, kind = found.groups()
        name = {**_INNER, **self.inner}.get(module)
        if name in _BARE:
            return f"model.layers.{layer}.{name}{'_bias' if kind == 'bias' else ''}"
        return None if name is None else f"model.layers.{layer}.{name}.{kind}"

    def tensor(self, parameter: str) -> str:
        """Return the name of the tensor that holds a parameter; for messages."""
        outer = {value: key for key, value in OUTER.items()}
        if parameter in outer:
            return outer[parameter]
        layer, _, rest = parameter.removeprefix("model.layers.").partition(".")
        inner = {value: key for key, value in {**_INNER, **self.inner}.items()}
        bare = rest.removesuffix("_bias")
        module, kind = (bare, "bias" if rest != bare else "weight") if bare in _BARE else rest.rsplit(".", 1)
        return f"blk.{layer}.{inner.get(module, module)}.{kind}"

    def row_order(self, tensor: str, outs: int, *, heads: int, key_heads: int) -> Tensor | None:
        """Return the file row for each row in transformers, int64 [outs]; None for the file's order.

        Args:
            tensor: name in the file.
            outs: number of rows.
            heads, key_heads: number of heads of q and k.
        """
        counts = {"attn_q": heads, "attn_k": key_heads}
        found = _LAYER.fullmatch(tensor)
        count = counts.get(found[2]) if found and self.paired else None
        return None if count is None else torch.arange(outs).reshape(count, -1, 2).transpose(1, 2).reshape(-1)

    def restore_norm(self, parameter: str, values: Tensor) -> Tensor:
        """Return the weights of a norm as in transformers, float32; other tensors unchanged."""
        return values - 1 if self.shifted_norms and parameter.endswith("norm.weight") else values


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        each.name: each
        for each in (
            Architecture(name="llama", model_type="llama", paired=True, optional_biases=True, rope=(ROPE_FREQS,)),
            Architecture(
                name="mistral3",
                model_type="ministral3",
                paired=True,
                rope=(ROPE_FREQS,),
                settings=("attention.temperature_scale",),
            ),
            Architecture(name="qwen2", model_type="qwen2"),
            Architecture(
                name="qwen2moe",
                model_type="qwen2_moe",
                inner={**_ROUTED, **_SHARED},
                settings=(*_EXPERT_SETTINGS, "expert_shared_feed_forward_length"),
            ),
            Architecture(
                name="qwen3moe", model_type="qwen3_moe", inner={**_QK_NORMS, **_ROUTED}, settings=_EXPERT_SETTINGS
            ),
            Architecture(
                name="gpt-oss",
                model_type="gpt_oss",
                inner=_SINKS,
                settings=(*_EXPERT_SETTINGS, "attention.sliding_window", "attention.sliding_window_pattern"),
            ),
            Architecture(name="qwen3", model_type="qwen3", inner=_QK_NORMS),
            Architecture(
                name="gemma2",
                model_type="gemma2",
                inner=_FOUR_NORMS,
                shifted_norms=True,
                settings=(
                    "attention.sliding_window",
                    "attention.sliding_window_pattern",
                    "attn_logit_softcapping",
                    "final_logit_softcapping",
                ),
            ),
            Architecture(
                name="gemma3",
                model_type="gemma3_text",
                inner={**_FOUR_NORMS, **_QK_NORMS},
                shifted_norms=True,
                settings=(
                    "attention.sliding_window",
                    "attention.sliding_window_pattern",
                    "rope.freq_base_swa",
                    "final_logit_softcapping",
                ),
            ),
            Architecture(
                name="phi3",
                model_type="phi3",
                inner=_FUSED,
                rope=(LONG, SHORT),
                settings=("attention.sliding_window",),
            ),
        )
    }
)
MIXTRAL = Architecture(  # mixture files are also named "llama"
    name="llama", model_type="mixtral", inner=_ROUTED, paired=True, rope=(ROPE_FREQS,), settings=_EXPERT_SETTINGS
)
