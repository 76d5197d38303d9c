"""Decoder layers of a target's class with other weights, as used for its MTP layers.

The class runs unchanged, with its own config, rotary embedding and attention. In place of a cache it gets one layer's
rows, which are written in place and rolled back. Rows of several texts share a pass as the target's do
(`batch_attention`): a view of the layer has a config in which the attention function is ours.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.errors import OutOfMemoryError
from speculant.engines.hf.batch_attention import FULL, BatchCache, config_changes
from speculant.engines.hf.caches.indexed_layer import IndexedLayer
from speculant.engines.hf.views.model_view import attention_paths, change_config, with_config

SLIDING = "sliding_attention"


class OwnRows:
    """The rows of texts in a layer, see `drafters.heads.target_layer.LayerRows`.

    Layers of transformers accept it as their cache, whatever their index is.
    """

    def __init__(self) -> None:
        self._layer = IndexedLayer()
        self._positions: Tensor | None = None  # Int64[B, rows], for attention windows

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values [B, H, n, d]; return those of all rows."""
        return self._layer.update(keys, values)

    def update_indexer(self, keys: Tensor, *_: Any, **__: Any) -> Tensor:
        """Append an indexer's keys [B, n, d]; return those of all rows."""
        return self._layer.update_indexer(keys)

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Return the number of rows."""
        return int(self._layer.get_seq_length())

    def place(self, positions: Tensor) -> Tensor:
        """Append the positions Int64[B, n] of new rows; return those of all rows."""
        held = self._positions
        self._positions = positions if held is None else torch.cat([held, positions], dim=-1)
        return self._positions

    @property
    def held(self) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, L, d] of all rows."""
        return self._layer.keys, self._layer.values

    def keep(self, count: int) -> None:
        """Drop all but the first `count` rows."""
        self._layer.keep(count, [])
        if self._positions is not None:
            self._positions = self._positions[:, :count]


class JoinedRows(BatchCache):
    """The rows of several texts in one layer during one pass."""

    def __init__(self, rows: Sequence[OwnRows], counts: Sequence[int], masks: Sequence[Tensor], own: str) -> None:
        """Prepare for one pass; see `BatchCache`."""
        super().__init__(rows, counts, masks, own)
        self._rows = rows

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of rows of the longest text."""
        return max(each.get_seq_length() for each in self._rows)

    def held_rows(self, cache: OwnRows) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a text."""
        return cache.held


class OwnLayer(nn.Module):
    """See `drafters.heads.target_layer.TargetLayer`.

    Attributes:
        layer: a layer of a transformers class.
        window: number of positions that its attention sees; None for all.
    """

    def __init__(
        self, layer: nn.Module, rotary: nn.Module | None, *, kind: str, window: int | None, exact: frozenset[str]
    ) -> None:
        """Take a layer with its weights.

        Args:
            layer: a layer of a transformers class.
            rotary: the target's rotary embedding, which is shared; None if layers have none.
            kind: kind of its attention, as named in `layer_types`.
            window: number of positions that its attention sees; None for all.
            exact: names of tensors that stay in float32 whatever the dtype of the others, as in the target.
        """
        super().__init__()
        self.layer = layer
        self._rotary: Callable[..., Any] | None = None if rotary is None else rotary.forward
        self._typed = rotary is not None and "layer_type" in inspect.signature(rotary.forward).parameters
        self.kind, self.window, self._exact = kind, window if kind == SLIDING else None, exact
        self._apart = False  # whether the class failed to run several texts together

    @property
    def rotary(self) -> Any:
        """The target's rotary embedding; None if layers have none."""
        return getattr(self._rotary, "__self__", None)

    def open(self) -> OwnRows:
        """Return the empty rows of a new text."""
        return OwnRows()

    def forward(self, x: Tensor, positions: Tensor, seen: Tensor | None, rows: OwnRows) -> Tensor:
        """Append rows; return the layer's output [B, n, D]."""
        return self._run(self.layer, x, positions, self._mask(x, positions, seen, rows), rows)

    def run_together(
        self, x: Tensor, positions: Tensor, seen: Sequence[Tensor | None], rows: Sequence[OwnRows]
    ) -> Tensor:
        """Append rows of several texts; return the layer's output [n, D]. See `TargetLayer.run_together`."""
        counts = [1 if own is None else len(own) for own in seen]
        before = [each.get_seq_length() for each in rows]
        if not self._apart:
            try:
                return self._run_joined(x, positions, seen, rows, counts)
            except OutOfMemoryError:
                raise
            except Exception:  # a class may have its own kind of attention, and fail in any way
                for each, count in zip(rows, before, strict=True):
                    each.keep(count)
                self._apart = True
        parts = zip(torch.split(x, counts), torch.split(positions, counts), seen, rows, strict=True)
        return torch.cat(
            [self(own[None], at[None], None if mask is None else mask[None], each)[0] for own, at, mask, each in parts]
        )

    def _run_joined(
        self,
        x: Tensor,
        positions: Tensor,
        seen: Sequence[Tensor | None],
        rows: Sequence[OwnRows],
        counts: list[int],
    ) -> Tensor:
        masks = [
            self._mask(own[None], at[None], None if mask is None else mask[None], each)
            for own, at, mask, each in zip(
                torch.split(x, counts), torch.split(positions, counts), seen, rows, strict=True
            )
        ]
        config = next((own for each in self.layer.modules() if (own := each.__dict__.get("config")) is not None), None)
        layer, own_name = self.layer, "eager" if config is None else config._attn_implementation
        cache = JoinedRows(rows, counts, masks, own_name)
        if config is not None:
            layer = with_config(layer, attention_paths(layer, config), change_config(config, **config_changes(cache)))
        found = self._run(layer, x[None], positions[None], torch.zeros(1, 1, 1, FULL, device=x.device), cache)[0]
        if not cache.separated:
            raise RuntimeError(f"{type(self.layer).__name__} attends in a way of its own.")
        return found

    def _run(self, layer: nn.Module, x: Tensor, positions: Tensor, mask: Tensor, rows: Any) -> Tensor:
        given: dict[str, Any] = {"attention_mask": mask, "position_ids": positions, "past_key_values": rows}
        if self._rotary is not None:
            typed = {"layer_type": self.kind} if self._typed else {}
            given["position_embeddings"] = self._rotary(x, positions, **typed)
        found = layer(x, **given)
        output: Tensor = found[0] if isinstance(found, tuple) else found
        return output

    def _mask(self, x: Tensor, positions: Tensor, seen: Tensor | None, rows: OwnRows) -> Tensor:
        """Return the mask added to the scores, [B, 1, n, rows]; required by attentions that select tokens with it."""
        count = rows.get_seq_length() + x.shape[1]
        if seen is None:
            seen = torch.ones(*x.shape[:2], count, dtype=torch.bool, device=x.device)
        if self.window is not None:
            seen = seen & (positions[..., None] - rows.place(positions)[:, None, :] < self.window)
        return torch.zeros_like(seen, dtype=x.dtype).masked_fill(~seen, torch.finfo(x.dtype).min)[:, None]

    def _apply(self, fn: Any, recurse: bool = True) -> OwnLayer:
        """Move all tensors, keeping in float32 those that the target keeps in float32."""
        tensors = dict(self.layer.named_parameters()) | dict(self.layer.named_buffers())
        kept = {name: tensors[name].data for name in self._exact if name in tensors}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        moved = dict(self.layer.named_parameters()) | dict(self.layer.named_buffers())
        for name, exact in kept.items():
            moved[name].data = exact.float().to(moved[name].device)
        return self
