"""Which rows of a cache a sparse cache holds, chosen in a pass of the whole model by what its row attends to.

Each head of keys and values chooses pages for itself, as in Quest (Tang et al. 2024, arXiv 2406.10774) and TriForce
(Sun et al. 2024, arXiv 2404.11912). These estimate a page's weight from the extremes or the mean of its keys, so as not
to read the others. Here the rows stay for many passes, and the pass that chooses them reads every key anyway. So the
weight is exact: the attention that the queries of the group pay to the page's rows. For these queries, what is left out
changes the output of a head by no more than twice its weight times the largest value.

The pass runs on a view of the model as those of batches do (`batch_attention.py`), whose attention also chooses.
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
    "this model attends in a way that shows no queries of cached rows, so no rows can be chosen by them; use a method "
    "such as 'mix'."
)


class RetrievalCache(BatchCache):
    """The cache of one sequence during a pass over one row, and copies of the rows that are chosen meanwhile.

    Attributes:
        chosen: by the index of a layer, the rows that were chosen, and behind them the row of the pass.
        sliding: the layers among these that see a window; they have the rows of the window.
    """

    def __init__(
        self, cache: DynamicCache, mask: Any, own: str, budget: RowBudget, *, seen: Tensor | None, window: int | None
    ) -> None:
        """Prepare for one pass.

        Args:
            cache: of the sequence.
            mask, own: as for `BatchCache`.
            budget: how many rows are chosen.
            seen: Int64[T], the places of rows that are no padding, rising; None for all.
            window: positions that a sliding layer sees; None where there are none.
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
        """Run the model's own attention and choose rows by it; see `BatchCache.attend`.

        Keys may be others than the cached ones, such as those that are computed from a latent row (MLA).

        Raises:
            UnsupportedError: they are not one for each cached row.
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
        """Return how many rows of the text were chosen in layers without a window and in those with one; 0 for none."""
        counts = {index in self.sliding: layer.keys.shape[-2] - 1 for index, layer in self.chosen.items()}
        return counts.get(False, 0), counts.get(True, 0)


def attention_weights(query: Tensor, keys: Tensor, scaling: float | None, softcap: float | None = None) -> Tensor:
    """Return the attention Float32[H, T] that the queries of each group pay to every row, summed over the group.

    Args:
        query: [G * H, D] of one row; G heads in turn share a head of keys.
        keys: [H, T, D].
        scaling: of the products; None for D ** -0.5.
        softcap: bound of the scores; None for none.
    """
    heads, _, width = keys.shape
    scores = (query.reshape(heads, -1, width) @ keys.transpose(1, 2)).float()
    scores = scores * (width**-0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    return scores.softmax(-1).sum(1)


def choose_rows(weights: Tensor, budget: RowBudget) -> Tensor:
    """Return the rows Int64[H, K] that each head keeps of T, rising: all where the budget has room for them.

    Pages are counted from the sinks on; the rows behind the last whole page are kept with the recent ones.

    Args:
        weights: [H, T].
        budget: how many rows.
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
    """Return the rows Int64[H, K] of [1, H, T, D], [1, H, K, D]."""
    heads = torch.arange(len(rows), device=rows.device)
    return held[0][heads[:, None], rows][None]
