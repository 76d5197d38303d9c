"""A pass of a whole model of the Llama family over few rows: embeddings, layers, last norm and logits.

transformers' wrappers of a model's forward, its functions for masks and its rotary embeddings take as long as a fifth
of the pass of a small model, since they run between megabytes of weights. For the rows of a draft they do nothing:
positions and mask are given. So the forward of the model's shadow calls the parts of the model itself, as long as they
are as transformers made them, and leaves every other pass to transformers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast

from speculant.engines.hf.cpu.layer_matching import FAMILIES, FIXED_ROTARY, is_untouched
from speculant.engines.hf.cpu.layer_stack import LayerStack, ReadyLayers
from speculant.engines.hf.cpu.layer_structs import LayerArguments, PositionArguments
from speculant.engines.hf.cpu.linear import readable
from speculant.engines.hf.cpu.norm import AcceleratedNorm
from speculant.engines.hf.modules_state import HOOKS

MAX_POSITIONS = 4096  # positions whose rotary embeddings are kept; beyond them, attention takes most of the time
_OPTIONS = frozenset(
    ("input_ids", "position_ids", "attention_mask", "past_key_values", "logits_to_keep", "use_cache", "return_dict")
)


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """What a pass reads besides the layers.

    Attributes:
        embeddings: [V, hidden]; None if their module has to run.
        cos, sin: [MAX_POSITIONS, head], the rotary embeddings.
        norm: struct of the norm after the layers.
        window: number of tokens to which a row without a mask may attend; None for all.
    """

    embeddings: Tensor | None
    cos: Tensor
    sin: Tensor
    norm: LayerArguments
    window: int | None


class WholePass:
    """The forward of a causal language model.

    Attributes:
        module: the model.
    """

    def __init__(self, model: Any, stack: LayerStack, norm: AcceleratedNorm) -> None:
        """Take an unmodified model, its fused layers, and the norm after them."""
        self.module, self._base, self._stack, self._norm = model, model.model, stack, norm
        self._class, self._forward = type(model), type(model).forward
        self._known: tuple[ReadyLayers, _Parts | None] | None = None
        base = self._base
        around = model, base, base.embed_tokens, base.norm, base.rotary_emb
        stack.watch(around, (base.config,), self._frequencies)

    def __call__(self, shadow: Any, *args: Any, **options: Any) -> Any:
        """Return what the model's own forward returns; `shadow` is the shadow of the model, or a view of it."""
        output = None
        if not args and options.keys() <= _OPTIONS and options.get("return_dict") and vars(shadow) is vars(self.module):
            output = self._run(shadow, **options)
        return type(self.module).forward(shadow, *args, **options) if output is None else output

    def _run(
        self,
        shadow: Any,
        *,
        input_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        logits_to_keep: int | Tensor = 0,
        **options: Any,
    ) -> CausalLMOutputWithPast | None:
        """Return the output, or None, with nothing done, if the model's own forward has to run."""
        ids, positions, mask = input_ids, position_ids, attention_mask
        if ids is None or positions is None or not _readable_numbers(ids) or not _readable_numbers(positions):
            return None
        if ids.shape != positions.shape or (mask is not None and (type(mask) is not Tensor or mask.ndim != 4)):
            return None
        ready = self._stack.look_up()
        parts = self._find_parts(ready)
        if parts is None or past_key_values is None:
            return None
        if mask is None and (ids.shape[1] != 1 or not _all_visible(parts.window, past_key_values)):
            return None  # transformers creates a mask
        native, rows = self._norm.native, ids.numel()
        if not native.copy_rows(None, len(parts.cos), 0, positions.data_ptr(), rows, None):
            return None
        if parts.embeddings is None:
            x = shadow.model.embed_tokens(ids)
        else:
            table = parts.embeddings
            x = table.new_empty((*ids.shape, table.shape[1]))
            size = table.shape[1] * table.element_size()
            if not native.copy_rows(table.data_ptr(), len(table), size, ids.data_ptr(), rows, x.data_ptr()):
                return None  # transformers raises the error
        places = PositionArguments(parts.cos.data_ptr(), parts.sin.data_ptr(), 0, positions.data_ptr())
        passed_on = {"position_ids": positions, "use_cache": options.get("use_cache")}
        y = self._stack.compute(ready, x, places, past_key_values, mask, passed_on)
        if y is None:
            return None
        normed = torch.empty_like(y)
        native.norm(ctypes.byref(parts.norm), y.data_ptr(), normed.data_ptr(), rows)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutputWithPast(logits=shadow.lm_head(normed[:, kept]), past_key_values=past_key_values)

    def _frequencies(self) -> list[Any]:
        """Return what tells the frequencies of the rotary embeddings from earlier ones."""
        found = self._base.rotary_emb._buffers.get("inv_freq")
        if found is None:
            return [None]
        return [id(found), found.data_ptr(), 0 if found.is_inference() else found._version]

    def _find_parts(self, ready: ReadyLayers) -> _Parts | None:
        known = self._known
        if known is None or known[0] is not ready:
            known = self._known = ready, self._look_up_parts() if ready.joined else None
        return known[1]

    def _look_up_parts(self) -> _Parts | None:
        """Return the parts; None if one of them has been changed, or a pass has to do more."""
        model, base, config = self.module, self._base, self._base.config
        home = self._class.__module__
        name = FAMILIES[home]
        modules, first = base._modules, self._stack.layers[0]
        kinds = set(getattr(config, "layer_types", None) or ())
        own = (
            type(model) is self._class
            and self._class.forward is self._forward
            and model._modules.get("model") is base
            and is_untouched(base, home, f"{name}Model")
            and modules.get("layers") is self._stack.modules
            and modules.get("norm") is self._norm.module
            and is_untouched(modules.get("rotary_emb"), home, f"{name}RotaryEmbedding")
            and base.rotary_emb.rope_type in FIXED_ROTARY
        )
        if not own or first is None or base.training or kinds - {"full_attention"}:
            return None
        if (
            config.num_hidden_layers < len(self._stack.layers)
            or config.output_hidden_states
            or config.output_attentions
        ):
            return None
        norm = self._norm.arguments(first.dtype)
        with torch.no_grad():
            cos, sin = base.rotary_emb(torch.empty(1, dtype=first.dtype), torch.arange(MAX_POSITIONS)[None])
        if norm is None or norm.hidden != first.hidden or cos.shape[2] != first.head or cos.dtype is not first.dtype:
            return None
        window = None if kinds else getattr(config, "sliding_window", None)
        table = _plain_embeddings(modules.get("embed_tokens"), first.hidden, first.dtype)
        return _Parts(table, cos[0].contiguous(), sin[0].contiguous(), norm, window)


