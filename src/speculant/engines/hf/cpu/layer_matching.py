"""The decoder layers that `layer.cpp` implements, and checks that a module is still one of them.

They are recognised by the classes that transformers uses for a layer and its parts. Modified modules, classes or files
are not recognised.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from torch import nn

from speculant.engines.hf.cpu.linear import is_torch_linear
from speculant.engines.hf.quantized.modules import is_quantized_linear
from speculant.engines.hf.views.layer_parts import LayerParts

_NAMES = ("llama", "mistral", "qwen2", "qwen3")
FAMILIES = {f"transformers.models.{name}.modeling_{name}": name.title() for name in _NAMES}
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SUBLAYERS = LayerParts({"attention": "self_attn", "mlp": "mlp"}, {"attention": 2, "mlp": None})
FIXED_ROTARY = ("default", "linear", "llama3", "yarn")  # types of rotary embeddings with fixed frequencies
PARTS = ("self_attn", "mlp", "act_fn", "input_layernorm", "post_attention_layernorm")


def is_known(layer: Any) -> bool:
    """Return whether a module is a decoder layer of the Llama family with only the family's parts."""
    home = type(layer).__module__
    if home not in FAMILIES or type(layer).__name__ != f"{FAMILIES[home]}DecoderLayer":
        return False
    kinds = {FAMILIES[home] + kind for kind in ("Attention", "MLP", "RMSNorm")}
    owners = (layer, layer.self_attn, layer.mlp)
    parts = {name: part for owner in owners for name, part in owner._modules.items()}
    if set(parts) - {"q_norm", "k_norm"} != {*LINEARS, *PARTS} or not all(parts.values()):
        return False
    others = {name: part for name, part in parts.items() if name not in (*LINEARS, "act_fn")}
    return (
        all(is_torch_linear(parts[name]) or is_quantized_linear(parts[name]) for name in LINEARS)
        and {type(part).__name__ for part in others.values()} == kinds
        and {type(part).__module__ for part in others.values()} == {home}
        # Functions patched into the classes or the file come from other modules.
        and {type(part).forward.__module__ for part in (layer, *others.values())} == {home}
        and {function.__module__ for function in rotary_functions(sys.modules[home])} == {home}
        and type(parts["act_fn"]).__name__ in ("SiLU", "SiLUActivation")
        and layer.self_attn.config._attn_implementation == "sdpa"
    )


def is_untouched(module: Any, home: str, kind: str) -> bool:
    """Return whether a module is of a class of transformers, with the forward of the class and without hooks.

    Args:
        module: the module; None is of no class.
        home: the file of the class, as the name of a module.
        kind: the name of the class.
    """
    own = type(module)
    return (
        own.__module__ == home
        and own.__name__ == kind
        and own is getattr(sys.modules[home], kind, None)
        and own.forward.__module__ in (home, "transformers.utils.generic")
        and "forward" not in module.__dict__
        and not module._forward_hooks
        and not module._forward_pre_hooks
    )


def rotary_functions(home: Any) -> tuple[Any, ...]:
    """Return the functions of a file that apply rotary embeddings; patches for long contexts replace them."""
    return home.apply_rotary_pos_emb, home.rotate_half


def window_option(attention: Any) -> dict[str, Any]:
    """Return the option that all families but Llama pass to the attention function in addition to the mask."""
    if FAMILIES[type(attention).__module__] == "Llama":
        return {}
    owner = attention if hasattr(attention, "sliding_window") else attention.config
    return {"sliding_window": getattr(owner, "sliding_window", None)}


@dataclass(frozen=True, slots=True)
class Part:
    """A module at its place in the model, for which the compiled code substitutes while it stays there unchanged."""

    parent: nn.Module
    name: str
    module: nn.Module
    kind: type
    forward: Any

    def is_intact(self) -> bool:
        """Return whether it has not been replaced, has no hooks and no other forward."""
        module, kind = self.module, self.kind
        return (
            self.parent._modules.get(self.name) is module
            and type(module) is kind
            and getattr(kind, "forward", None) is self.forward
            and "forward" not in module.__dict__
            and not module._forward_pre_hooks
            and (not module._forward_hooks or all(map(_captures_output, module._forward_hooks.values())))
        )


def _captures_output(hook: Any) -> bool:
    """Return whether a hook is one that transformers installs permanently when hidden states are first requested."""
    return getattr(hook, "__module__", None) == "transformers.utils.output_capturing"
