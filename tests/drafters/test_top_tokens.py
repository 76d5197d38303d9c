"""The best tokens by groups: those that torch finds, at every edge of a vocabulary."""

from __future__ import annotations

import pytest
import torch

from speculant.drafters.top_tokens import FEW_TOKENS, GROUPS, best_token, best_tokens, top_on_host


@pytest.mark.parametrize("vocabulary", [8, FEW_TOKENS, 9 * GROUPS, 9 * GROUPS + 1, 10 * GROUPS - 1])
@pytest.mark.parametrize("k", [0, 1, 2, 8])
def test_the_best_are_those_of_topk(vocabulary: int, k: int) -> None:
    """Guards groups and the rest behind them: the same logits in the same order, and ids that have them."""
    logits = torch.randn(9, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    logits[1].copy_(logits[1].sort().values)  # all the best in the last turn of groups, and in the rest
    logits[2].copy_(logits[2].sort(descending=True).values)
    values, ids = best_tokens(logits, k)
    assert torch.equal(values, logits.topk(k, dim=-1).values)
    assert torch.equal(logits.gather(1, ids), values)
    assert all(len(set(row)) == k for row in ids.tolist())


@pytest.mark.parametrize("vocabulary", [4, 8, 1000, FEW_TOKENS, 5 * GROUPS + 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_best_on_the_host_are_those_of_topk(vocabulary: int, dtype: torch.dtype) -> None:
    """Guards what drafters learn: the compiled loop finds what torch finds, in every order of the logits."""
    logits = torch.randn(9, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    logits[1].copy_(logits[1].sort().values)
    logits[2].copy_(logits[2].sort(descending=True).values)
    logits[3] = -torch.inf
    ids, values = top_on_host(logits.to(dtype), 8)
    wanted = logits.to(dtype).topk(min(8, vocabulary), dim=-1).values.float()
    assert torch.equal(torch.from_numpy(values), wanted)
    assert torch.equal(logits.to(dtype).float().gather(1, torch.from_numpy(ids).long()), wanted)
    assert all(len(set(row)) == len(row) for row in ids.tolist())


@pytest.mark.parametrize("vocabulary", [8, 33 * 128, 33 * 128 + 1])
def test_the_best_is_that_of_argmax(vocabulary: int) -> None:
    """Guards greedy text where logits tie, and where they are not numbers."""
    logits = torch.randn(60, vocabulary, generator=torch.Generator().manual_seed(vocabulary)).mul(2).round()
    logits[1] = -torch.inf
    logits[2, -1] = torch.inf
    logits[3, vocabulary // 2] = torch.nan
    logits[4] = torch.nan
    assert torch.equal(best_token(logits), logits.argmax(-1))
    narrow = logits.bfloat16()
    assert torch.equal(best_token(narrow), narrow.argmax(-1))


@pytest.mark.parametrize("vocabulary", [8, 10 * GROUPS + 3])
def test_the_first_of_equal_tokens_is_the_best_one(vocabulary: int) -> None:
    """Guards greedy drafts, which are accepted if they take the token that a greedy target takes."""
    logits = torch.randn(60, vocabulary, generator=torch.Generator().manual_seed(vocabulary)).mul(2).round()
    assert torch.equal(best_tokens(logits, 1)[1][:, 0], logits.argmax(-1))
    assert best_tokens(logits[:0], 3)[1].shape == (0, 3)
