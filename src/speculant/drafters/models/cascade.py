"""Cascades: a draft model that is drafted for by a cheaper drafter.

- Vertical: the draft model verifies what the cheaper drafter proposes, several tokens in one of its passes. Each of its
  tokens is still drawn from its own distribution q, and the proposal followed while it agrees, so the draft is the one
  that the model would have drawn alone. Staged Speculative Decoding (Spector, Re 2023, arXiv 2308.04623) does so with
  an n-gram model below the draft model.
- Horizontal: later tokens of a draft are rarely reached, so the cheaper drafter adds them without the model. Cascade
  Speculative Drafting (Chen et al., NeurIPS 2024, arXiv 2312.11462) combines both, with Max-Gram as the last drafter.
  Where the target is sampled such a draft has drawn tokens, then chosen ones, and each is tested as what it is.

The papers draft with their own n-gram models; here any drafter without a model serves, with the memory it learns. The
tree of Staged Speculative Decoding is left to the methods that grow trees. CS Drafting may accept leniently inside the
cascade; ours does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from speculant.core.drafter import Budget, Drafter, Persistent, Session, SessionRequest, Verified
from speculant.core.engine import MAX_NODES, RequestedOutputs
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.tree import ROOT, DraftTree, Float64
from speculant.drafters.models.draft_text import DraftText, OpenCache
from speculant.drafters.models.level_session import drafted
from speculant.drafters.models.tree_acceptance import LevelAcceptance
from speculant.drafters.models.warping import draw_token

BuildInner = Callable[[str], Drafter]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSettings:
    """Settings of `staged`.

    Attributes:
        inner: the method that drafts for the draft model.
        inner_nodes: nodes that one pass of the draft model verifies.
    """

    inner: str = "mix"
    inner_nodes: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeSettings:
    """Settings of `cs-drafting`.

    Attributes:
        inner: the method that drafts for the draft model, and the later tokens.
        inner_nodes: nodes that one pass of the draft model verifies.
        length: tokens of a draft that the draft model makes; the others are the inner method's.
    """

    inner: str = "maxgram"
    inner_nodes: int = 8
    length: int = 5


class StagedDrafter(Drafter, Persistent):
    """Vertical cascade: `staged`. What is saved is the inner drafter's memory."""

    def __init__(
        self,
        open_cache: OpenCache,
        build_inner: BuildInner,
        *,
        vocabulary: int,
        settings: StagedSettings | None = None,
    ) -> None:
        """Take the draft model, and build the inner drafter.

        Args:
            open_cache: returns a cache of the draft model for a prompt Int32[T], which is not read yet.
            build_inner: returns the drafter of a method by its name; refuses those that draft with a model themselves.
            vocabulary: V of the target.
            settings: None for the defaults.

        Raises:
            UsageError: the inner method drafts with a model itself, or a number is out of range.
        """
        s = settings or StagedSettings()
        self._setup(open_cache, lambda: build_inner(s.inner), vocabulary, s.inner_nodes, MAX_NODES)

    def _setup(
        self,
        open_cache: OpenCache,
        build: Callable[[], Drafter],
        vocabulary: int,
        nodes: int,
        length: int,
    ) -> None:
        if not (0 <= nodes <= MAX_NODES and 1 <= length <= MAX_NODES):
            raise UsageError(f"inner_nodes is 0 to {MAX_NODES}, length 1 to {MAX_NODES}; not {nodes} and {length}.")
        self._open_cache, self._vocabulary, self._nodes, self._length = open_cache, vocabulary, nodes, length
        self.inner = build()

    @property
    def needs(self) -> RequestedOutputs:
        """What the inner drafter learns from."""
        return self.inner.needs

    @property
    def memory_bytes(self) -> int:
        """Bytes that the inner drafter's memory takes now."""
        return int(getattr(self.inner, "memory_bytes", 0))

    def open(self, start: SessionRequest) -> Session:
        text = DraftText.open(self._open_cache, start, self._vocabulary)
        return CascadeSession(text, self.inner.open(start), start, nodes=self._nodes, length=self._length)

    def save(self, path: Path) -> None:
        """Write the inner drafter's memory; raises as that drafter's `save`."""
        self._persistent().save(path)

    def load(self, path: Path) -> None:
        """Replace the inner drafter's memory; raises as that drafter's `load`."""
        self._persistent().load(path)

    def _persistent(self) -> Persistent:
        if not isinstance(self.inner, Persistent):
            raise UnsupportedError("the inner drafter keeps no memory that could be saved or loaded; use inner=mix.")
        return self.inner


