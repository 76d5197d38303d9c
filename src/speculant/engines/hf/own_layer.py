"""Decoder layers of a target's class with other weights: what its MTP layers are made of.

The class is run as it is, with its own config, rotary embedding and attention. In the place of a cache it gets one
layer's rows, which are written in place and rolled back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from speculant.engines.hf.indexed_layer import IndexedLayer

SLIDING = "sliding_attention"


class CachedRows:
    """The rows of texts in a layer, see `drafters.heads.target_layer.LayerRows`.

    A layer of transformers finds them where it expects a cache, whatever its index is.
    """

    def __init__(self) -> None:
        self._layer = IndexedLayer()
        self._positions: Tensor | None = None  # Int64[B, rows], which windows are counted in

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add keys and values [B, H, n, d] of new rows; return those of all rows."""
        return self._layer.update(keys, values)

    def update_indexer(self, keys: Tensor, *_: Any, **__: Any) -> Tensor:
        """Add an indexer's keys [B, n, d] of new rows; return those of all rows."""
        return self._layer.update_indexer(keys)

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Return how many rows there are."""
        return int(self._layer.get_seq_length())

    def place(self, positions: Tensor) -> Tensor:
        """Add the positions Int64[B, n] of new rows; return those of all rows."""
        held = self._positions
        self._positions = positions if held is None else torch.cat([held, positions], dim=-1)
        return self._positions

    def keep(self, count: int) -> None:
        """Drop all rows but the first `count`."""
        self._layer.keep(count, [])
        if self._positions is not None:
            self._positions = self._positions[:, :count]


class OwnLayer(nn.Module):
    """See `drafters.heads.target_layer.TargetLayer`.

    Attributes:
        layer: of a class of transformers.
        window: positions that its attention sees; None for all.
    """

    def __init__(
        self, layer: nn.Module, rotary: nn.Module | None, *, kind: str, window: int | None, exact: frozenset[str]
    ) -> None:
        """Take a layer with its weights.

        Args:
            layer: of a class of transformers.
            rotary: the target's rotary embedding, which stays the target's; None where layers have none.
            kind: of its attention, as `layer_types` names it.
            window: positions that its attention sees; None for all.
            exact: names of tensors that stay in float32 whatever the others are in, as in the target.
        """
        super().__init__()
        self.layer = layer
        self._rotary: Callable[..., Any] | None = None if rotary is None else rotary.forward
        self._typed = rotary is not None and "layer_type" in inspect.signature(rotary.forward).parameters
        self.kind, self.window, self._exact = kind, window if kind == SLIDING else None, exact

    @property
    def rotary(self) -> Any:
        """The target's rotary embedding; None where layers have none."""
        return getattr(self._rotary, "__self__", None)

    def open(self) -> CachedRows:
        """Return the rows of a new text: none."""
        return CachedRows()

    def forward(self, x: Tensor, positions: Tensor, seen: Tensor | None, rows: CachedRows) -> Tensor:
        """Append rows; return the layer's output [B, n, D]."""
        mask = self._mask(x, positions, seen, rows)
        given: dict[str, Any] = {"attention_mask": mask, "position_ids": positions, "past_key_values": rows}
        if self._rotary is not None:
            typed = {"layer_type": self.kind} if self._typed else {}
            given["position_embeddings"] = self._rotary(x, positions, **typed)
        found = self.layer(x, **given)
        output: Tensor = found[0] if isinstance(found, tuple) else found
        return output

    def _mask(self, x: Tensor, positions: Tensor, seen: Tensor | None, rows: CachedRows) -> Tensor:
        """Return what is added to the scores, [B, 1, n, rows]: some attentions choose by it, so it is always there."""
        count = rows.get_seq_length() + x.shape[1]
        if seen is None:
            seen = torch.ones(*x.shape[:2], count, dtype=torch.bool, device=x.device)
        if self.window is not None:
            seen = seen & (positions[..., None] - rows.place(positions)[:, None, :] < self.window)
        return torch.zeros_like(seen, dtype=x.dtype).masked_fill(~seen, torch.finfo(x.dtype).min)[:, None]

    def _apply(self, fn: Any, recurse: bool = True) -> OwnLayer:
        """Move all tensors, and keep those exact that the target keeps in float32."""
        tensors = dict(self.layer.named_parameters()) | dict(self.layer.named_buffers())
        kept = {name: tensors[name].data for name in self._exact if name in tensors}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        moved = dict(self.layer.named_parameters()) | dict(self.layer.named_buffers())
        for name, exact in kept.items():
            moved[name].data = exact.float().to(moved[name].device)
        return self
