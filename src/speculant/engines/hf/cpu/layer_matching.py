"""The decoder layers that `layer.cpp` knows, and how to tell that one is still what it knows.

They are told by the classes that transformers gives a layer and its parts. What others have put there in the meantime,
into a module, its class or the file that it comes from, is not known.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from torch import nn

from speculant.engines.hf.cpu.linear import FastLinear, is_torchs

_NAMES = ("llama", "mistral", "qwen2", "qwen3")
FAMILIES = {f"transformers.models.{name}.modeling_{name}": name.title() for name in _NAMES}
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PARTS = ("self_attn", "mlp", "act_fn", "input_layernorm", "post_attention_layernorm")


def is_known(layer: Any) -> bool:
    """Say whether a module is a decoder layer of the family with nothing but what the family has."""
    home = type(layer).__module__
    if home not in FAMILIES or type(layer).__name__ != f"{FAMILIES[home]}DecoderLayer":
        return False
    kinds = {FAMILIES[home] + kind for kind in ("Attention", "MLP", "RMSNorm")}
    owners = (layer, layer.self_attn, layer.mlp)
    parts = {name: part for owner in owners for name, part in owner._modules.items()}
    if set(parts) - {"q_norm", "k_norm"} != {*LINEARS, *PARTS} or not all(parts.values()):
        return False
    theirs = {name: part for name, part in parts.items() if name not in (*LINEARS, "act_fn")}
    return (
        all(is_torchs(parts[name]) for name in LINEARS)
        and {type(part).__name__ for part in theirs.values()} == kinds
        and {type(part).__module__ for part in theirs.values()} == {home}
        # What somebody has put into the classes or the file is of other modules.
        and {type(part).forward.__module__ for part in (layer, *theirs.values())} == {home}
        and {function.__module__ for function in turning_functions(sys.modules[home])} == {home}
        and type(parts["act_fn"]).__name__ in ("SiLU", "SiLUActivation")
        and layer.self_attn.config._attn_implementation == "sdpa"
    )


def turning_functions(home: Any) -> tuple[Any, ...]:
    """Return the functions of a file that turn heads to their positions; patches of long contexts put others there."""
    return home.apply_rotary_pos_emb, home.rotate_half


def window_option(attention: Any) -> dict[str, Any]:
    """Return what the families but Llama tell the attention function beside the mask."""
    if FAMILIES[type(attention).__module__] == "Llama":
        return {}
    held = attention if hasattr(attention, "sliding_window") else attention.config
    return {"sliding_window": getattr(held, "sliding_window", None)}


@dataclass(frozen=True, slots=True)
class Part:
    """A module where it was found: the code knows it as long as it is there, unchanged."""

    parent: nn.Module
    name: str
    module: nn.Module
    kind: type
    forward: Any

    def untouched(self) -> bool:
        """Say whether nobody has replaced it, listens to it or has given it another forward."""
        module, kind = self.module, self.kind
        own = module.__dict__.get("forward")
        return (
            self.parent._modules.get(self.name) is module
            and type(module) is kind
            and getattr(kind, "forward", None) is self.forward
            and (own is None or type(own) is FastLinear)
            and not module._forward_pre_hooks
            and (not module._forward_hooks or all(map(_idle, module._forward_hooks.values())))
        )


def _idle(hook: Any) -> bool:
    """Say whether a hook is one that transformers leaves behind wherever hidden states were once asked for."""
    return getattr(hook, "__module__", None) == "transformers.utils.output_capturing"
