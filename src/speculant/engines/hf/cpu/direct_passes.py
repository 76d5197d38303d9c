"""Passes of models of the Llama family over few rows that call the model's parts themselves.

transformers' wrappers of a model's forward, its functions for masks and its rotary embeddings take a notable part of
the pass of a small model, since they run between megabytes of weights. For the rows of a draft they do nothing:
positions and mask are given. So such a pass calls the parts of the model itself, as long as all of them are as
transformers made them; every other pass is left to transformers. A pass of several texts is also spared the views of
its layers that separate the texts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from speculant.engines.hf.acceleration import LayerOutputs, LayerPass
from speculant.engines.hf.cpu.layer_matching import FAMILIES, FIXED_ROTARY, is_untouched
from speculant.engines.hf.cpu.layer_stack import LayerStack, ReadyLayers
from speculant.engines.hf.cpu.layer_structs import LayerArguments, PositionArguments
from speculant.engines.hf.cpu.linear import readable
from speculant.engines.hf.cpu.norm import AcceleratedNorm
from speculant.engines.hf.cpu.shadow import Shadows
from speculant.engines.hf.modules_state import HOOKS

MAX_POSITIONS = 4096  # positions whose rotary embeddings are kept; beyond them, attention takes most of the time


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


class DirectPasses:
    """Passes of a causal language model.

    Attributes:
        model: the model.
    """

    def __init__(self, model: Any, shadows: Shadows, stack: LayerStack, norm: AcceleratedNorm) -> None:
        """Take an unmodified model, its shadows, its fused layers, and the norm after them."""
        self.model, self._base, self._shadows, self._stack, self._norm = model, model.model, shadows, stack, norm
        self._known: tuple[ReadyLayers, _Parts | None] | None = None
        base = self._base
        around = model, base, base.embed_tokens, base.norm, base.rotary_emb
        stack.watch(around, (base.config,), self._frequencies)

    def run(self, asked: LayerPass) -> LayerOutputs | None:
        """Run a pass; see `Acceleration.run_layers`."""
        given, positions, mask, cache = asked.given, asked.positions, asked.mask, asked.cache
        if cache is None or not _readable_numbers(positions) or given.shape[:2] != positions.shape:
            return None
        ready = self._stack.look_up()
        parts = self._find_parts(ready)
        if parts is None or (mask is not None and mask.ndim != 4):
            return None
        if mask is None and (positions.shape[1] != 1 or not _all_visible(parts.window, cache)):
            return None  # transformers creates a mask
        native, rows = self._norm.native, positions.numel()
        if not native.copy_rows(None, len(parts.cos), 0, positions.data_ptr(), rows, None):
            return None
        layers = range(len(self._stack.layers)) if asked.layers is None else asked.layers
        x = given if layers.start else self._embed(given, parts.embeddings)
        if x is None:
            return None
        places = PositionArguments(parts.cos.data_ptr(), parts.sin.data_ptr(), 0, positions.data_ptr())
        options = {"position_ids": positions, "use_cache": True}
        states = self._stack.compute(ready, x, places, cache, mask, options, layers=layers, taps=asked.taps)
        if states is None:
            return None
        logits = None if asked.kept is None else self._read_out(states[layers[-1]], parts.norm, asked.kept)
        return LayerOutputs(logits, states)

    def _embed(self, ids: Tensor, table: Tensor | None) -> Tensor | None:
        """Return [B, n, hidden] for tokens [B, n]; None if one is unknown, for which transformers raises the error."""
        if not _readable_numbers(ids):
            return None
        if table is None:
            embedded: Tensor = self._shadows.of(self._base.embed_tokens)(ids)
            return embedded
        x, size = table.new_empty((*ids.shape, table.shape[1])), table.shape[1] * table.element_size()
        arguments = table.data_ptr(), len(table), size, ids.data_ptr(), ids.numel(), x.data_ptr()
        return x if self._norm.native.copy_rows(*arguments) else None

    def _read_out(self, states: Tensor, norm: LayerArguments, kept: int | Tensor) -> Tensor:
        normed = torch.empty_like(states)
        self._norm.native.norm(ctypes.byref(norm), states.data_ptr(), normed.data_ptr(), states[..., 0].numel())
        last = slice(-kept, None) if isinstance(kept, int) else kept
        logits: Tensor = self._shadows.of(self.model.lm_head)(normed[:, last])
        return logits

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
        model, base, config = self.model, self._base, self._base.config
        home = type(model).__module__
        name = FAMILIES.get(home)
        modules, first = base._modules, self._stack.layers[0]
        kinds = set(getattr(config, "layer_types", None) or ())
        own = (
            is_untouched(model, home, f"{name}ForCausalLM")
            and model._modules.get("model") is base
            and is_untouched(base, home, f"{name}Model")
            and modules.get("layers") is self._stack.modules
            and modules.get("norm") is self._norm.module
            and is_untouched(self._norm.module, home, f"{name}RMSNorm")
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


def find_direct_passes(
    model: Any, shadows: Shadows, stack: LayerStack, norms: Iterable[AcceleratedNorm]
) -> DirectPasses | None:
    """Return the passes of a model; None if it is not an unmodified one of the Llama family with fused layers."""
    home = type(model).__module__
    if home not in FAMILIES or not is_untouched(model, home, f"{FAMILIES[home]}ForCausalLM"):
        return None
    base = model._modules.get("model")
    if base is None or stack.modules is None or base._modules.get("layers") is not stack.modules:
        return None
    last = next((norm for norm in norms if norm.module is base._modules.get("norm")), None)
    return None if last is None else DirectPasses(model, shadows, stack, last)


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
