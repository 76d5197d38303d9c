"""Compiled code for a step of an EAGLE head: everything but the embeddings in one call of `head_step.cpp`.

A step has some forty operations on one to ten rows, which would take several times as long as reading its weights.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from speculant.core.tree import Float32, Int32
from speculant.engines.hf.cpu.head_layer import LayerWeights, find_linear, find_quantized
from speculant.engines.hf.cpu.layer_structs import LayerArguments, LinearArguments
from speculant.engines.hf.cpu.narrow_weights import ROWS, NarrowWeights
from speculant.engines.hf.cpu.products import Products
from speculant.engines.hf.modules_state import ParametersState
from speculant.engines.hf.quantized.modules import QuantizedEmbedding, QuantizedLinear


class StepLayerArguments(ctypes.Structure):
    """The struct `StepLayer` of head_step.cpp."""

    _fields_ = (
        ("layer", LayerArguments),
        *((name, ctypes.c_void_p) for name in ("embedding_norm", "feature_norm")),
        *((name, ctypes.c_float) for name in ("embedding_eps", "feature_eps")),
        ("normed_residual", ctypes.c_int),
    )


class StepArguments(ctypes.Structure):
    """The struct `Step` of head_step.cpp."""

    _fields_ = (
        ("layers", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "hidden", "heads", "kv_heads", "head", "vocabulary")),
        *((name, LinearArguments) for name in ("fuse", "output")),
        *((name, ctypes.c_void_p) for name in ("norm", "cos", "sin", "embedding_norm", "feature_norm")),
        *((name, ctypes.c_float) for name in ("norm_eps", "embedding_eps", "feature_eps")),
        *((name, ctypes.c_int) for name in ("feature_first", "carries_norm", "is_bf16")),
        ("exit", ctypes.c_int64),
    )


class HeldArguments(ctypes.Structure):
    """The struct `Held` of head_step.cpp."""

    _fields_ = (("keys", ctypes.c_void_p), ("values", ctypes.c_void_p), ("step", ctypes.c_int64))


class TextArguments(ctypes.Structure):
    """The struct `Text` of head_step.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("features", "places", "positions", "seen", "held", "passed")),
        *((name, ctypes.c_int64) for name in ("n", "length", "wanted")),
        ("exits", ctypes.c_void_p),
    )


class PlanArguments(ctypes.Structure):
    """The struct `Plan` of head_draft.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("root", "ratios")),
        *((name, ctypes.c_int64) for name in ("position", "depth", "top_k", "expanded", "nodes")),
        *(
            (name, ctypes.c_float)
            for name in ("minimum", "level_price", "row_price", "inverse_temperature", "confidence")
        ),
        *((name, ctypes.c_void_p) for name in ("tokens", "parents", "weights", "extended")),
        *((name, ctypes.c_int64) for name in ("count", "levels")),
    )


class WordsArguments(ctypes.Structure):
    """The struct `Words` of head_draft.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("embeddings", "quantized", "ids")),
        ("vocabulary", ctypes.c_int64),
    )


