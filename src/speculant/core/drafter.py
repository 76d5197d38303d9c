"""The contract of a drafter: what it is asked for, what it returns and what it learns from.

A drafter lives as long as the process and owns what was learned over all requests; a session lives as long as one
request. Drafts are deterministic given the input and the seed, since engines with several ranks must draft the same
tree.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from speculant.core.draft_filter import DraftFilter
from speculant.core.engine import RequestedOutputs, TargetCache
from speculant.core.sampler import GREEDY, Sampling
from speculant.core.tree import UNLIMITED, DraftTree, Float32, Float64, Int32

EMPTY_PATH: Int32 = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a draft may be. It is set before the draft exists, so nothing cuts a sampled draft afterwards.

    Attributes:
        nodes: the most nodes; 0 asks for no draft.
        depth: the deepest node: what the text, the model's positions and its rotary limits have room for.
        trees: whether nodes may have siblings; else the draft must be a chain.
        queries: the deepest query row: what the model's positions and its rotary limits have room for. Queries may
            branch, whatever `trees` says. Where no draft is asked for they are not wanted either, since such a round
            is to cost what plain decoding costs.
        branches: the most branches of nodes and queries together, which is how many leaves there may be beyond the
            first. Chosen nodes are cut to it afterwards, so only queries and drafts that are sampled must keep to it.
        level_price: accepted tokens that the time for a further level of the draft would yield elsewhere. Drafts that
            grow level by level and whose tokens are chosen end where they expect less; 0 never ends them.
        start_price: the same for drafting by levels at all, for drafts that can do without.
        node_price: the same for verifying a further node; nodes below this probability need not be expanded.
    """

    nodes: int
    depth: int
    trees: bool = True
    queries: int = 0
    branches: int = UNLIMITED
    level_price: float = 0.0
    start_price: float = 0.0
    node_price: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SessionRequest:
    """What a session begins with.

    Attributes:
        prompt: Int32[T].
        sampling: how the target's distribution is warped; a drafter that samples warps its own likewise.
        seed: of the drafter's random numbers. It is derived, never the sampler's own: drafts and acceptance tests that
            share a random stream are correlated, which biases the output.
        target: the target's cache of this sequence, lent to drafters that draft with the target itself; else None.
        constraint: which tokens the text forbids or forces, where it has to match something; else None.
        tenant: whose memory drafts, where a server keeps several; "" for the shared one.
        prediction: Int32[P], a text that the answer is expected to resemble; empty for none.
    """

    prompt: Int32
    sampling: Sampling = GREEDY
    seed: np.random.SeedSequence = field(default_factory=lambda: np.random.SeedSequence(0))
    target: TargetCache | None = None
    constraint: DraftFilter | None = None
    tenant: str = ""
    prediction: Int32 = field(default_factory=EMPTY_PATH.copy)

    def round_seed(self, number: int) -> int:
        """Return the seed of a round's random numbers, so that a draft can be drawn again."""
        words = np.random.SeedSequence(self.seed.entropy, spawn_key=(*self.seed.spawn_key, number))
        return int(words.generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verified:
    """The result of a round, for the session to learn from.

    Attributes:
        tree: the draft that was verified, N nodes.
        path: Int32[A], the accepted nodes in order.
        tokens: Int32[A + 1], what was committed: the accepted tokens, then the target's own. Where the text ends
            inside the draft its last token is the target's own, so this holds there too.
        top_ids: Int32[R, k], the target's best tokens after each of R = N + 1 + Q rows (row 0: the root, then nodes,
            then the tree's queries), or None.
        top_logits: Float32[R, k], their logits, or None.
        hidden: [R, L', D], the hidden states that `RequestedOutputs` asks for, an array of the engine's on its device;
            in the first observation, after the prompt's pass, [1, L', D], or with `RequestedOutputs.prompt` the T'
            prompt tokens that the pass read, [T', L', D]. None if none were asked for.
    """

    tree: DraftTree
    path: Int32
    tokens: Int32
    top_ids: Int32 | None = None
    top_logits: Float32 | None = None
    hidden: Any = None


class Session(Protocol):
    """Drafts for one request."""

    def propose(self, budget: Budget) -> DraftTree:
        """Return a draft within the budget, best nodes first. Asked again before `observe`, it returns the same."""

    def propose_after(self, tokens: Sequence[int], budget: Budget) -> DraftTree:
        """Return a draft below tokens that may follow the root, without taking them for committed.

        For drafters that draft for another drafter's model. Sessions that can look ahead override it; else it is the
        part of the own draft below these tokens.
        """
        wider = Budget(nodes=budget.nodes + len(tokens), depth=budget.depth + len(tokens), trees=budget.trees)
        return self.propose(wider).below(tokens).head(budget.nodes)

    def empty_draft(self) -> DraftTree:
        """Return the draft of no nodes, for a pass without one; before the first `observe` for the prompt's pass.

        For acceptance rules that read q after the root of every pass, such as contrastive decoding's.
        """
        return DraftTree.empty()

    def observe(self, verified: Verified) -> None:
        """Learn from a round; called once after the prompt's pass too, with an empty tree and the first token."""

    def follow(self, tokens: Int32) -> None:
        """Learn what was committed in a pause of drafting, a token a round; in place of `observe`, once it ends."""
        for place in range(len(tokens)):
            self.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=tokens[place : place + 1]))

    def close(self) -> None:
        """End the request; what was learned stays in the drafter."""

    def forecast(self, nodes: int) -> Float64 | None:
        """Return the tokens that drafts are expected to gain, for drafters whose drafts are sized before they exist.

        Returns:
            Float64[D, n], n <= nodes: what drafts of 1, 2, ... nodes and at most d levels gain, in row d - 1, where
            drafting takes time by the level. [D]: what d levels gain, where nodes are trimmed afterwards. [0]: nothing
            is known, but drafting takes the same time whatever is asked for. None: drafts are sized by the weights of
            their nodes, or chains by the acceptance of each depth.
        """
        return None


