"""Staged Speculative Decoding: a small model drafts a tree, and is itself drafted for by an n-gram drafter.

Spector, Re: "Accelerating LLM Inference with Staged Speculative Decoding", 2023, arXiv 2308.04623. Its two parts:

- The draft is a tree, so that as many tokens are accepted with fewer levels. Here it is the tree that is expected to
  yield the most by the acceptance measured so far (`sequoia`).
- The small model's own decoding is speculative: each of its passes also reads what the n-gram drafter proposes below
  the nodes that are to be read, and a level whose nodes were all read before needs no pass. Which nodes are drawn does
  not depend on that, so the draft is the one that the model would have drawn alone.

The paper's n-gram model is a Katz trigram; here any drafter without a model serves, with the memory it learns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from speculant.core.drafter import Budget, Drafter, Persistent, Session, SessionRequest, Verified
from speculant.core.engine import MAX_NODES, RequestedOutputs
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.tree import ROOT
from speculant.drafters.models.draft_text import DraftText, OpenCache
from speculant.drafters.models.level_session import LevelSession, LevelText
from speculant.drafters.models.sequoia import BestTree
from speculant.drafters.models.tree_acceptance import SiblingAcceptance

BuildInner = Callable[[str], Drafter]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSettings:
    """Settings of `staged`.

    Attributes:
        inner: the method that drafts for the draft model.
        inner_nodes: nodes of its that one pass of the draft model reads beside the tree's.
        depth: levels of the tree, at most.
        siblings: the most below one node; 1 for chains.
        max_nodes: of a draft; larger ones than the engine has room for are cut.
    """

    inner: str = "mix"
    inner_nodes: int = 8
    depth: int = 8
    siblings: int = 8
    max_nodes: int = MAX_NODES


class InnerMemory(Drafter, Persistent):
    """A drafter around another one, whose memory is what is saved.

    Attributes:
        inner: the drafter that keeps the memory.
    """

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner

    @property
    def memory_bytes(self) -> int:
        """Bytes that the inner drafter's memory takes now."""
        return int(getattr(self.inner, "memory_bytes", 0))

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


class StagedDrafter(InnerMemory):
    """A tree of a draft model that an inner drafter speeds up: `staged`."""

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
        self._settings, self._acceptance = settings or StagedSettings(), SiblingAcceptance()
        check_inner_nodes(self._settings.inner_nodes)
        self._shape()  # settings are checked before the first request
        self._open_cache, self._vocabulary = open_cache, vocabulary
        super().__init__(build_inner(self._settings.inner))

    @property
    def needs(self) -> RequestedOutputs:
        return RequestedOutputs(max_nodes=self._settings.max_nodes)

    def open(self, start: SessionRequest) -> Session:
        text = DraftText.open(self._open_cache, start, self._vocabulary)
        staged = StagedText(text, self.inner.open(start), nodes=self._settings.inner_nodes)
        return LevelSession(staged, start, self._shape())

    def _shape(self) -> BestTree:
        s = self._settings
        return BestTree(self._acceptance, depth=s.depth, siblings=s.siblings, max_nodes=s.max_nodes)


class StagedText(LevelText):
    """A text on a draft model, whose passes also read what an inner drafter proposes."""

    def __init__(self, text: DraftText, inner: Session, *, nodes: int) -> None:
        """Take the text, the inner drafter's session, and the nodes that it adds to a pass."""
        self._text, self._inner, self._nodes = text, inner, nodes
        self._held: dict[
            tuple[int, int], tuple[int, Tensor]
        ] = {}  # by the row above and the token: its row, q after it
        self._paths: dict[int, tuple[int, ...]] = {}  # tokens from the root, by row

    @property
    def depth(self) -> int:
        return self._text.depth

    @property
    def trees(self) -> bool:
        return self._text.trees

    def begin(self) -> Tensor:
        """Drop all rows of a draft; return q [1, V] after the root."""
        self._held, self._paths = {}, {ROOT: ()}
        return self._text.begin()

    def read(self, tokens: Sequence[int], above: Sequence[int]) -> tuple[list[int], Tensor]:
        """Return rows and q [n, V] of n nodes; those that were read before need no pass."""
        nodes = list(zip(above, tokens, strict=True))
        missing = [node for node in dict.fromkeys(nodes) if node not in self._held]
        if missing:
            self._read(missing)
        rows, laws = zip(*(self._held[node] for node in nodes), strict=True)
        return list(rows), torch.stack(laws)

    def _read(self, missing: Sequence[tuple[int, int]]) -> None:
        """Read nodes, given the row above and the token of each, and what is proposed below them."""
        first, share = self._text.rows, self._nodes // len(missing) if self._text.trees else 0
        wanted = list(missing)
        for place, (above, token) in enumerate(missing):
            path = (*self._paths[above], token)
            self._paths[first + place] = path
            depth = self._text.depth - len(path)
            if share and depth > 0:
                ahead = self._inner.propose_after(path, Budget(nodes=share, depth=depth))
                begin = first + len(wanted)
                for parent, below in zip(ahead.parents.tolist(), ahead.tokens.tolist(), strict=True):
                    row = first + place if parent == ROOT else begin + parent
                    self._paths[first + len(wanted)] = (*self._paths[row], below)
                    wanted.append((row, below))
        rows, laws = self._text.read([token for _, token in wanted], [above for above, _ in wanted])
        self._held |= zip(wanted, zip(rows, laws, strict=True), strict=True)

    def observe(self, verified: Verified) -> None:
        """Let the inner drafter learn from the target's pass, too."""
        self._text.observe(verified)
        self._inner.observe(verified)

    def release(self) -> None:
        self._inner.close()
        self._text.release()


def check_inner_nodes(nodes: int) -> None:
    """Refuse a number of nodes of an inner drafter.

    Raises:
        UsageError: it is out of range.
    """
    if not 0 <= nodes <= MAX_NODES:
        raise UsageError(f"inner_nodes is 0 to {MAX_NODES}, not {nodes}.")
