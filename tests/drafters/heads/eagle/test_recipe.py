"""Training of EAGLE-1 and HASS: what is unrolled is what is drafted, and it learns."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import smooth_l1_loss

from eagles import eagle_formula, eagle_head
from speculant.drafters.heads.eagle.recipe import EagleRecipe
from speculant.engines.hf.views.target_parts import HFTargetParts
from unrolling import drafted_logits, target_rows, training_batch


@pytest.mark.parametrize("bias", [False, True])
def test_unrolled_rows_are_drafted_rows(target: HFTargetParts, *, bias: bool) -> None:
    """Guards HASS: deeper rows read predicted states, and see true rows to the anchor and predicted ones after it."""
    head, batch = eagle_head(fc_bias=bias), training_batch(1, target)
    outputs = list(EagleRecipe(head, 4).run(batch, target))
    for row, (text, place) in enumerate(batch.anchors.tolist()):
        wanted = drafted_logits(head, target, batch, row, 4)
        assert torch.allclose(torch.stack([each.logits[row] for each in outputs]), wanted, atol=1e-5, rtol=1e-4)
        for depth, output in enumerate(outputs, start=1):
            assert int(output.tokens[row]) == int(batch.ids[text, place + depth + 1])
            assert torch.allclose(output.target[row], target_rows(target, batch, text, place + depth), atol=1e-5)


def test_its_own_loss_is_the_distance_of_states(target: HFTargetParts) -> None:
    """Guards the feature loss: smooth L1 between the predicted state and the target's at the next token."""
    head, batch = eagle_head(), training_batch(1, target)
    (output,) = EagleRecipe(head).run(batch, target)
    distances = []
    with torch.no_grad():
        for text, place in batch.anchors.tolist():
            rows = slice(0, place + 1)
            following = batch.ids[text, 1 : place + 2]
            predicted = eagle_formula(head.state_dict(), target, batch.final[text, rows], following)[-1]
            distances.append(smooth_l1_loss(predicted, batch.final[text, place + 1]))
    assert output.extra is not None
    assert float(output.extra.detach()) == pytest.approx(float(torch.stack(distances).mean()), rel=1e-4)


@pytest.mark.parametrize("detach", [True, False])
def test_depths_are_detached_if_wanted(target: HFTargetParts, *, detach: bool) -> None:
    """Guards HASS's gradients: those of the second depth treat the predicted state as given, or do not."""
    head, batch = eagle_head().train(), training_batch(1, target)
    weights = dict(head.named_parameters())
    last = list(EagleRecipe(head, 2, detach=detach).run(batch, target))[-1]
    wanted = torch.zeros(())
    for text, place in batch.anchors.tolist():
        states, tokens = batch.final[text, : place + 1], batch.ids[text, 1 : place + 3]
        predicted = eagle_formula(weights, target, states, tokens[:-1])[-1:]
        features = torch.cat([states, predicted.detach() if detach else predicted])
        wanted = wanted + target.project(eagle_formula(weights, target, features, tokens)[-1]).logsumexp(-1)
    for found, true in zip(
        torch.autograd.grad(last.logits.logsumexp(-1).sum(), list(weights.values())),
        torch.autograd.grad(wanted, list(weights.values())),
        strict=True,
    ):
        assert torch.allclose(found, true, atol=1e-4, rtol=1e-3)


def test_noise_is_added_where_it_is_trained(target: HFTargetParts) -> None:
    """Guards noise: it changes training, within its size, and never what is measured."""
    head, batch = eagle_head(), training_batch(1, target)
    recipe = EagleRecipe(head, noise=0.1)
    (plain,) = EagleRecipe(head).run(batch, target)
    torch.manual_seed(1)
    (noisy,) = recipe.run(batch, target)
    assert (noisy.logits - plain.logits).abs().max() > 1e-3
    with torch.no_grad():
        (measured,) = recipe.run(batch, target)
    assert torch.equal(measured.logits, plain.logits)


def test_it_learns(target: HFTargetParts) -> None:
    """Guards that training works: on few texts the loss and the distance of states fall."""
    head, batch = eagle_head().train(), training_batch(1, target)
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-3)
    totals = []
    for _ in range(60):
        loss = torch.zeros(())
        for output in EagleRecipe(head, 2).run(batch, target):
            assert output.extra is not None
            loss = (
                loss + output.extra + 0.1 * torch.nn.functional.cross_entropy(output.logits, output.target.softmax(-1))
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        totals.append(float(loss.detach()))
    assert totals[-1] < 0.6 * totals[0]
