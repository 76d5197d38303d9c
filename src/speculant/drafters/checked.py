"""A wrapper for user-defined drafters that checks drafts against the contract before they are verified.

Drafts that would otherwise fail deep inside a pass, or waste it, are rejected with the cause and a way out. Tokens
outside the model's vocabulary are rejected by the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from speculant.core.drafter import Background, Budget, Drafter, Loadable, Persistent, Session, SessionRequest
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.tree import ROOT, DraftTree

_OF_A_SESSION = ("propose", "propose_after", "observe", "forecast", "close")


class CheckedDrafter(Drafter, Background):
    """Passes on the drafts of the inner drafter after checking them.

    Attributes:
        inner: the wrapped drafter.
    """

    def __init__(self, inner: Drafter) -> None:
        """Wrap a drafter.

        Raises:
            UsageError: `inner` is not a drafter.
        """
        if isinstance(inner, type):
            raise UsageError(f"the drafter is the class {inner.__name__}; pass an object, drafter={inner.__name__}().")
        check_attributes(inner)
        self.inner, self._name = inner, type(inner).__name__
        if not isinstance(inner.needs, RequestedOutputs):
            raise UsageError(
                f"{self._name}.needs must be a property that returns speculant.core.engine.RequestedOutputs, not "
                f"{type(inner.needs).__name__}."
            )

    @property
    def needs(self) -> RequestedOutputs:
        return self.inner.needs

    @property
    def memory_bytes(self) -> int | None:
        """Current size of the inner drafter's memory in bytes; None if it does not report it."""
        return getattr(self.inner, "memory_bytes", None)

    def open(self, start: SessionRequest) -> Session:
        session = self.inner.open(start)
        missing = [name for name in _OF_A_SESSION if not callable(getattr(session, name, None))]
        if missing:
            raise UsageError(
                f"{self._name}.open returned a {type(session).__name__} without {', '.join(missing)}. Derive it from "
                "speculant.core.drafter.Session and define `propose`, `observe` and `close`."
            )
        return session

    def propose(self, sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
        drafts = self.inner.propose(sessions, budgets)
        if not isinstance(drafts, list) or len(drafts) != len(sessions):
            raise UsageError(f"{self._name}.propose must return a list with one draft per session.")
        for draft, budget in zip(drafts, budgets, strict=True):
            self._check(draft, budget)
        return drafts

    def close(self) -> None:
        if isinstance(self.inner, Background):
            self.inner.close()

    def _check(self, draft: Any, budget: Budget) -> None:
        """Reject a draft that violates the contract or the budget."""
        if not isinstance(draft, DraftTree):
            raise UsageError(
                f"{self._name} proposed a {type(draft).__name__}; return a DraftTree, such as "
                "DraftTree.from_paths([[token, token], [token]]), or DraftTree.empty()."
            )
        for name in ("tokens", "parents"):
            if getattr(getattr(draft, name), "dtype", None) != np.int32:
                raise UsageError(
                    f"the {name} of a draft must be an Int32 array; DraftTree.from_paths makes it from lists."
                )
        reason = ""
        if len(draft) > budget.nodes:
            reason = f"{len(draft)} nodes, but its budget allows {budget.nodes}"
        elif len(draft) and (deepest := int(draft.depths().max())) > budget.depth:
            reason = f"{deepest} levels, but its budget allows {budget.depth}"
        elif not budget.trees and draft.parents.tolist() != list(range(ROOT, len(draft) - 1)):
            reason = "branches, but its budget allows only a chain"
        if reason:
            raise UsageError(
                f"{self._name} proposed a draft with {reason}. Return "
                "draft.within(depth=budget.depth, trees=budget.trees).head(budget.nodes)."
            )
        if len(draft.queries) > self.needs.queries:
            raise UsageError(
                f"{self._name} proposed {len(draft.queries)} query rows, but its `needs` declare {self.needs.queries}."
            )


class CheckedStart(CheckedDrafter, Loadable):
    """A checked drafter that can start from a memory file."""

    def load(self, path: Path) -> None:
        """Replace the inner drafter's memory by the contents of a file."""
        assert isinstance(self.inner, Loadable)
        self.inner.load(path)


class CheckedMemory(CheckedStart, Persistent):
    """A checked drafter whose memory can also be saved."""

    def save(self, path: Path) -> None:
        """Write the inner drafter's memory."""
        assert isinstance(self.inner, Persistent)
        self.inner.save(path)


def add_checks(drafter: Any) -> CheckedDrafter:
    """Return a user's drafter with its drafts checked; it can be loaded and saved if the user's drafter can.

    Raises:
        UsageError: `drafter` is not a drafter.
    """
    kind = CheckedStart if isinstance(drafter, Loadable) else CheckedDrafter
    return (CheckedMemory if isinstance(drafter, Persistent) else kind)(drafter)


def check_attributes(drafter: Any) -> None:
    """Check that an object has the attributes of a drafter.

    Raises:
        UsageError: attributes are missing.
    """
    name = drafter.__name__ if isinstance(drafter, type) else type(drafter).__name__
    missing = [each for each in ("needs", "open", "propose") if not hasattr(drafter, each)]
    if missing:
        raise UsageError(
            f"{name} is not a drafter: it has no {' and no '.join(missing)}. Derive it from "
            "speculant.core.drafter.Drafter and define `needs` and `open`."
        )