class HeadStep:
    """See `drafters.heads.step.StepCode`."""

    def __init__(
        self,
        parts: Any,
        embeddings: nn.Module,
        output: nn.Linear | QuantizedLinear,
        products: Products,
        *,
        narrow: NarrowWeights | None,
    ) -> None:
        """Take the parts of a head.

        Args:
            parts: `drafters.heads.step.StepParts` with layers that are `computable`.
            embeddings: token embeddings; drafts are grown in one call if they are PyTorch's, or quantised and unscaled.
            output: output projection; all weights have one dtype.
            products: the available products.
            narrow: copies of float matrices for steps of few rows; None for none.
        """
        self._native, self._rotary, self._ids = products.native, parts.rotary, parts.ids
        self._embeddings = embeddings if type(embeddings) is nn.Embedding else None
        self._quantized: QuantizedEmbedding | None = None
        if isinstance(embeddings, QuantizedEmbedding) and embeddings.scale is None:
            self._quantized = embeddings
        self._whole = StepWeights(parts, output, products)
        copied = narrow is not None and self._whole.dtype is torch.float32
        self._few = StepWeights(parts, output, products, narrow) if copied else self._whole
        self.maximum, self.max_together = self._whole.maximum, products.max_rows(self._whole.dtype)

    def __call__(self, embeddings: Tensor, texts: Any) -> Tensor | None:
        """See `drafters.heads.step.StepCode`; the texts are its `TextRows`."""
        cos, sin = self._rotary.table(max(text.last for text in texts), embeddings)
        read = [embeddings, cos, sin]
        for text in texts:
            read += (text.features, text.passed, *(each[0] for each in text.held[-1][:1]))
        if (
            len(embeddings) > self.max_together
            or torch.is_grad_enabled()
            or not all(each.dtype is self._whole.dtype and each.is_contiguous() and each.is_cpu for each in read)
        ):
            return None
        weights = self._few if len(embeddings) <= ROWS else self._whole
        step = weights.look_up()
        step.cos, step.sin = cos.data_ptr(), sin.data_ptr()
        calls, held, wanted = (TextArguments * len(texts))(), [], 0
        for call, text in zip(calls, texts, strict=True):
            layers = (HeldArguments * len(text.held))(
                *(HeldArguments(keys.data_ptr(), values.data_ptr(), keys.stride(0)) for keys, values in text.held)
            )
            held.append(layers)  # kept alive until the call ends
            call.features, call.places, call.positions, call.seen = (
                text.features.data_ptr(), _address(text.places), text.positions.data_ptr(), _address(text.seen),
            )  # fmt: skip
            call.held, call.passed = ctypes.addressof(layers), text.passed.data_ptr()
            call.n, call.length, call.wanted = len(text.positions), text.length, len(text.passed)
            call.exits = _address(text.exits)
            wanted += len(text.passed)
        logits = embeddings.new_empty(wanted, step.vocabulary)
        self._native.head_step(
            ctypes.byref(step), ctypes.byref(calls), len(texts), embeddings.data_ptr(), logits.data_ptr(),
            torch.get_num_threads(),
        )  # fmt: skip
        return logits

    def draft(
        self, roots: Sequence[Any], plans: Sequence[Any], *, vocabulary: int, temperatures: Sequence[float]
    ) -> list[tuple[Int32, Int32, Float32, list[float]] | None] | None:
        """See `drafters.heads.step.StepCode`."""
        tables = [self._embeddings.weight] if self._embeddings is not None else []
        quantized = self._quantized
        last = max(root.position + plan.levels for root, plan in zip(roots, plans, strict=True))
        cos, sin = self._rotary.table(last, roots[0].passed)
        read = [cos, sin]
        for root in roots:
            read += (root.passed, root.logits, *(each[0] for each in root.held[-1][:1]))
        if (
            (not tables and (quantized is None or quantized.dtype is not self._whole.dtype))
            or any(plan.expanded > self.maximum for plan in plans)
            or torch.is_grad_enabled()
            or not all(
                each.dtype is self._whole.dtype and each.is_contiguous() and each.is_cpu for each in (*tables, *read)
            )
        ):
            return None
        weights = self._few if sum(plan.expanded for plan in plans) <= ROWS else self._whole
        step = weights.look_up()
        step.cos, step.sin = cos.data_ptr(), sin.data_ptr()
        texts, asked = (TextArguments * len(roots))(), (PlanArguments * len(roots))()
        kept, found = list[Any](), list[tuple[Any, ...]]()  # kept alive until the call ends
        for text, each, root, plan, warmth in zip(texts, asked, roots, plans, temperatures, strict=True):
            layers = (HeldArguments * len(root.held))(
                *(HeldArguments(keys.data_ptr(), values.data_ptr(), keys.stride(0)) for keys, values in root.held)
            )
            text.features, text.held, text.length = root.passed.data_ptr(), ctypes.addressof(layers), root.length
            text.exits = _address(root.exits)
            maximum = plan.top_k + (plan.levels - 1) * plan.expanded * plan.top_k
            written = (
                np.empty(maximum, np.int32), np.empty(maximum, np.int32), np.empty(maximum, np.float32),
                np.empty(plan.levels, np.float32),
            )  # fmt: skip
            ratios = np.array(plan.ratios, np.float32)
            each.root, each.ratios, each.position = root.logits.data_ptr(), ratios.ctypes.data, root.position
            each.depth, each.top_k, each.expanded, each.nodes = plan.levels, plan.top_k, plan.expanded, plan.nodes
            each.minimum, each.level_price, each.row_price = plan.min_probability, plan.level_price, plan.row_price
            each.inverse_temperature, each.confidence = 1 / warmth, plan.confidence
            each.tokens, each.parents, each.weights, each.extended = (array.ctypes.data for array in written)
            kept += (layers, ratios)
            found.append(written)
        known = min(vocabulary, step.vocabulary) if self._ids is None else step.vocabulary
        packed = None if quantized is None else ctypes.addressof(quantized.arguments())
        words = WordsArguments(tables[0].data_ptr() if tables else None, packed, _address(self._ids), known)
        self._native.head_draft(
            ctypes.byref(step), ctypes.byref(texts), ctypes.byref(asked), len(roots), ctypes.byref(words),
            self.max_together, torch.get_num_threads(),
        )  # fmt: skip
        return [
            None
            if each.count < 0
            else (
                tokens[: each.count],
                parents[: each.count],
                weights[: each.count],
                extended[: each.levels - 1].tolist(),
            )
            for each, (tokens, parents, weights, extended) in zip(asked, found, strict=True)
        ]


