"""Training of MTP heads: what is unrolled is what is drafted, and it learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import kl_div

from eagles import target_model
from models import hybrid_model
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.mtp.head import MtpHead
from speculant.drafters.heads.mtp.recipe import MtpRecipe, new_mtp
from speculant.engines.hf.views.target_parts import HFTargetParts
from unrolling import drafted_logits, target_rows, training_batch


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def target(request: Any) -> HFTargetParts:
    """Return the parts of a target, also of one with other norms and gated attention."""
    return HFTargetParts(hybrid_model() if request.param == "qwen3_5" else target_model(num_hidden_layers=2))


def built(target: HFTargetParts) -> MtpHead:
    """Return a new head of the target, the same in every call."""
    torch.manual_seed(3)
    return new_mtp(target)


def test_unrolled_rows_are_drafted_rows(target: HFTargetParts) -> None:
    """Guards depths: each reads the state before it, and sees true rows to the anchor and its own after it."""
    head, batch = built(target), training_batch(1, target)
    outputs = list(MtpRecipe(head, 3).run(batch, target))
    for row, (text, place) in enumerate(batch.anchors.tolist()):
        wanted = drafted_logits(head, target, batch, row, 3)
        assert torch.allclose(torch.stack([each.logits[row] for each in outputs]), wanted, atol=1e-4, rtol=1e-4)
        for depth, output in enumerate(outputs, start=1):
            assert int(output.tokens[row]) == int(batch.ids[text, place + depth + 1])
            assert torch.allclose(output.target[row], target_rows(target, batch, text, place + depth), atol=1e-5)


def test_new_heads_pass_the_state_on(target: HFTargetParts) -> None:
    """Guards the first weights: what the layer reads is the state, scaled to a mean square of 1, but for noise."""
    module = built(target).module(0)
    torch.nn.init.zeros_(module.eh_proj.weight[:, : target.hidden_size].data)
    hidden = torch.randn(5, target.hidden_size)
    with torch.no_grad():
        module.eh_proj.weight[:, target.hidden_size :] = torch.eye(target.hidden_size)
        fused = module.fuse(torch.randn(5, target.hidden_size), hidden)
    assert torch.allclose(fused, hidden / hidden.square().mean(-1, keepdim=True).sqrt(), atol=1e-4)


def test_heads_of_several_modules_are_refused() -> None:
    """Guards weights that models ship with: a recipe for one module would spoil those of three."""
    target = HFTargetParts(target_model(num_hidden_layers=2))
    with pytest.raises(UnsupportedError, match="of one module with one layer"):
        MtpRecipe(MtpHead([built(target).module(0) for _ in range(3)]))


def test_it_learns(target: HFTargetParts) -> None:
    """Guards that training works: on few texts the loss falls, and the target's weights stay as they are."""
    head, batch = built(target).train(), training_batch(1, target)
    held = target.projection().clone()
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-3)
    totals = []
    for _ in range(60):
        loss = torch.zeros(())
        for output in MtpRecipe(head, 2).run(batch, target):
            assert output.extra is not None
            distributions = output.logits.log_softmax(-1), output.target.log_softmax(-1)
            loss = loss + kl_div(*distributions, reduction="batchmean", log_target=True) + output.extra
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        totals.append(float(loss.detach()))
    assert totals[-1] < 0.6 * totals[0]
    assert torch.equal(target.projection(), held)