def find_whole_pass(model: Any, stack: LayerStack, norms: Iterable[AcceleratedNorm]) -> WholePass | None:
    """Return the forward of a model; None if it is not an unmodified one of the Llama family with fused layers."""
    home = type(model).__module__
    if home not in FAMILIES or not is_untouched(model, home, f"{FAMILIES[home]}ForCausalLM"):
        return None
    base = model._modules.get("model")
    if base is None or stack.modules is None or base._modules.get("layers") is not stack.modules:
        return None
    last = next((norm for norm in norms if norm.module is base._modules.get("norm")), None)
    return None if last is None else WholePass(model, stack, last)


def _all_visible(window: int | None, cache: Any) -> bool:
    """Return whether a row behind those of a cache is allowed to attend to all of them."""
    return window is None or cache.get_seq_length() < window


def _readable_numbers(numbers: Any) -> bool:
    return type(numbers) is Tensor and numbers.dtype is torch.int64 and numbers.ndim == 2 and numbers.is_contiguous()


def _plain_embeddings(module: Any, hidden: int, dtype: torch.dtype) -> Tensor | None:
    """Return the weights of embeddings of which a pass reads nothing else; None for other ones."""
    if type(module) is not nn.Embedding or nn.Embedding.forward.__module__ != nn.Embedding.__module__:
        return None
    held = vars(module)
    weight = held["_parameters"].get("weight")
    if "forward" in held or module.max_norm is not None or any(held[name] for name in HOOKS):
        return None
    usable = weight is not None and readable(weight) and weight.dtype is dtype and weight.shape[1:] == (hidden,)
    return weight if usable else None
