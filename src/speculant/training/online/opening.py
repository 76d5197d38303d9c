"""Wraps a speculator's drafter in one that learns online."""

from __future__ import annotations

from typing import Any

from torch import nn

from speculant.core.drafter import Drafter
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.drafter import LoadedHead
from speculant.training.kinds import find_kind
from speculant.training.online.draft_model import DraftModelLearner
from speculant.training.online.drafter import OnlineDrafter
from speculant.training.online.head import HeadLearner
from speculant.training.online.learner import Learner
from speculant.training.online.settings import settings_of


def open_learning(
    drafter: Drafter,
    online: Any,
    *,
    tokenizer: str,
    model: Any = None,
    keeps_logits: bool = False,
    head: LoadedHead | None = None,
) -> OnlineDrafter:
    """Return a drafter that wraps another and distils its model or head.

    Args:
        drafter: the drafter to wrap.
        online: True, `OnlineSettings` or a dict of some of them.
        tokenizer: fingerprint of the tokenizer for saved memories.
        model: model of the drafter, if it has one.
        keeps_logits: whether the model accepts `logits_to_keep`.
        head: head of the drafter, if it has one.

    Raises:
        UsageError: there is no such setting.
        UnsupportedError: it cannot be trained.
    """
    settings = settings_of(online)
    learner = _head_learner(head) if head is not None else _model_learner(model, keeps_logits=keeps_logits)
    return OnlineDrafter(drafter, learner, settings=settings, tokenizer=tokenizer)


def _model_learner(model: Any, *, keeps_logits: bool) -> Learner:
    if not all(parameter.is_floating_point() for parameter in model.parameters()):
        raise UnsupportedError("the draft model is quantised, so it cannot be trained; use an unquantised one.")
    return DraftModelLearner(model, keeps_logits=keeps_logits)


def _head_learner(loaded: LoadedHead) -> Learner:
    if not isinstance(loaded.head, nn.Module):
        raise UnsupportedError("this head has no weights that could be trained.")
    kind = find_kind(loaded.kind)
    depth = kind.measured if loaded.head.depth is None else min(kind.measured, loaded.head.depth)
    return HeadLearner(
        loaded.head,
        lambda head: kind.new_recipe(head, depth),
        loaded.target,
        feature_weight=kind.feature_weight,
    )
