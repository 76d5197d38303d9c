"""The memory that recorded passes work on: masks made from tensors, and rows moved where they lie."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from models import tiny_model
from passes import rows_of
from speculant.engines.hf.cache import usable_cache
from speculant.engines.hf.cuda.static_cache import StaticBuffers, draft_input, masks
from speculant.engines.hf.draft_rows import DraftRows
from speculant.engines.hf.probe.class_checks import check_model
from tree_forms import attention_mask
from trees import random_draft


@pytest.mark.parametrize("window", [None, 4])
def test_masks_are_those_of_the_draft(window: int | None) -> None:
    """Guards the mask made from tensors against the one that plain passes are given."""
    capabilities = check_model(tiny_model("llama" if window is None else "mistral"))
    random, length = np.random.default_rng(1), 32
    for start, nodes in itertools.product((1, 5, 12), (0, 1, 4, 8)):
        tree = random_draft(random, nodes, 9)
        seen = np.ones(length, bool)
        seen[:1] = start == 1
        tokens, parents = rows_of(3, tree)
        inputs = torch.from_numpy(draft_input(tokens, DraftRows().grown(parents), 9, start, 0))
        if window is not None:
            capabilities = replace(capabilities, window=window)
        found = masks(inputs, torch.from_numpy(seen), torch.arange(length), capabilities, torch.float32)
        expected = attention_mask(tree, seen[:start], window=window)
        rows, columns = expected.shape[2:]
        assert torch.equal(found[0, 0, :rows, :columns] == 0, torch.from_numpy(expected[0, 0]))
        assert not (found[0, 0, :rows, columns:] == 0).any()
        assert (found[0, 0] == 0).any(dim=1).all()


@pytest.mark.parametrize(("rows", "expected"), [([], []), ([0, 1], [4, 5]), ([1, 3], [5, 7]), ([2], [6])])
def test_rows_of_a_path_are_kept(rows: list[int], expected: list[int]) -> None:
    """Guards the move inside the shared tensors, for layers of different shapes."""
    cache = usable_cache(None)
    for layer, width in enumerate((3, 5, 3)):
        states = torch.arange(9).float()[None, None, :, None].expand(1, 2, 9, width)
        cache.update(states + layer, -states - layer, layer)
    buffers = StaticBuffers(cache, 16)
    buffers.move_in(cache)
    buffers.keep(cache, 4, rows)
    for number, layer in enumerate(cache.layers):
        assert (layer.keys[0, 1, :, 2] - number).tolist() == [0, 1, 2, 3, *expected]
        assert torch.equal(layer.keys, -layer.values)


def test_layers_without_rows_of_their_own_are_refused() -> None:
    """Guards layers that look into another's cache."""
    cache = usable_cache(None)
    cache.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4), 1)
    with pytest.raises(ValueError, match="of their own"):
        StaticBuffers(cache, 16)
