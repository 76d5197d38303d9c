"""Online distillation of a speculator's drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from speculant.api.draft_caches import DraftCaches
from speculant.core.drafter import Drafter
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.drafter import LoadedHead
from speculant.registry import Method
from speculant.registry.methods import learns_online
from speculant.training.online.opening import open_learning


def open_online(
    drafter: Drafter,
    online: Any,
    *,
    target: Any,
    method: Method,
    drafts: Sequence[DraftCaches],
    head: LoadedHead | None,
    tokenizer: str,
) -> Drafter:
    """Return a drafter that wraps this one and distils it to its target.

    Args:
        drafter: the method's drafter.
        online: True, settings or a dict of them.
        target: the model, which must not be trained.
        method: method of the drafter.
        drafts: its draft models.
        head: its head, or None.
        tokenizer: fingerprint of the target's tokenizer.

    Raises:
        UsageError: there is no such setting.
        UnsupportedError: there is nothing to train, or it cannot be trained.
    """
    if not learns_online(method):
        raise UnsupportedError(
            f"the method '{method.name}' cannot learn online; use 'draft-model', another method that drafts with one "
            "model in the target's tokens and keeps no memory of its own, or a head."
        )
    learning: Any = head.head if head is not None else drafts[0].engine.model if drafts else None
    shared = {weight.data_ptr() for weight in (target.parameters() if isinstance(target, nn.Module) else ())}
    if isinstance(learning, nn.Module) and any(weight.data_ptr() in shared for weight in learning.parameters()):
        raise UnsupportedError(
            "the drafter shares weights with the target, which would change with it; load it a second time, or leave "
            "out online=."
        )
    if head is not None and head.target.source_size:
        raise UnsupportedError(
            "a head of an encoder-decoder cannot learn online: the texts that are kept for it do not include what the "
            "encoder read. Leave out online=."
        )
    if head is not None:
        return open_learning(drafter, online, head=head, tokenizer=tokenizer)
    if len(drafts) != 1:
        raise UnsupportedError(
            f"online distillation needs one draft model or a head, and the method '{method.name}' has "
            f"{len(drafts) or 'neither'}; use 'draft-model' or name a head."
        )
    [draft] = drafts
    if draft.pair.relation == "different":
        raise UnsupportedError(
            "online distillation compares the two models' probabilities of every token, so they need one vocabulary. "
            "Use a smaller model of the target's family."
        )
    if draft.encoder is not None:
        raise UnsupportedError("a draft model that is an encoder-decoder cannot learn online; leave out online=.")
    engine = draft.engine
    return open_learning(
        drafter, online, model=engine.model, keeps_logits=engine.capabilities.keeps_logits, tokenizer=tokenizer
    )