class CascadeDrafter(StagedDrafter):
    """Vertical and horizontal cascade: `cs-drafting`."""

    def __init__(
        self,
        open_cache: OpenCache,
        build_inner: BuildInner,
        *,
        vocabulary: int,
        settings: CascadeSettings | None = None,
    ) -> None:
        s = settings or CascadeSettings()
        self._setup(open_cache, lambda: build_inner(s.inner), vocabulary, s.inner_nodes, s.length)


class CascadeSession(Session):
    """One request: its text on the draft model, and the inner drafter's session."""

    def __init__(self, text: DraftText, inner: Session, start: SessionRequest, *, nodes: int, length: int) -> None:
        self._text, self._inner, self._start = text, inner, start
        self._nodes, self._length, self._round = nodes, length, 0
        self._acceptance = LevelAcceptance()

    def propose(self, budget: Budget) -> DraftTree:
        """Return a chain. Asked again before `observe`, it draws the same tokens again."""
        depth = min(budget.nodes, budget.depth, self._text.depth)
        if depth < 1:  # the draft model may have no positions left
            return self._inner.propose(budget)
        tokens, laws, weights = self._grow(min(depth, self._length))
        sampled = len(tokens)
        rest = self._inner.propose_after(
            tokens, Budget(nodes=budget.nodes - sampled, depth=budget.depth - sampled, trees=False)
        )
        tokens += rest.tokens.tolist()
        weights += (weights[-1] * rest.weights).tolist()
        parents = list(range(-1, len(tokens) - 1))
        chosen = [node >= sampled for node in range(len(tokens))] if len(rest) else None
        given = dict(enumerate(laws, start=ROOT)) if self._start.sampling.temperature else {}
        return drafted(tokens, parents, weights, given, chosen=chosen)

    def _grow(self, length: int) -> tuple[list[int], list[Tensor], list[float]]:
        """Return `length` tokens of the draft model, q [V] that each was drawn from, and their joint probabilities."""
        sampled = bool(self._start.sampling.temperature)
        generator = torch.Generator().manual_seed(self._start.round_seed(self._round)) if sampled else None
        tokens, laws, weights = list[int](), list[Tensor](), list[float]()
        held: dict[tuple[int, int], tuple[int, Tensor]] = {}  # by the row above and the token: its row, and q after it
        [law], row = self._text.begin(), ROOT
        while True:
            token = draw_token(law, generator)
            tokens.append(token)
            laws.append(law)
            weights.append(min(1.0, float(law[token])) * (weights[-1] if weights else 1.0))
            left = length - len(tokens)
            if not left:
                return tokens, laws, weights
            if (row, token) not in held:
                nodes = min(self._nodes, left) if self._text.trees else 0  # what is wrong of them stays in the cache
                maximum = Budget(nodes=nodes, depth=left)
                ahead = self._inner.propose_after(tokens, maximum) if maximum.nodes else DraftTree.empty()
                read = [token, *ahead.tokens.tolist()]
                above = [row, *(self._text.rows + 1 + parent for parent in ahead.parents.tolist())]
                held = dict(
                    zip(zip(above, read, strict=True), zip(*self._text.read(read, above), strict=True), strict=True)
                )
            row, law = held[row, token]

    def forecast(self, nodes: int) -> Float64:
        return self._acceptance.chain_gains(nodes)

    def observe(self, verified: Verified) -> None:
        """Let the inner drafter learn from the target's pass."""
        if len(verified.tree):
            self._acceptance.observe(int(verified.tree.depths().max()), len(verified.path))
        self._text.observe(verified)
        self._inner.observe(verified)
        self._round += 1

    def close(self) -> None:
        self._inner.close()
        self._text.release()
