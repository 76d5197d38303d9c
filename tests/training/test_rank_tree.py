"""The tree of a trained head follows what its heads get right."""

from __future__ import annotations

import pytest
import torch

from feed_forward_heads import HIDDEN, new_medusa, tiny_target
from models import VOCABULARY
from speculant.drafters.heads.medusa.recipe import MedusaRecipe
from speculant.drafters.heads.training.recipe import TrainBatch
from speculant.training.rank_tree import find_tree, measure_ranks
from trees import expected_length


def test_ranks_are_counted_over_all_batches() -> None:
    """Guards the mean over batches of different sizes, against counting by hand, and the tree built from it."""
    target, head, source = tiny_target(), new_medusa(), torch.Generator().manual_seed(1)
    batches, hits, count = [], torch.zeros(3, 5), 0
    for size in (3, 7):
        hidden = torch.randn(2, 14, 1, HIDDEN, generator=source)
        with torch.no_grad():
            final = target.norm(hidden[:, :, 0])
        ids = torch.randint(0, VOCABULARY, (2, 14), generator=source)
        anchors = torch.tensor([[place % 2, place] for place in range(size)])
        batches.append(TrainBatch(ids, torch.tensor([14, 14]), hidden, final, anchors))
        for text, row in anchors.tolist():
            for depth in range(3):
                ranked = head.project(final[text, row], depth, target).argsort(descending=True).tolist()
                rank = ranked.index(int(ids[text, row + depth + 2]))
                if rank < 5:
                    hits[depth, rank] += 1
            count += 1
    found = measure_ranks(MedusaRecipe(head, 3), batches, target, ranks=5)
    torch.testing.assert_close(torch.tensor(found), hits / count)
    ranked = measure_ranks(MedusaRecipe(head, 3), batches, target)
    paths = find_tree(MedusaRecipe(head, 3), batches, target, nodes=4)
    first = sorted((value for value in ranked[0]), reverse=True)
    assert expected_length(ranked, paths) >= 1 + sum(first[:4]) - 1e-9
    assert sum(hits[0]) > 0


def test_no_batches() -> None:
    """Guards division by nothing."""
    ranks = measure_ranks(MedusaRecipe(new_medusa(), 2), [], tiny_target())
    assert ranks == [[0.0] * 10] * 2
    with pytest.raises(IndexError):
        find_tree(MedusaRecipe(new_medusa(), 2), [], tiny_target())[0]
