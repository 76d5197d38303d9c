"""A drafter for a batch that drafts each request from its own tenant's memory, and copies from its prediction.

The tenant and prediction of a request are in its `SessionRequest`, so the round is unaware of tenants. A prediction
never enters a memory: it is the text of a prompt-lookup session that lives as long as the request. In each round the
draft with the higher expected gain is used, by the weights of its nodes, which are probabilities for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from speculant.core.drafter import Background, Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree, Int32
from speculant.core.wrapped_session import WrappedSession
from speculant.drafters.copying.lookup import LookupDrafter, LookupSettings
from speculant.memory.fingerprint import tokenizer_fingerprint
from speculant.registry import METHODS, BuildContext, build_drafter, drafts_from_text, find_method, learns_from_text

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator
    from speculant.drafters.mix.base import MixBase

COPIED, MATCHED = 48, 16  # maximum tokens copied into a draft, and of the match in the prediction


def can_route(speculator: Speculator) -> bool:
    """Return whether a speculator drafts from text alone, so that its drafter can be one of several."""
    return speculator.method in METHODS and drafts_from_text(find_method(speculator.method))


def route(
    speculator: Speculator, *, tenants: Sequence[str], memory_limit: int, settings: Any = None
) -> dict[str, Drafter]:
    """Let a speculator draft each request from its tenant's memory, and return the drafters by tenant.

    Args:
        speculator: its drafter is replaced; without tenants, the former drafter serves all requests.
        tenants: tenants with separate memories; empty for one memory shared by all.
        memory_limit: total size of all memories in bytes, divided equally.
        settings: settings of the method's drafter.

    Raises:
        UnsupportedError: the method keeps no memory that learns from text, so there is nothing to separate.
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
        speculator: provides method, model and bases.
        limit: maximum size of the memory in bytes.
        settings: settings of the method's drafter.
        bases: bases to use instead of the speculator's.
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
        """Set the drafters by tenant, all of one method, which may be replaced, and the one that copies predictions."""
        self._drafters, self._copying = drafters, copying

    @property
    def needs(self) -> RequestedOutputs:
        """The outputs that the method needs."""
        return next(iter(self._drafters.values())).needs

    def open(self, start: SessionRequest) -> Session:
        """Begin a request.

        Raises:
            KeyError: its tenant is unknown; no other tenant's memory is used instead.
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
        """Stop the drafters' background work."""
        for drafter in self._drafters.values():
            if isinstance(drafter, Background):
                drafter.close()


class PredictedSession(WrappedSession):
    """The session of a request with a prediction: the tenant's session, and one that copies from it and the prompt."""

    def __init__(self, inner: Session, copying: Session) -> None:
        super().__init__(inner)
        self._copying = copying

    def propose(self, budget: Budget) -> DraftTree:
        return _better(self.inner.propose(budget), self._copying.propose(budget))

    def propose_after(self, tokens: Sequence[int], budget: Budget) -> DraftTree:
        return _better(self.inner.propose_after(tokens, budget), self._copying.propose_after(tokens, budget))

    def observe(self, verified: Verified) -> None:
        self.inner.observe(verified)
        self._copying.observe(verified)

    def follow(self, tokens: Int32) -> None:
        self.inner.follow(tokens)
        self._copying.follow(tokens)

    def close(self) -> None:
        self.inner.close()
        self._copying.close()


def _better(one: DraftTree, other: DraftTree) -> DraftTree:
    """Return the draft with more expected accepted tokens."""
    return other if float(other.weights.sum()) > float(one.weights.sum()) else one