class StepWeights:
    """The weights of a head's step. They are looked up for every call, so new ones take effect at once.

    Attributes:
        layers: the structs of the layers.
        dtype: dtype of all weights except narrow copies.
        maximum: maximum rows per call.
    """

    def __init__(
        self,
        parts: Any,
        output: nn.Linear | QuantizedLinear,
        products: Products,
        narrow: NarrowWeights | None = None,
    ) -> None:
        """Take the arguments of `HeadStep`, and the copies of matrices; None to read the matrices themselves."""
        self._narrow = narrow
        self._around = [("norm", parts.norm)] if parts.norm is not None else []  # norms outside the layers
        self._around += zip(("embedding_norm", "feature_norm"), parts.fuse_norms or (), strict=False)
        self._weights = [  # verification reuses the target layers' results, so their weights are read exactly
            LayerWeights(layer, products, None if place < parts.exit else narrow)
            for place, layer in enumerate(parts.layers)
        ]
        self._linears = [(name, module) for name, module in (("fuse", parts.fuse), ("output", output)) if module]
        self._norms: list[tuple[int, str, Any]] = []  # place of the layer, which one, module
        self.layers = (StepLayerArguments * len(parts.layers))()
        for place, layer in enumerate(parts.layers):
            self.layers[place].normed_residual = parts.normed_residual and place == 0
            if (hidden_norm := layer._modules.get("hidden_norm")) is not None:
                self._norms += [(place, "embedding", layer.input_layernorm), (place, "feature", hidden_norm)]
            elif (input_norm := layer._modules.get("input_layernorm")) is not None:
                self._norms.append((place, "input", input_norm))
        first = self._weights[0]
        self._step = StepArguments(
            layers=ctypes.addressof(self.layers), count=len(parts.layers), hidden=first.arguments.hidden,
            heads=first.heads, kv_heads=first.kv_heads, head=first.head, vocabulary=output.out_features,
            feature_first=parts.feature_first, carries_norm=parts.carries_norm, is_bf16=first.dtype is torch.bfloat16,
            exit=parts.exit,
        )  # fmt: skip
        self._current: list[Any] = []
        self._state: ParametersState | None = None  # None where quantised weights are looked up
        self.dtype, self.maximum = first.dtype, min(each.maximum for each in self._weights)

    def look_up(self) -> StepArguments:
        """Return the step with the current addresses of the weights."""
        if self._state is not None and self._state.holds():
            return self._step
        state, known = self._find_state(), self._current
        self._current, self._state = [], None  # if this is interrupted, the next call sets everything
        changed = [each.look_up() for each in self._weights]
        norms = [norm.weight.data_ptr() for *_, norm in self._norms]
        linears = [
            find_quantized(module)
            if isinstance(module, QuantizedLinear)
            else find_linear(module.weight, module.bias, self._narrow)
            for _, module in self._linears
        ]
        around = [norm.weight.data_ptr() for _, norm in self._around]
        current = [norms, linears, around]
        if current == known and not any(changed):
            self._current, self._state = known, state
            return self._step
        for own, each in zip(self.layers, self._weights, strict=True):
            own.layer = each.arguments
        for (place, name, norm), address in zip(self._norms, norms, strict=True):
            own = self.layers[place]
            holder = own.layer if name == "input" else own
            setattr(holder, f"{name}_norm", address)
            setattr(holder, f"{name}_eps", norm.eps)
        for (name, _), found in zip(self._linears, linears, strict=True):
            setattr(self._step, name, LinearArguments(*found))
        for (name, norm), address in zip(self._around, around, strict=True):
            setattr(self._step, name, address)
            setattr(self._step, "norm_eps" if name == "norm" else name.replace("_norm", "_eps"), norm.eps)
        self._current, self._state = current, state
        return self._step

    def _find_state(self) -> ParametersState | None:
        others = [module for _, module in (*self._linears, *self._around)]
        if any(isinstance(module, QuantizedLinear) for module in others):
            return None
        others += [module for *_, module in self._norms]
        return ParametersState([*chain.from_iterable(each.modules for each in self._weights), *others])


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
