"""Updates: what they learn from, when they are used, and when they are dropped."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models import perturbed, tiny_model
from speculant.training.online.buffer import WindowBuffer
from speculant.training.online.draft_model import DraftModelLearner
from speculant.training.online.settings import OnlineSettings
from speculant.training.online.updates import Updater
from speculant.training.online.window import TextWindow

SETTINGS = OnlineSettings(lr=3e-4, steps=6, when="manual")


def written(target: Any, seed: int, *, tokens: int = 40, shuffled: bool = False) -> TextWindow:
    """Return a random text with the target's best tokens, every third of them drafted wrongly."""
    ids = torch.randint(3, 61, (1, tokens), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        logits, best = target(input_ids=ids).logits[0].topk(8)
    top_ids = best.numpy().astype(np.int32)
    return TextWindow(
        tokens=ids[0].numpy().astype(np.int32),
        known=np.ones(tokens, np.bool_),
        wrong=(np.arange(tokens) % 3 == 0).astype(np.int32),
        greedy=False,
        top_ids=(top_ids + 7) % 61 if shuffled else top_ids,
        top_logits=(logits - logits[:, :1]).numpy().astype(np.float16),
    )


def updater_of(learner: Any, *, poisoned: bool = False, settings: OnlineSettings = SETTINGS) -> Updater:
    """Return an updater with ten windows; those that are trained on may teach other tokens than those held out."""
    target, buffer = tiny_model("llama"), WindowBuffer(1 << 20)
    for number in range(10):
        buffer.add(written(target, number, shuffled=poisoned and number % 5 != 1))
    return Updater(learner, buffer, settings, threading.RLock())


def weights(model: nn.Module) -> list[Tensor]:
    """Return copies of a model's weights."""
    return [weight.detach().clone() for weight in model.parameters()]


def draft_learner() -> DraftModelLearner:
    """Return what learns on a draft model near the target."""
    return DraftModelLearner(perturbed(tiny_model("llama"), 0.3), keeps_logits=True)


def test_loss_by_hand() -> None:
    """Guards alignment: the loss reads q after the very token after which the draft was wrong, and nowhere else."""
    learner, window = draft_learner(), written(tiny_model("llama"), 3)
    with torch.no_grad():
        q = learner.live(input_ids=torch.from_numpy(window.tokens).long()[None]).logits[0].log_softmax(-1)
    assert window.top_ids is not None
    assert window.top_logits is not None
    expected = []
    for place in range(0, len(window.tokens), 3):
        p = torch.from_numpy(window.top_logits[place].astype(np.float32)).softmax(-1)
        expected.append((p * (p.log() - q[place, torch.from_numpy(window.top_ids[place]).long()])).sum())
    found = learner.loss(window)
    assert found is not None
    assert torch.allclose(found, torch.stack(expected).mean(), atol=1e-5)


def test_loss_without_logits_to_keep() -> None:
    """Guards models that always return all logits."""
    model, window = perturbed(tiny_model("llama"), 0.3), written(tiny_model("llama"), 3)
    found = [DraftModelLearner(model, keeps_logits=keeps).loss(window) for keeps in (True, False)]
    assert found[0] is not None
    assert found[1] is not None
    assert torch.allclose(found[0], found[1], atol=1e-6)


def test_an_update_raises_acceptance() -> None:
    """Guards that it learns: on windows it never trained on, and the weights that draft are the trained ones."""
    learner = draft_learner()
    before = weights(learner.live)
    updater = updater_of(learner)
    updates = [updater.update(lambda: True) for _ in range(3)]
    done = [each for each in updates if each is not None]
    assert done[0].used
    assert done[-1].after > done[0].before
    assert not all(torch.equal(one, other) for one, other in zip(before, learner.live.parameters(), strict=True))
    same = zip(learner.live.parameters(), learner.copy.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in same)


def test_a_harmful_update_is_dropped() -> None:
    """Guards against poison: what lowers acceptance on held-out text never drafts, and is not built upon either."""
    learner = draft_learner()
    before = weights(learner.live)
    done = updater_of(learner, poisoned=True).update(lambda: True)
    assert done is not None
    assert done.after < done.before
    assert not done.used
    for old, live, copy in zip(before, learner.live.parameters(), learner.copy.parameters(), strict=True):
        assert torch.equal(old, live)
        assert torch.equal(old, copy)


class OverflowingLearner(DraftModelLearner):
    """Its loss is finite and its gradients are not; nothing is accepted, before and after."""

    def loss(self, window: TextWindow) -> Tensor:
        return sum((weight.sum() * 0).sqrt() for weight in self.copy.parameters()) + torch.zeros(())

    def acceptance(self, window: TextWindow) -> tuple[float, int]:
        return 0.0, 1


def test_weights_that_are_no_numbers_never_draft() -> None:
    """Guards drafts for good: no later update could mend them, and the acceptance does not always show them."""
    learner = OverflowingLearner(perturbed(tiny_model("llama"), 0.3), keeps_logits=True)
    done = updater_of(learner, settings=replace(SETTINGS, steps=1)).update(
        lambda: True
    )  # others would have a loss of NaN
    assert done is not None
    assert np.isfinite(done.loss)
    assert not done.used
    assert all(bool(weight.isfinite().all()) for weight in learner.copy.parameters())


def test_an_update_that_is_stopped_leaves_the_weights() -> None:
    """Guards close() in the middle of an update."""
    learner = draft_learner()
    before = weights(learner.live)
    for stop in (0, 2, 4, 9):  # before and after the first windows are judged, among steps, at the end
        calls = iter([True] * stop + [False] * 20)
        assert updater_of(learner).update(lambda calls=calls: next(calls)) is None  # type: ignore[misc]
    for old, live, copy in zip(before, learner.live.parameters(), learner.copy.parameters(), strict=True):
        assert torch.equal(old, live)
        assert torch.equal(old, copy)


def test_nothing_to_learn_from() -> None:
    """Guards the beginning: without windows held out, or without wrong drafts, there is no update."""
    learner = draft_learner()
    assert Updater(learner, WindowBuffer(1 << 20), SETTINGS, threading.RLock()).update(lambda: True) is None


def test_a_token_that_the_draft_model_lacks() -> None:
    """Guards padded vocabularies: such positions are no lesson, and count as rejected."""
    target, learner = tiny_model("llama"), draft_learner()
    window = written(target, 1)
    assert window.top_ids is not None
    window.top_ids[:, 0] = 61
    window.tokens[5] = 61
    assert learner.loss(window) is None
    assert learner.acceptance(window) == (0.0, 40)
