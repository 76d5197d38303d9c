"""Which rows are chosen, against the same in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from speculant.core.sparse_cache import RowBudget
from speculant.engines.hf.caches.in_place_layer import InPlaceLayer
from speculant.engines.hf.caches.row_retrieval import attention_weights, choose_rows, copy_rows


def reference(weights: np.ndarray, budget: RowBudget) -> list[int]:
    """Return the rows that one head keeps."""
    length = len(weights)
    pages = max(0, length - budget.sinks - budget.recent) // budget.page
    starts = [budget.sinks + page * budget.page for page in range(pages)]
    heaviest = sorted(starts, key=lambda start: -weights[start : start + budget.page].sum())
    kept = set(range(min(length, budget.sinks))) | set(range(budget.sinks + pages * budget.page, length))
    for start in heaviest[: budget.retrieved // budget.page]:
        kept |= set(range(start, start + budget.page))
    return sorted(kept)


@pytest.mark.parametrize("length", [1, 5, 12, 13, 40, 101])
@pytest.mark.parametrize("sizes", [(4, 8, 16, 4), (0, 1, 7, 3), (2, 6, 0, 4), (3, 5, 2, 4), (4, 8, 400, 4)])
def test_rows_are_those_of_the_heaviest_pages(length: int, sizes: tuple[int, ...]) -> None:
    """Guards the choice: sinks, recent rows with what follows the last whole page, and each head's own pages."""
    budget = RowBudget(**dict(zip(("sinks", "recent", "retrieved", "page"), sizes, strict=True)))
    weights = np.random.default_rng(length).random((3, length), np.float32)
    rows = choose_rows(torch.from_numpy(weights), budget).tolist()
    assert rows == [reference(each, budget) for each in weights]


@pytest.mark.parametrize(("scaling", "softcap"), [(None, None), (0.3, None), (0.5, 2.0)])
def test_weights_are_the_attention_of_the_group(scaling: float | None, softcap: float | None) -> None:
    """Guards the weight of a row: softmax of each query head's scores, summed over the heads that share keys."""
    random = np.random.default_rng(3)
    query, keys = random.normal(size=(6, 8)), random.normal(size=(2, 11, 8))
    expected = np.zeros((2, 11))
    for head, vector in enumerate(query):
        scores = keys[head // 3] @ vector * (8**-0.5 if scaling is None else scaling)
        scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
        expected[head // 3] += np.exp(scores) / np.exp(scores).sum()
    found = attention_weights(*(torch.from_numpy(each).float() for each in (query, keys)), scaling, softcap)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)


def test_copies_are_of_each_heads_rows() -> None:
    """Guards the gathered rows: each head's own, in order, and apart from the layer they were copied from."""
    layer = InPlaceLayer()
    layer.update(torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 6))
    copy = copy_rows(layer, torch.tensor([[0, 3, 8], [1, 2, 8]]))
    for held, copied in ((layer.keys, copy.keys), (layer.values, copy.values)):
        assert torch.equal(copied[0, 0], held[0, 0, [0, 3, 8]])
        assert torch.equal(copied[0, 1], held[0, 1, [1, 2, 8]])
        copied.zero_()
        assert held.any()
