"""Selects the rows of a sparse cache in a pass of the whole model, by the attention that the pass's row pays to them.

Each key-value head selects its own pages, as in Quest (Tang et al. 2024, arXiv 2406.10774) and TriForce (Sun et al.
2024, arXiv 2404.11912). These estimate a page's weight from the extremes or the mean of its keys, to avoid reading the
others. Here the rows stay for many passes, and the selecting pass reads every key anyway, so the weight is exact: the
attention that the group's queries pay to the page's rows. For these queries, what is left out changes a head's output
by no more than twice its weight times the largest value.

The pass runs on a view of the model, as batched passes do (`batch_attention.py`); its attention also selects.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.errors import UnsupportedError
from speculant.core.sparse_cache import RowBudget
from speculant.engines.hf.batch_attention import SLIDING, BatchCache, attention_function
from speculant.engines.hf.caches.in_place_layer import InPlaceLayer

NO_QUERIES = (
    "this model's attention does not expose its queries, so no cached rows can be chosen by them; use a method such "
    "as 'mix'."
)


class RetrievalCache(BatchCache):
    """The cache of one sequence during a pass over one row, which copies the selected rows along the way.

    Attributes:
        chosen: for each layer index, the selected rows followed by the row of the pass.
        sliding: the layers among these with a sliding window; they hold the rows of the window.
    """

    def __init__(
        self, cache: DynamicCache, mask: Any, own: str, budget: RowBudget, *, seen: Tensor | None, window: int | None
    ) -> None:
        """Prepare for one pass.

        Args:
            cache: cache of the sequence.
            mask, own: see `BatchCache`.
            budget: number of rows to select.
            seen: Int64[T], ascending positions of the rows that are not padding; None for all.
            window: number of positions that a sliding layer sees; None without such layers.
        """
        super().__init__([cache], [1], [mask], own)
        self._budget, self._seen, self._window = budget, seen, window
        self.chosen: dict[int, InPlaceLayer] = {}
        self.sliding: set[int] = set()

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Append the row and return all rows, as the sequence's own cache does."""
        self._layer, self._updates = layer_idx, self._updates + 1
        return self._caches[0].update(key_states, value_states, layer_idx)

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """Run the model's own attention and select rows by it; see `BatchCache.attend`.

        The keys may differ from the cached ones, for instance those computed from a latent row (MLA).

        Raises:
            UnsupportedError: there is not one key for each cached row.
        """
        kind = attention_mask.shape[-1]
        attended = attention_function(module, self._own)(module, query, key, value, self._masks[kind][0], **kwargs)[0]
        self._attended += 1
        layer = self._caches[0].layers[self._layer]
        heads, own_row = layer.keys.shape[1], layer.keys.shape[-2] - 1
        places = torch.arange(own_row, device=key.device) if self._seen is None else self._seen.to(key.device)
        if kind == SLIDING:
            assert self._window is not None
            rows = places[-self._window :].expand(heads, -1)
            self.sliding.add(self._layer)
        else:
            if query.shape[1] % key.shape[1] or key.shape[1] % heads or key.shape[2] != own_row + 1:
                raise UnsupportedError(NO_QUERIES)
            weights = attention_weights(query[0, :, 0], key[0], kwargs.get("scaling"), kwargs.get("softcap"))
            weights = weights.reshape(heads, -1, own_row + 1).sum(1)
            rows = choose_rows(weights[:, :own_row] if self._seen is None else weights[:, places], self._budget)
            rows = rows if self._seen is None else places[rows]
        self.chosen[self._layer] = copy_rows(layer, torch.cat([rows, rows.new_full((heads, 1), own_row)], dim=1))
        return attended, None

    def counts(self) -> tuple[int, int]:
        """Return how many text rows were selected in layers without a window and in layers with one; 0 if none."""
        counts = {index in self.sliding: layer.keys.shape[-2] - 1 for index, layer in self.chosen.items()}
        return counts.get(False, 0), counts.get(True, 0)


def attention_weights(query: Tensor, keys: Tensor, scaling: float | None, softcap: float | None = None) -> Tensor:
    """Return the attention Float32[H, T] paid to every row by the queries of each group, summed over the group.

    Args:
        query: [G * H, D] of one row; G consecutive heads share a key-value head.
        keys: [H, T, D].
        scaling: factor of the products; None for D ** -0.5.
        softcap: soft cap of the scores; None for none.
    """
    heads, _, width = keys.shape
    scores = (query.reshape(heads, -1, width) @ keys.transpose(1, 2)).float()
    scores = scores * (width**-0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    return scores.softmax(-1).sum(1)


def choose_rows(weights: Tensor, budget: RowBudget) -> Tensor:
    """Return the rows Int64[H, K] of T that each head keeps, ascending: all rows if the budget has room for them.

    Pages start after the sinks; the rows after the last whole page are kept with the recent ones.

    Args:
        weights: [H, T].
        budget: number of rows to keep.
    """
    heads, length = weights.shape
    pages = max(0, length - budget.sinks - budget.recent) // budget.page
    count = budget.retrieved // budget.page
    if count >= pages:
        return torch.arange(length, device=weights.device).expand(heads, -1)
    end = budget.sinks + pages * budget.page
    by_page = weights[:, budget.sinks : end].reshape(heads, pages, budget.page).sum(-1)
    best = by_page.topk(count, dim=1).indices.sort(dim=1).values
    inside = torch.arange(budget.page, device=weights.device)
    middle = (budget.sinks + best[:, :, None] * budget.page + inside).flatten(1)
    first = torch.arange(budget.sinks, device=weights.device).expand(heads, -1)
    last = torch.arange(end, length, device=weights.device).expand(heads, -1)
    return torch.cat([first, middle, last], dim=1)


def copy_rows(layer: Any, rows: Tensor) -> InPlaceLayer:
    """Return a layer with copies of rows Int64[H, K] of each head of another layer's keys and values."""
    copy = InPlaceLayer()
    copy.update(*(_gather(held, rows) for held in (layer.keys, layer.values)))
    return copy


def _gather(held: Tensor, rows: Tensor) -> Tensor:
    """Gather the rows Int64[H, K] from [1, H, T, D]; return [1, H, K, D]."""
    heads = torch.arange(len(rows), device=rows.device)
    return held[0][heads[:, None], rows][None]
