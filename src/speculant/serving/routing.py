"""One drafter for one batch that serves each request from its own tenant's memory, and copies from its prediction.

What a request asks of its drafter stands in its `SessionRequest`, so the round knows nothing of tenants. A prediction
never reaches a memory: it is the text of a session of prompt lookup that lives as long as the request. Per round the
draft that should gain more is taken, by the weights of its nodes, which are probabilities for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from speculant.core.drafter import Background, Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree, Float64, Int32
from speculant.drafters.copying.lookup import LookupDrafter, LookupSettings
from speculant.memory.fingerprint import tokenizer_fingerprint
from speculant.registry import METHODS, BuildContext, build_drafter, drafts_from_text, find_method, learns_from_text

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator
    from speculant.drafters.mix.base import MixBase

COPIED, MATCHED = 48, 16  # tokens of a prediction in a draft, and of the longest match that tells where it goes on


def can_route(speculator: Speculator) -> bool:
    """Return whether a speculator drafts from text alone, so that its drafter can be one of several."""
    return speculator.method in METHODS and drafts_from_text(find_method(speculator.method))


def route(
    speculator: Speculator, *, tenants: Sequence[str], memory_limit: int, settings: Any = None
) -> dict[str, Drafter]:
    """Have a speculator draft each request from its tenant's memory, and return the memories by tenant.

    Args:
        speculator: its drafter is replaced, which serves as the only one where there are no tenants.
        tenants: whose memories are kept apart; empty for one memory of all.
        memory_limit: bytes of all memories together, of equal shares.
        settings: of the method's drafter.

    Raises:
        UnsupportedError: the method keeps no memory that learns from text, so there is nothing to keep apart.
    """
    if tenants and not (can_route(speculator) and learns_from_text(find_method(speculator.method))):
        raise UnsupportedError(
            f"the method '{speculator.method}' has no memory that learns from text, so none can be kept for each key. "
            "Leave out --memory-scope, or use --method mix."
        )
    if not can_route(speculator):
        return {"": speculator.drafter}
    drafters = {"": speculator.drafter}
    if tenants:
        limit = memory_limit // len(tenants)
        drafters = {tenant: new_memory(speculator, limit=limit, settings=settings) for tenant in tenants}
    vocabulary = speculator.engine.capabilities.vocabulary
    copying = LookupDrafter(vocabulary=vocabulary, settings=LookupSettings(copied=COPIED, longest=MATCHED))
    speculator.draft_with(RoutingDrafter(drafters, copying))
    return drafters


def new_memory(
    speculator: Speculator, *, limit: int, settings: Any = None, bases: Sequence[MixBase] | None = None
) -> Drafter:
    """Return a drafter of a speculator's method, which drafts from text, with an empty memory above the same bases.

    Args:
        speculator: whose method, model and bases.
        limit: bytes of the memory.
        settings: of the method's drafter.
        bases: in place of the speculator's.
    """
    vocabulary = speculator.engine.capabilities.vocabulary
    return build_drafter(
        find_method(speculator.method),
        BuildContext(
            vocabulary=vocabulary,
            tokenizer=tokenizer_fingerprint(speculator.tokenizer, vocabulary),
            memory_limit=limit,
            bases=speculator.bases if bases is None else bases,
            settings=settings,
        ),
    )


class RoutingDrafter(Drafter):
    """Opens sessions of the tenants' drafters."""

    def __init__(self, drafters: Mapping[str, Drafter], copying: Drafter) -> None:
        """Take the drafters by tenant, all of one method, which may be exchanged, and what copies from predictions."""
        self._drafters, self._copying = drafters, copying

    @property
    def needs(self) -> RequestedOutputs:
        """What the method needs."""
        return next(iter(self._drafters.values())).needs

    def open(self, start: SessionRequest) -> Session:
        """Begin a request.

        Raises:
            KeyError: its tenant is not known; no other one's memory is used for it.
        """
        shared = self._drafters.get("")
        inner = (self._drafters[start.tenant] if shared is None else shared).open(start)
        if not len(start.prediction):
            return inner
        text = np.concatenate([start.prediction, start.prompt])
        return PredictedSession(
            inner, self._copying.open(SessionRequest(prompt=text, sampling=start.sampling, seed=start.seed))
        )

    def close(self) -> None:
        """End what the drafters do beside requests."""
        for drafter in self._drafters.values():
            if isinstance(drafter, Background):
                drafter.close()


class PredictedSession(Session):
    """A request with a prediction: the tenant's session, and one that copies from prediction and prompt."""

    def __init__(self, inner: Session, copying: Session) -> None:
        self._inner, self._copying = inner, copying

    def propose(self, budget: Budget) -> DraftTree:
        return _better(self._inner.propose(budget), self._copying.propose(budget))

    def propose_after(self, tokens: Sequence[int], budget: Budget) -> DraftTree:
        return _better(self._inner.propose_after(tokens, budget), self._copying.propose_after(tokens, budget))

    def observe(self, verified: Verified) -> None:
        self._inner.observe(verified)
        self._copying.observe(verified)

    def follow(self, tokens: Int32) -> None:
        self._inner.follow(tokens)
        self._copying.follow(tokens)

    def forecast(self, nodes: int) -> Float64 | None:
        return self._inner.forecast(nodes)

    def close(self) -> None:
        self._inner.close()
        self._copying.close()


def _better(one: DraftTree, other: DraftTree) -> DraftTree:
    """Return the draft of which more tokens should be accepted."""
    return other if float(other.weights.sum()) > float(one.weights.sum()) else one
