"""Training of EAGLE-3 and P-EAGLE: what is unrolled is what is drafted, and it learns."""

from __future__ import annotations

import pytest
import torch

from eagles import IDS, eagle3_head, p_eagle_head
from speculant.drafters.heads.eagle3.head import Eagle3Head
from speculant.drafters.heads.eagle3.recipe import Eagle3Recipe
from speculant.drafters.heads.p_eagle.recipe import PEagleRecipe
from speculant.drafters.heads.training.recipe import TrainBatch
from speculant.engines.hf.views.target_parts import HFTargetParts
from unrolling import drafted_logits, target_rows, training_batch


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"draft_vocabulary": 0, "own_output": False},
        {"norm_output": True, "fc_norm": True, "own_embeddings": True},
        {"layers": 3, "norm_before_residual": True},
        {"layer": {"bias": True, "norms": True}},
    ],
    ids=str,
)
def test_unrolled_rows_are_drafted_rows(target: HFTargetParts, changes: dict[str, object]) -> None:
    """Guards the training-time test: diagonal mask, positions, pairing and recurrence are those of drafting."""
    head = eagle3_head(**changes)
    batch = training_batch(3)
    outputs = list(Eagle3Recipe(head, 5).run(batch, target))
    assert len(outputs) == 5
    for row in range(len(batch.anchors)):
        wanted = drafted_logits(head, target, batch, row, 5)
        found = torch.stack([output.logits[row] for output in outputs])
        assert torch.allclose(found, wanted, atol=1e-5, rtol=1e-4)


def test_p_eagle_is_unrolled_as_it_is_drafted(target: HFTargetParts) -> None:
    """Guards mask rows in training: those below an anchor see its text and one another, and no other anchor's."""
    head, batch = p_eagle_head(), training_batch(3)
    outputs = list(PEagleRecipe(head, 8).run(batch, target))
    assert len(outputs) == head.depth
    for row in range(len(batch.anchors)):
        wanted = drafted_logits(head, target, batch, row, head.depth)
        assert torch.allclose(torch.stack([each.logits[row] for each in outputs]), wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("reduced", [False, True])
def test_targets_are_those_of_the_drafted_token(target: HFTargetParts, *, reduced: bool) -> None:
    """Guards labels: depth d after an anchor i is compared with what follows token i + d, in the head's vocabulary."""
    head = eagle3_head(draft_vocabulary=len(IDS) if reduced else 0)
    batch = training_batch(3)
    for depth, output in enumerate(Eagle3Recipe(head, 4).run(batch, target), start=1):
        for row, (text, place) in enumerate(batch.anchors.tolist()):
            logits = target_rows(target, batch, text, place + depth)
            token = int(batch.ids[text, place + depth + 1])
            if reduced:
                logits = logits[IDS]
                assert int(output.tokens[row]) == (IDS.tolist().index(token) if token in IDS else -1)
            else:
                assert int(output.tokens[row]) == token
            assert torch.allclose(output.target[row], logits, atol=1e-5)
        assert not output.target.requires_grad
        assert output.extra is None


def test_padding_and_other_texts_change_nothing(target: HFTargetParts) -> None:
    """Guards batches: what stands behind a text, and the texts beside it, leave its rows alone."""
    head, batch = eagle3_head(layers=2), training_batch(3)
    changed = TrainBatch(batch.ids.clone(), batch.lengths, batch.hidden.clone(), batch.final.clone(), batch.anchors)
    changed.ids[0, int(batch.lengths[0]) :] = 5
    changed.hidden[0, int(batch.lengths[0]) :] = 7.0
    changed.hidden[2] = 3.0
    mine = batch.anchors[:, 0] < 2
    for before, after in zip(
        Eagle3Recipe(head, 3).run(batch, target), Eagle3Recipe(head, 3).run(changed, target), strict=True
    ):
        assert torch.allclose(before.logits[mine], after.logits[mine], atol=1e-6)


def test_gradients_flow_through_all_depths(target: HFTargetParts) -> None:
    """Guards the training-time test: the loss of the last depth alone reaches every weight, the target's excepted."""
    head, batch = eagle3_head(own_embeddings=True).train(), training_batch(3)
    batch.hidden.requires_grad_(True)
    list(Eagle3Recipe(head, 4).run(batch, target))[-1].logits.logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in head.parameters())
    assert batch.hidden.grad is not None
    for text, place in batch.anchors.tolist():
        assert batch.hidden.grad[text, place].abs().max() > 0


def test_it_learns(target: HFTargetParts) -> None:
    """Guards that training works: on few texts the loss falls far, and what is drafted from the cache is better."""
    head, batch = eagle3_head(draft_vocabulary=0).train(), training_batch(3)
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        loss = torch.stack(
            [
                torch.nn.functional.cross_entropy(output.logits, output.target.softmax(-1))
                - torch.distributions.Categorical(logits=output.target).entropy().mean()
                for output in Eagle3Recipe(head, 3).run(batch, target)
            ]
        ).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]
    assert _agreement(head.eval(), target, batch) > 0.6


def _agreement(head: Eagle3Head, target: HFTargetParts, batch: TrainBatch) -> float:
    """Return how often the drafted token is the target's, over three depths of cached drafting."""
    agreed = []
    for row, (text, place) in enumerate(batch.anchors.tolist()):
        logits = drafted_logits(head, target, batch, row, 3)
        wanted = [int(target_rows(target, batch, text, place + depth).argmax()) for depth in (1, 2, 3)]
        agreed += [int(each.argmax()) == token for each, token in zip(logits, wanted, strict=True)]
    return sum(agreed) / len(agreed)
