"""The parts of a transformers model that heads use: embeddings, final norm and output projection."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.cache_utils import DynamicCache
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.layers import RMSNorm, Rotary
from speculant.engines.hf.cpu.head_code import HeadCode
from speculant.engines.hf.cpu.head_cross_layer import HeadCrossLayer
from speculant.engines.hf.cpu.head_layer import HeadLayer
from speculant.engines.hf.cpu.head_step import HeadStep
from speculant.engines.hf.probe.class_checks import check_model
from speculant.engines.hf.quantized.modules import QuantizedEmbedding, QuantizedLinear
from speculant.engines.hf.quantized.weight import take_rows
from speculant.engines.hf.views.decoder_output import (
    decoder_embeddings,
    decoder_positions,
    find_decoder_output,
    source_size,
)
from speculant.engines.hf.views.model_view import find_layers
from speculant.engines.hf.views.own_layer import OwnLayer
from speculant.engines.hf.views.own_layer_building import build_layer, copy_layer
from speculant.engines.hf.views.plain_layer import find_plain_shape, view_first_layers
from speculant.engines.hf.views.unwrapping import base_model


class HFTargetParts:
    """See `drafters.heads.head.TargetParts`. The modules remain the model's."""

    def __init__(self, model: Any, *, fast: bool = False) -> None:
        """Find the parts.

        Args:
            model: a causal LM, or an encoder-decoder, whose decoder is the target.
            fast: whether heads may use compiled code, if available.

        Raises:
            UnsupportedError: the decoder layers or the final norm cannot be identified.
        """
        model = base_model(model)
        place, embeddings, output = find_layers(model), model.get_input_embeddings(), model.get_output_embeddings()
        if place is None or embeddings is None or output is None:
            raise UnsupportedError(
                f"heads need the embeddings, decoder layers and output projection of {type(model).__name__}, "
                "which cannot be found; use a method without a head, such as 'mix'."
            )
        self._model, self.fast = model, fast
        self._code = HeadCode() if fast and output.weight.device.type == "cpu" else None
        self.config = model.config.get_text_config(decoder=True)
        self.vocabulary, self.layers = int(self.config.vocab_size), len(place)
        self.positions: int | None = getattr(self.config, "max_position_embeddings", None)
        self._embeddings, self._scale, self._output = embeddings, 1.0, output
        self._cap, self._bias = getattr(self.config, "final_logit_softcapping", None), None
        self._views = dict[nn.Module, nn.Module]()  # see `first_layers`
        self.hidden_size, self.source_size = int(output.weight.shape[-1]), 0
        if getattr(model.config, "is_encoder_decoder", False):
            found, self.source_size = find_decoder_output(model, place), source_size(model)
            self._embeddings, self._scale = decoder_embeddings(model)
            self._norm, self._factor, self._bias = found.norm, found.factor, found.bias
            self.positions = decoder_positions(model)
        else:
            self._norm = _final_norm(model, place.path, self.hidden_size)
            self._factor = _logit_factor(self.config)

    def same_model(self, other: HFTargetParts) -> bool:
        """Return whether both are parts of one model."""
        return self._embeddings is other._embeddings and self._output is other._output

    def embed(self, ids: Tensor) -> Tensor:
        found: Tensor = self._embeddings(ids)
        return found if self._scale == 1.0 else found * self._scale

    def embedding_rows(self, ids: Tensor) -> Tensor:
        if isinstance(self._embeddings, QuantizedEmbedding):
            return self._embeddings.rows(ids)
        return nn.functional.embedding(ids, self._embeddings.weight)

    def norm(self, hidden: Tensor) -> Tensor:
        found: Tensor = self._norm(hidden)
        return found

    def project(self, hidden: Tensor) -> Tensor:
        found = self.linear(self._output, hidden.to(self._output.weight.dtype))
        if self._factor != 1.0:
            found = found * self._factor
        if self._bias is not None:
            found = found + self._bias.to(found)
        return found if self._cap is None else torch.tanh(found / self._cap) * self._cap

    def projection(self) -> Tensor:
        output = self._output
        weight: Tensor = output.dequantize() if isinstance(output, QuantizedLinear) else output.weight
        found = weight[: self.vocabulary]
        return found if self._factor == 1.0 else found * self._factor

    def linear(self, module: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = module(x) if self._code is None else self._code.linear(module, x)
        return found

    def layer_code(self, layer: nn.Module) -> HeadLayer | None:
        return None if self._code is None else self._code.layer(layer)

    def cross_code(self, layer: nn.Module, norm: RMSNorm, rotary: Rotary) -> HeadCrossLayer | None:
        return None if self._code is None else self._code.cross_layer(layer, norm, rotary)

    def step_code(self, parts: Any) -> HeadStep | None:
        if self._code is None:
            return None
        if parts.output is None and (self._factor != 1.0 or self._cap is not None or self._bias is not None):
            return None  # the target modifies logits after its projection
        if parts.embeddings is None and self._scale != 1.0:
            return None
        embeddings = self._embeddings if parts.embeddings is None else parts.embeddings
        return self._code.step(parts, embeddings, self._output if parts.output is None else parts.output)

    def with_output_rows(self, ids: Tensor) -> HFTargetParts | None:
        output = self._output
        if type(output) not in (nn.Linear, QuantizedLinear):
            return None
        found = copy.copy(self)
        rows = ids.to(output.weight.device)
        if self._bias is not None:
            found._bias = self._bias[..., rows]
        if isinstance(output, QuantizedLinear):
            found._output = QuantizedLinear(
                take_rows(output.quantized, rows),
                None if output.bias is None else output.bias.detach()[rows],
                dtype=output.dtype,
                activations=output.activations,
            )
            return found
        with torch.device("meta"):
            chosen = nn.Linear(output.in_features, len(ids), bias=output.bias is not None)
        chosen.weight = nn.Parameter(output.weight.detach()[rows], requires_grad=False)
        if output.bias is not None:
            chosen.bias = nn.Parameter(output.bias.detach()[rows], requires_grad=False)
        found._output = chosen
        return found

    def new_norm(self) -> nn.Module:
        return copy.deepcopy(self._norm)

    def new_layer(self, weights: Mapping[str, Tensor] | None, kind: str) -> OwnLayer:
        return copy_layer(self._model, kind) if weights is None else build_layer(self._model, weights, kind)

    def plain_shape(self, layer: nn.Module, norms: Sequence[nn.Module]) -> dict[str, Any] | None:
        return find_plain_shape(layer, norms) if isinstance(layer, OwnLayer) else None

    def first_layers(self, count: int) -> tuple[tuple[nn.Module, ...], dict[str, Any]] | None:
        return view_first_layers(self._model, count, self._views)

    def text_keys(self, ids: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        cache = DynamicCache()
        self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        held = cache.layers[layer]
        if not held.is_initialized:
            raise UnsupportedError(f"layer {layer} of this target keeps no keys and values of its own.")
        return held.keys, held.values

    def run(self, embeddings: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        mask = self.row_mask(seen, embeddings.dtype)
        output = self._model(inputs_embeds=embeddings, position_ids=positions, attention_mask=mask, use_cache=False)
        found: Tensor = output.logits
        return found

    def row_mask(self, seen: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the model's attention mask for Bool[B, 1, n, n], the rows that each may see.

        Raises:
            UnsupportedError: the model does not accept masks.
        """
        kinds = set(getattr(self.config, "layer_types", None) or ())
        if not check_model(self._model).trees or "sliding_attention" in kinds:
            raise UnsupportedError(
                f"{type(self._model).__name__} takes no mask of its own for all layers, which this training needs; "
                "train another kind of head."
            )
        mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        return mask.masked_fill(~seen, torch.finfo(dtype).min)

    def frequencies(self, rope: Mapping[str, Any], head_dim: int, positions: int) -> tuple[Tensor, float]:
        theta, kind = float(rope["rope_theta"]), str(rope.get("rope_type", "default"))
        if kind == "default":
            return theta ** -(torch.arange(0, head_dim, 2).float() / head_dim), 1.0
        if kind not in ROPE_INIT_FUNCTIONS:
            raise UnsupportedError(f"the head's rotary embedding is of the unknown kind {kind!r}.")
        config = LlamaConfig(
            hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim, max_position_embeddings=positions
        )
        config.rope_parameters = dict(rope)
        found, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        return found, float(scale)


def _logit_factor(config: Any) -> float:
    """Return the factor that a model applies to its logits: Cohere's scale, Granite's divisor."""
    if (scale := getattr(config, "logit_scale", None)) is not None:
        return float(scale)
    if (scale := getattr(config, "logits_scaling", None)) is not None:
        return float(scale) if config.model_type.startswith("hyperclovax") else 1 / float(scale)
    return 1.0


def _final_norm(model: Any, path: tuple[str, ...], size: int) -> nn.Module:
    """Return the norm next to the list of decoder layers, which follows the last of them."""
    above = model
    for name in path[:-1]:
        above = getattr(above, name)
    found = [
        (name, module)
        for name, module in above._modules.items()
        if module is not None and "norm" in type(module).__name__.lower() and "embed" not in name
    ]
    sized = [
        module
        for _, module in found
        if any(p.shape == (size,) for p in module.parameters()) or not [*module.parameters()]
    ]
    if not sized:
        raise UnsupportedError(
            f"the final norm of {type(model).__name__} cannot be found beside its decoder layers, which heads need; "
            "use a method without a head, such as 'mix'."
        )
    norm: nn.Module = sized[-1]
    return norm
