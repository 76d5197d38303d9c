"""The names of MTP modules in models' own checkpoints.

Names are templates without the prefixes that multimodal models have: {n} is the index of a module, {L} the target's
number of layers plus that index. Sources: the classes of vLLM and SGLang named `*_mtp` and `*_nextn`, and
transformers' lists of names that it ignores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.target_layer import FULL, SLIDING

_PREFIX = re.compile(r"^(model\.|language_model\.|backbone\.)*")
_ANY = re.compile(r"^mtp[._]|^mtp_layers\.|\.mtp[._]|nextn")
_LAYER = re.compile(r"^layers\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpLayout:
    """The names used by one family of models.

    Attributes:
        models: the `model_type` of their text configs.
        enorm, hnorm, projection: names of the norms of embedding and state, and of the projection of both.
        layers: prefix of each decoder layer of a module, and its kind as named in `layer_types`; `mtp_layer_types` in
            a config takes precedence.
        norm: name of the norm after the layers; None if there is none.
        embeddings, output: names of a module's own embeddings and output projection, if it has any.
        hidden_first: whether the projection reads the state before the embedding.
        depth: maximum depth of a drafted token; None for no limit.
        renamed: parts of names in a layer, with the names in transformers' class.
    """

    models: tuple[str, ...]
    enorm: str
    hnorm: str
    projection: str
    layers: tuple[tuple[str, str], ...]
    norm: str | None
    embeddings: str = ""
    output: str = ""
    hidden_first: bool = False
    depth: int | None = None
    renamed: tuple[tuple[str, str], ...] = ()


def _behind_layers(models: tuple[str, ...], norm: str, renamed: tuple[tuple[str, str], ...] = ()) -> MtpLayout:
    """Return the layout of modules that are stored as further layers after the target's own."""
    layer = "layers.{L}."
    return MtpLayout(
        models=models,
        enorm=layer + "enorm",
        hnorm=layer + "hnorm",
        projection=layer + "eh_proj",
        layers=((layer, FULL),),
        norm=layer + norm,
        embeddings=layer + "embed_tokens",
        output=layer + "shared_head.head",
        renamed=renamed,
    )


_DEEPSEEK = ("deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm4v_moe_text", "glm_moe_dsa")
_BAILING = (
    ("attention.", "self_attn."),
    ("self_attn.dense.", "self_attn.o_proj."),
    ("mlp.gate.expert_bias", "mlp.gate.e_score_correction_bias"),
)
_QWEN = MtpLayout(
    models=("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
    enorm="mtp.pre_fc_norm_embedding",
    hnorm="mtp.pre_fc_norm_hidden",
    projection="mtp.fc",
    layers=(("mtp.layers.{n}.", FULL),),
    norm="mtp.norm",
    embeddings="mtp.embed_tokens",
)
LAYOUTS = (
    _QWEN,
    replace(_QWEN, models=("mellum",), layers=(("mtp.layers.{n}.", SLIDING),)),
    _behind_layers(_DEEPSEEK, "shared_head.norm"),
    _behind_layers(("bailing_hybrid",), "final_layernorm", _BAILING),
    _behind_layers(("bailing_hybrid",), "shared_head.norm", _BAILING),
    MtpLayout(
        models=("mimo", "qwen2"),
        enorm="mtp_layers.{n}.token_layernorm",
        hnorm="mtp_layers.{n}.hidden_layernorm",
        projection="mtp_layers.{n}.input_proj",
        layers=(("mtp_layers.{n}.", FULL),),
        norm="mtp_layers.{n}.final_layernorm",
        hidden_first=True,
    ),
    MtpLayout(
        models=("mimo_v2_flash",),
        enorm="mtp.layers.{n}.enorm",
        hnorm="mtp.layers.{n}.hnorm",
        projection="mtp.layers.{n}.eh_proj",
        layers=(("mtp.layers.{n}.", SLIDING),),
        norm="mtp.layers.{n}.final_layernorm",
        renamed=(
            ("pre_mlp_layernorm", "post_attention_layernorm"),
            ("self_attn.attention_sink_bias", "self_attn.sinks"),
        ),
    ),
    MtpLayout(
        models=("ernie4_5", "ernie4_5_moe"),
        enorm="mtp_emb_norm.{n}",
        hnorm="mtp_hidden_norm.{n}",
        projection="mtp_linear_proj.{n}",
        layers=(("mtp_block.{n}.", FULL),),
        norm=None,
        depth=1,  # its output is not normalised like the state it reads
        renamed=(("mlp.moe_statics.", "mlp.gate.moe_statics."),),
    ),
    MtpLayout(
        models=("nemotron_h",),
        enorm="mtp.layers.0.enorm",
        hnorm="mtp.layers.0.hnorm",
        projection="mtp.layers.0.eh_proj",
        layers=(("mtp.layers.0.", FULL), ("mtp.layers.1.", "moe")),
        norm="mtp.layers.1.final_layernorm",
    ),
)
SPECULATORS = MtpLayout(  # the same for all models
    models=(),
    enorm="mtp_layers.{n}.token_layernorm",
    hnorm="mtp_layers.{n}.hidden_layernorm",
    projection="mtp_layers.{n}.input_proj",
    layers=(("mtp_layers.{n}.", FULL),),
    norm="mtp_layers.{n}.final_layernorm",
)
REFUSED: Mapping[str, str] = MappingProxyType(
    {  # by model_type: why its modules cannot be run
        "deepseek_v4": "its modules carry four streams of states, which the target does not return",
        "qwen4_exp_text": "its modules carry several streams of states, which the target does not return",
        "hy_v4": "its modules carry several streams of states, which the target does not return",
        "longcat_flash": "its decoder layers, which have two attentions each, cannot be tapped for their states",
        "inkling": "its modules have convolutions, whose states cannot be rolled back",
    }
)


def plain_name(name: str) -> str:
    """Return the name of a tensor without the prefixes of models and of their text parts."""
    return _PREFIX.sub("", name)


def is_mtp(name: str, layers: int) -> bool:
    """Return whether a tensor belongs to an MTP module, given the target's number of layers."""
    plain = plain_name(name)
    found = _LAYER.match(plain)
    return bool(_ANY.search(plain)) or (found is not None and int(found[1]) >= layers)


def find_layout(model_type: str, names: Iterable[str], layers: int) -> MtpLayout:
    """Return the layout of a model's MTP tensors.

    Args:
        model_type: `model_type` of its text config.
        names: plain names of the tensors.
        layers: number of layers of the target.

    Raises:
        UnsupportedError: the layout is unknown, or such modules cannot be run; the message says why.
    """
    if model_type in REFUSED:
        raise UnsupportedError(f"heads of {model_type} cannot be run, since {REFUSED[model_type]}.")
    held = set(names)
    for each in LAYOUTS:
        needed = [f"{name}.weight" for name in (each.enorm, each.hnorm, each.projection, each.norm) if name]
        if model_type in each.models and all(name.format(n=0, L=layers) in held for name in needed):
            return each
    some = ", ".join(sorted(held)[:3])
    raise UnsupportedError(f"their layout is unknown for models of type {model_type}: {some}, ...")
