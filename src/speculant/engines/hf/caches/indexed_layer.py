"""A cache layer with an index that selects the tokens to attend to, as in DeepSeek Sparse Attention.

Besides keys and values it stores the indexer's key of every row, written in place and rolled back with them. The
indexer adds the mask of the pass to its scores before it selects, so a row of a tree selects among its ancestors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import cache_utils

from speculant.engines.hf.caches.in_place_layer import InPlaceLayer, append_rows

DynamicIndexedLayer: Any = getattr(cache_utils, "DynamicIndexedLayer", type("DynamicIndexedLayer", (), {}))


class IndexedLayer(InPlaceLayer):
    """Keys, values and the indexer's keys of one layer.

    Attributes:
        indexer_keys: the keys of the rows in use, [B, L, d]; None before the first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._index_rows: Tensor | None = None
        self.indexer_keys: Tensor | None = None
        self._positions: Tensor | None = None

    @property
    def indexer_position_ids(self) -> Tensor | None:
        """The positions of the rows in use, Int64[A, B, L], which some classes store on their first indexed layer.

        They are extended before any layer has rows, so what a failed first pass left behind is not returned.
        """
        return self._positions if self.is_initialized else None

    @indexer_position_ids.setter
    def indexer_position_ids(self, positions: Tensor | None) -> None:
        self._positions = positions

    @property
    def is_indexer_initialized(self) -> bool:
        """Whether the indexer has any keys."""
        return self.indexer_keys is not None

    @classmethod
    def adopt(cls, layer: Any) -> IndexedLayer:
        if isinstance(layer, cls):
            return layer
        adopted = super().adopt(layer)
        assert isinstance(adopted, IndexedLayer)
        if layer.is_initialized and layer.get_seq_length():
            adopted.indexer_keys = layer.indexer_keys
            adopted.indexer_position_ids = getattr(layer, "indexer_position_ids", None)
        return adopted

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        """Append the indexer's keys [B, n, d] and return all of them, [B, L + n, d]."""
        held = self.indexer_keys if self.is_initialized else None  # some classes call this first: see the positions
        self._index_rows, self.indexer_keys = append_rows(self._index_rows, held, indexer_key_states)
        return self.indexer_keys

    def keep(self, start: int, rows: list[int] | Tensor) -> None:
        super().keep(start, rows)
        held, end = self.indexer_keys, start + len(rows)
        if self.indexer_position_ids is not None:
            kept = torch.as_tensor(rows, dtype=torch.long, device=self.indexer_position_ids.device) + start
            first, moved = self.indexer_position_ids[..., :start], self.indexer_position_ids[..., kept]
            self.indexer_position_ids = torch.cat([first, moved], dim=-1)
        if held is None:
            return
        if len(rows):
            index = torch.as_tensor(rows, device=held.device) + start
            held[:, start:end] = held.index_select(1, index)
        self.indexer_keys = held[:, :end]

    def _take_prefix(self, layer: Any, length: int, room: int) -> None:
        super()._take_prefix(layer, length, room)
        if layer.indexer_keys is not None:
            self._index_rows, self.indexer_keys = append_rows(None, None, layer.indexer_keys[:, :length])
        if layer.indexer_position_ids is not None:
            self.indexer_position_ids = layer.indexer_position_ids[..., :length].clone()

    @property
    def nbytes(self) -> int:
        index = self.indexer_keys if self._index_rows is None else self._index_rows
        return self.rows_nbytes + sum(0 if held is None else held.nbytes for held in (index, self._positions))

    def reset(self) -> None:
        super().reset()
        self.indexer_keys = self.indexer_position_ids = None
