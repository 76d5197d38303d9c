"""Optimizers and schedules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from speculant.core.errors import UsageError
from speculant.training.optimizers import Muon, build_optimizers, orthogonalize
from speculant.training.schedule import rate_factor


def test_orthogonalized_matrices_have_like_singular_values() -> None:
    """Guards Muon's iteration, for tall and wide matrices."""
    torch.manual_seed(0)
    for shape in ((6, 20), (20, 6)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
        assert values.min() > 0.5
        assert values.max() < 1.5


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_every_weight_is_trained_by_one_optimizer(name: str) -> None:
    """Guards weights that no optimizer has, or two; vectors are not decayed, token tables are not Muon's."""
    module = nn.ModuleDict({"embed_tokens": nn.Embedding(7, 4), "fc": nn.Linear(4, 4), "norm": nn.LayerNorm(4)})
    module["norm"].bias.requires_grad_(False)
    optimizers = build_optimizers(module, name, lr=1e-2, weight_decay=0.1)
    trained = [weight for each in optimizers for group in each.param_groups for weight in group["params"]]
    assert {id(weight) for weight in trained} == {id(w) for w in module.parameters() if w.requires_grad}
    assert len(trained) == 4
    for each in optimizers:
        for group in each.param_groups:
            assert group["weight_decay"] == 0 or all(weight.ndim == 2 for weight in group["params"])
            assert not isinstance(each, Muon) or len(group["params"]) == 1


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_quadratic_is_minimised(name: str) -> None:
    """Guards the direction of updates."""
    torch.manual_seed(0)
    module, wanted = nn.Linear(6, 5), torch.randn(5, 6)
    optimizers = build_optimizers(module, name, lr=0.1, weight_decay=0.0)
    losses = []
    for _ in range(80):
        loss = (module.weight - wanted).square().mean()
        losses.append(loss.item())
        loss.backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
    assert losses[-1] < 0.3 * losses[0]


def test_rates_rise_and_fall() -> None:
    """Guards warm-up and decay, and names of schedules."""
    assert rate_factor("linear", step=0, warmup=10, progress=0.0) == pytest.approx(0.1)
    assert rate_factor("linear", step=50, warmup=10, progress=0.25) == pytest.approx(0.75)
    assert rate_factor("cosine", step=50, warmup=10, progress=0.5) == pytest.approx(0.5)
    assert rate_factor("cosine", step=50, warmup=0, progress=1.2) == pytest.approx(0.0)
    assert rate_factor("constant", step=50, warmup=10, progress=0.9) == 1.0
    with pytest.raises(UsageError, match="cosine"):
        rate_factor("step", step=0, warmup=0, progress=0.0)
    with pytest.raises(UsageError, match="muon"):
        build_optimizers(nn.Linear(2, 2), "sgd", lr=1.0, weight_decay=0.0)
