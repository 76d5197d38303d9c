"""Alignment of draft models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models import perturbed, tiny_model
from speculant.core.errors import UsageError
from speculant.training.distill import DistillSettings, acceptance, boost, distil, written
from speculant.training.texts import Texts, from_parts

SETTINGS = DistillSettings(steps=12, texts=4, opening=6, new_tokens=10, lr=1e-3, warmup=2)


def texts_of(target: Any, count: int = 8) -> Texts:
    """Return texts of 30 tokens that a target wrote greedily after 6."""
    prompts = torch.randint(3, 61, (count, 6), generator=torch.Generator().manual_seed(1))
    ids = target.generate(prompts, max_new_tokens=24, min_new_tokens=24, do_sample=False)
    return from_parts([row.numpy().astype(np.int32) for row in ids], [6] * count)


@pytest.mark.parametrize(("loss", "on_policy"), [("ce", 0.0), ("kl", 1.0), ("tvd", 0.5), ("rkl", 1.0), ("jsd", 0.0)])
def test_acceptance_rises(loss: str, on_policy: float) -> None:
    """Guards every way: the student gets nearer to the target, which stays as it is."""
    target, student = tiny_model("llama"), perturbed(tiny_model("llama"), 0.4)
    kept, texts = [weight.clone() for weight in target.parameters()], texts_of(target)
    first = acceptance([student], target, texts)
    distil(
        student,
        target,
        texts,
        DistillSettings(steps=12, texts=4, opening=6, new_tokens=10, lr=1e-3, loss=loss, on_policy=on_policy, warmup=2),
    )
    measure = "agreement" if loss == "ce" else "overlap"  # greedy texts make a distribution sharper than the target's
    assert acceptance([student], target, texts)[measure] > first[measure]
    assert all(torch.equal(old, new) and new.grad is None for old, new in zip(kept, target.parameters(), strict=True))


def test_boosting_leaves_out_what_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards Col-BT: the second student sees only positions that the first has wrong; a perfect first leaves none."""
    target, seen = tiny_model("llama"), list[int]()
    texts = texts_of(target)
    second = perturbed(tiny_model("llama"), 0.4)
    boosted = DistillSettings(steps=4, texts=4, opening=6, lr=1e-12, warmup=1)
    boost([tiny_model("llama"), second], target, texts, boosted, report=lambda step, _: seen.append(step))
    assert len(seen) == 4
    weak = perturbed(tiny_model("llama"), 0.4)
    distil(second, target, texts, boosted, before=[weak], report=lambda step, _: seen.append(step))
    assert len(seen) == 8


def test_union_of_students() -> None:
    """Guards the measure: a union holds what either has right; a perfect student alone is always right."""
    target, weak = tiny_model("llama"), perturbed(tiny_model("llama"), 0.4)
    texts = texts_of(target)
    found = acceptance([weak, tiny_model("llama")], target, texts)
    assert found["agreement"] < found["union"] == 1.0
    same = acceptance([target], target, texts)
    assert same["agreement"] == 1.0
    assert same["overlap"] == pytest.approx(1.0, abs=1e-5)


def test_what_the_student_writes() -> None:
    """Guards on-policy data: it counts from the last token of the opening, and nothing behind the end of a text."""
    student = tiny_model("llama")
    rows = written(student, torch.randint(3, 61, (3, 6)), SETTINGS, torch.Generator().manual_seed(0))
    assert rows.ids.shape == (3, 16)
    for ids, counted in zip(rows.ids.tolist(), rows.counted.tolist(), strict=True):
        end = ids.index(2) if 2 in ids else 15
        assert counted == [5 <= place < end for place in range(15)]


def test_bad_settings() -> None:
    """Guards input: what cannot be is refused with the cause."""
    for wrong in ({"steps": 0}, {"on_policy": 2.0}, {"loss": "mse"}, {"temperature": 0.0}):
        with pytest.raises(UsageError):
            DistillSettings(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no text is longer"):
        distil(tiny_model("llama"), tiny_model("llama"), texts_of(tiny_model("llama"), 1), DistillSettings(opening=90))
