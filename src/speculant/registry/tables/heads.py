"""Methods that draft with a trained head of the target, derived from the table of kinds of heads."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadMethod
from speculant.drafters.heads.kinds import HEAD_KINDS
from speculant.registry.builders import build_head
from speculant.registry.method import Method


def _row(method: HeadMethod) -> Method:
    kinds = [kind for kind in HEAD_KINDS if method in kind.methods]
    return Method(
        name=method.name,
        family=method.family,
        summary=method.summary,
        drafter=method.drafter,
        builder=build_head,
        settings=method.settings,
        source=method.source,
        samples="either",
        heads=tuple(kind.name for kind in kinds),
        trainable=any(kind.training or kind.model for kind in kinds),
        requires=method.requires,
    )


HEADS = tuple(map(_row, dict.fromkeys(method for kind in HEAD_KINDS for method in kind.methods)))
