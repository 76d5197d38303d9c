"""A view of a model with embeddings for extra tokens after its vocabulary: learned inputs that are not text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.modules import QuantizedEmbedding
from speculant.engines.hf.views.model_view import view_module
from speculant.engines.hf.views.unwrapping import base_model


class ExtendedEmbedding(nn.Module):
    """The model's embeddings, followed by extra ones."""

    def __init__(self, inner: nn.Module, vocabulary: int, further: Tensor) -> None:
        super().__init__()
        self._inner = [inner]  # not a submodule: it stays the model's, whatever is done to this view
        self._vocabulary, self._further = vocabulary, further

    def forward(self, ids: Tensor) -> Tensor:
        known = self._inner[0](ids.clamp(max=self._vocabulary - 1))
        new = self._further.to(known)[(ids - self._vocabulary).clamp(min=0)]
        return torch.where((ids < self._vocabulary)[..., None], known, new)


def with_embeddings(source: Any, model: Any, vocabulary: int, further: Tensor) -> Any:
    """Return a view of a model that also reads tokens V, V + 1, ...

    Args:
        source: the model, a view of it, or the shadow modules that an acceleration runs instead.
        model: the model.
        vocabulary: V.
        further: [E, D], inputs of the decoder layers for these tokens.

    Raises:
        UnsupportedError: the embeddings are not found, or further tables are indexed by the same tokens.
    """
    embeddings = base_model(model).get_input_embeddings()
    config = model.config.get_text_config(decoder=True)
    found = [name for name, module in model.named_modules() if module is embeddings]
    others = [  # such as Gemma 3n's per-layer tables
        module
        for module in model.modules()
        if isinstance(module, nn.Embedding | QuantizedEmbedding)
        and module is not embeddings
        and module.num_embeddings in (vocabulary, getattr(config, "vocab_size_per_layer_input", vocabulary))
    ]
    if not found or others:
        raise UnsupportedError(
            f"{type(model).__name__} does not read its tokens through one table of embeddings, so a drafter's own "
            "embeddings cannot be added to them; use a method without them, such as 'mix'."
        )
    path = tuple(found[0].split("."))
    inner = source
    for name in path:
        inner = getattr(inner, name)
    return view_module(source, path, ExtendedEmbedding(inner, vocabulary, further))
