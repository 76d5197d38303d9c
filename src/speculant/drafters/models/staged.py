"""Staged Speculative Decoding: a small model drafts a tree, and an n-gram drafter drafts for the small model.

Spector, Re: "Accelerating LLM Inference with Staged Speculative Decoding", 2023, arXiv 2308.04623. Its two parts:

- The draft is a tree, so that as many tokens are accepted with fewer levels. Here it is the tree with the most expected
  accepted tokens by the acceptance measured so far (`sequoia`).
- The small model itself decodes speculatively: each of its passes also reads what the n-gram drafter proposes below the
  nodes to be read, and a level whose nodes have all been read needs no pass. Which nodes are drawn does not depend on
  that, so the draft is the one that the model would have drawn alone.

The paper's n-gram model is a Katz trigram; here it can be any model-free drafter, including its memory.
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
from speculant.drafters.models.sequoia import AdaptiveTrees, BestTree
from speculant.drafters.models.tree_acceptance import SiblingAcceptance

BuildInner = Callable[[str], Drafter]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSettings:
    """Settings of `staged`.

    Attributes:
        inner: method that drafts for the draft model.
        inner_nodes: nodes of the inner drafter read per pass of the draft model, in addition to the tree's.
        depth: maximum levels of the tree.
        siblings: maximum siblings below one node; 1 for chains.
        max_nodes: maximum nodes per draft; drafts are cut to what the engine has room for.
    """

    inner: str = "mix"
    inner_nodes: int = 8
    depth: int = 8
    siblings: int = 8
    max_nodes: int = MAX_NODES


class InnerMemory(Drafter, Persistent):
    """A drafter that wraps another one, and saves and loads only that one's memory.

    Attributes:
        inner: drafter that has the memory.
    """

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner

    @property
    def memory_bytes(self) -> int:
        """Current size of the inner drafter's memory in bytes."""
        return int(getattr(self.inner, "memory_bytes", 0))

    def save(self, path: Path) -> None:
        """Write the inner drafter's memory; raises the same errors as that drafter's `save`."""
        self._persistent().save(path)

    def load(self, path: Path) -> None:
        """Replace the inner drafter's memory; raises the same errors as that drafter's `load`."""
        self._persistent().load(path)

    def _persistent(self) -> Persistent:
        if not isinstance(self.inner, Persistent):
            raise UnsupportedError("the inner drafter has no memory to save or load; use inner=mix.")
        return self.inner


class StagedDrafter(InnerMemory):
    """Drafter of a draft model's tree that an inner drafter speeds up: `staged`."""

    def __init__(
        self,
        open_cache: OpenCache,
        build_inner: BuildInner,
        *,
        vocabulary: int,
        settings: StagedSettings | None = None,
    ) -> None:
        """Set up the draft model, and build the inner drafter.

        Args:
            open_cache: returns an unread cache of the draft model for a prompt Int32[T].
            build_inner: returns the drafter for a method name; rejects methods that use a draft model themselves.
            vocabulary: V of the target.
            settings: None for the defaults.

        Raises:
            UsageError: the inner method uses a draft model itself, or a number is out of range.
        """
        self._settings = s = settings or StagedSettings()
        check_inner_nodes(s.inner_nodes)
        self._trees = AdaptiveTrees(SiblingAcceptance(), depth=s.depth, siblings=s.siblings, max_nodes=s.max_nodes)
        self._open_cache, self._vocabulary = open_cache, vocabulary
        super().__init__(build_inner(self._settings.inner))

    @property
    def needs(self) -> RequestedOutputs:
        return RequestedOutputs(max_nodes=self._settings.max_nodes)

    def open(self, start: SessionRequest) -> Session:
        text = DraftText.open(self._open_cache, start, self._vocabulary)
        staged = StagedText(text, self.inner.open(start), nodes=self._settings.inner_nodes)
        return LevelSession(staged, start, BestTree(self._trees))


class StagedText(LevelText):
    """A text on a draft model, whose passes also read the proposals of an inner drafter."""

    def __init__(self, text: DraftText, inner: Session, *, nodes: int) -> None:
        """Combine the text and the inner drafter's session, which adds up to `nodes` nodes to a pass."""
        self._text, self._inner, self._nodes = text, inner, nodes
        self._held: dict[tuple[int, int], tuple[int, Tensor]] = {}  # row and q of each node, by parent row and token
        self._paths: dict[int, tuple[int, ...]] = {}  # tokens from the root, by row

    @property
    def depth(self) -> int:
        return self._text.depth

    @property
    def trees(self) -> bool:
        return self._text.trees

    @property
    def unread(self) -> int:
        return self._text.unread

    def begin(self) -> Tensor:
        """Drop all rows of the draft; return q [1, V] after the root."""
        self._held, self._paths = {}, {ROOT: ()}
        return self._text.begin()

    def read(self, tokens: Sequence[int], above: Sequence[int]) -> tuple[list[int], Tensor]:
        """Return rows and q [n, V] of n nodes; nodes that were read before need no pass."""
        nodes = list(zip(above, tokens, strict=True))
        missing = [node for node in dict.fromkeys(nodes) if node not in self._held]
        if missing:
            self._read(missing)
        rows, distributions = zip(*(self._held[node] for node in nodes), strict=True)
        return list(rows), torch.stack(distributions)

    def _read(self, missing: Sequence[tuple[int, int]]) -> None:
        """Read nodes, each given by parent row and token, and the proposals below them."""
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
        rows, distributions = self._text.read([token for _, token in wanted], [above for above, _ in wanted])
        self._held |= zip(wanted, zip(rows, distributions, strict=True), strict=True)

    def observe(self, verified: Verified) -> None:
        """Let both the draft model's text and the inner drafter learn from the target's pass."""
        self._text.observe(verified)
        self._inner.observe(verified)

    def release(self) -> None:
        self._inner.close()
        self._text.release()


def check_inner_nodes(nodes: int) -> None:
    """Check the number of nodes of an inner drafter.

    Raises:
        UsageError: it is out of range.
    """
    if not 0 <= nodes <= MAX_NODES:
        raise UsageError(f"inner_nodes must be from 0 to {MAX_NODES}, not {nodes}.")
