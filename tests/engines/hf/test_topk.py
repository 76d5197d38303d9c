"""The best tokens by blocks: those that torch finds, at every edge of a vocabulary."""

from __future__ import annotations

import pytest
import torch

from speculant.engines.hf.topk import BLOCK, best_token, best_tokens


@pytest.mark.parametrize("vocabulary", [8, 33 * BLOCK, 33 * BLOCK + 1, 35 * BLOCK - 1, 40 * BLOCK + 7])
@pytest.mark.parametrize("k", [1, 2, 8])
def test_the_best_are_those_of_topk(vocabulary: int, k: int) -> None:
    """Guards blocks and the rest behind them: the same logits in the same order, and ids that have them."""
    logits = torch.randn(9, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    logits[1].copy_(logits[1].sort().values)  # all the best in the last block and the rest
    logits[2].copy_(logits[2].sort(descending=True).values)
    values, ids = best_tokens(logits, k)
    assert torch.equal(values, logits.topk(k, dim=-1).values)
    assert torch.equal(logits.gather(1, ids), values)
    assert all(len(set(row)) == k for row in ids.tolist())


@pytest.mark.parametrize("vocabulary", [8, 33 * BLOCK, 33 * BLOCK + 1, 37 * BLOCK - 1])
def test_the_best_is_that_of_argmax(vocabulary: int) -> None:
    """Guards greedy text where logits tie, within a block and between blocks, and where they are not numbers."""
    logits = torch.randn(60, vocabulary, generator=torch.Generator().manual_seed(vocabulary)).mul(2).round()
    logits[1] = -torch.inf
    logits[2, -1] = torch.inf
    logits[3, vocabulary // 2] = torch.nan
    logits[4] = torch.nan
    assert torch.equal(best_token(logits), logits.argmax(-1))
    narrow = logits.bfloat16()
    assert torch.equal(best_token(narrow), narrow.argmax(-1))