class Drafter(Protocol):
    """Owns what was learned over all requests; safe to share between threads."""

    @property
    def needs(self) -> RequestedOutputs:
        """What it wants back from the target's passes."""

    def open(self, start: SessionRequest) -> Session:
        """Begin a request."""

    def propose(self, sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
        """Return a draft for each of several sessions; drafters that are models override it to run one batched pass.

        Where it raises, the caller may ask for each session alone, to find out which one fails.
        """
        return [session.propose(budget) for session, budget in zip(sessions, budgets, strict=True)]


@runtime_checkable
class Persistent(Protocol):
    """A drafter whose memory can be saved."""

    def save(self, path: Path) -> None:
        """Write the memory so that a crash leaves the old file or the new one, never half of one."""

    def load(self, path: Path) -> None:
        """Replace the memory by the file's."""


@dataclass(frozen=True, slots=True)
class LearnedPhrase:
    """Consecutive tokens that a memory holds.

    Attributes:
        tokens: of the phrase, the latest last.
        uses: about how often its first two tokens were seen.
        following: tokens that were seen after it and their shares, the most frequent first.
    """

    tokens: tuple[int, ...]
    uses: int
    following: tuple[tuple[int, float], ...]


@runtime_checkable
class Inspectable(Protocol):
    """A drafter that can show what it has learned."""

    def top_phrases(self, count: int, *, without: Container[int] = ()) -> list[LearnedPhrase]:
        """Return up to `count` phrases, the most used first, that have no token of `without`."""

    def seen_share(self, tokens: Int32, *, start: int) -> float:
        """Return the share of tokens[start:] that were seen before behind the two tokens in front of them."""


@runtime_checkable
class Background(Protocol):
    """A drafter that works beside requests, in threads."""

    def close(self) -> None:
        """End that work; drafts may still be asked for."""


def __getattr__(name: str) -> Any:
    """Return a class by the name that it had, for drafters that were written before."""
    if name != "Start":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("Start is called SessionRequest.", DeprecationWarning, stacklevel=2)
    return SessionRequest
