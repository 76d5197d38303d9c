"""Memory files for tests: every method without a model that has one, after learning a text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from rounds import budget, start
from speculant.core.drafter import EMPTY_PATH, Drafter, Verified
from speculant.core.tree import DraftTree
from speculant.memory.file import Memory, read_any_memory
from speculant.registry import METHODS, BuildContext, build_drafter
from tables import ids

VOCABULARY = 60
KEPT = tuple(
    name
    for name, each in METHODS.items()
    if each.memory is not None and not (each.takes_draft_model or each.takes_layers or each.heads)
)


def drafter(method: str, **options: Any) -> Drafter:
    """Return an empty drafter."""
    return build_drafter(method, BuildContext(**{"vocabulary": VOCABULARY, "tokenizer": "t", **options}))


def learn(held: Drafter, text: Iterable[int]) -> None:
    """Play a request whose output is `text` after its first token; the token after next is among the target's top-k."""
    first, *rest = text
    session = held.open(start([first]))
    for token, following in zip(rest, [*rest[1:], rest[-1]], strict=True):
        best = np.array([[token, *[following] * 7]], np.int32)
        logits = -np.arange(8, dtype=np.float32)[None]
        session.observe(
            Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=ids([token]), top_ids=best, top_logits=logits)
        )
    session.close()


def saved(path: Path, method: str, *texts: Iterable[int], **options: Any) -> Path:
    """Write the memory of a drafter that has learned these texts."""
    held = drafter(method, **options)
    for text in texts:
        learn(held, text)
    held.save(path)
    return path


def learned(folder: Path, method: str, *texts: Iterable[int], **options: Any) -> Memory:
    """Return the same memory."""
    return read_any_memory(saved(folder / "memory", method, *texts, **options))


def drafted(path: Path, method: str, context: Iterable[int], **options: Any) -> list[int]:
    """Return what a drafter that begins with a file drafts after a context."""
    held = drafter(method, **options)
    held.load(path)
    return held.open(start(ids(context))).propose(budget(16)).tokens.tolist()
