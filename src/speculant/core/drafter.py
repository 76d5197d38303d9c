"""The interface of a drafter: what it is asked for, what it returns and what it learns from.

A drafter lives as long as the process and owns what was learned from all requests; a session lives as long as one
request. Drafts are deterministic given the input and the seed, since all ranks of a distributed engine must draft the
same tree.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from speculant.core.draft_filter import DraftFilter
from speculant.core.engine import EngineArray, RequestedOutputs, TargetCache
from speculant.core.former_names import resolve_former
from speculant.core.sampler import GREEDY, Sampling
from speculant.core.tree import UNLIMITED, DraftTree, Float32, Float64, Int32

EMPTY_PATH: Int32 = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a draft. They are set before drafting, so a sampled draft never has to be cut afterwards.

    Attributes:
        nodes: maximum number of nodes; 0 asks for no draft.
        depth: maximum depth of a node, limited by the room left in the text, the model's positions and its rotary
            limits.
        trees: whether nodes may have siblings; otherwise the draft must be a chain.
        queries: maximum depth of a query row, limited by the model's positions and its rotary limits. Queries may
            branch whatever `trees` says. If no draft is asked for, no queries are wanted either, so that the round
            costs no more than plain decoding.
        branches: maximum number of branches of nodes and queries together, that is, of leaves beyond the first. Chosen
            nodes are cut to fit afterwards, so only queries and sampled drafts must respect it.
        level_price: tokens that the time of one more draft level would yield if spent elsewhere. A draft of chosen
            tokens that grows level by level stops when it expects to gain less; 0 never stops it.
        start_price: the same for starting to draft by levels at all, for drafters that can do without. It includes a
            round's share of the time of reading the text, see `Session.unread`.
        node_price: the same for verifying one more node; nodes below this probability need not be expanded.
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
class EncoderSource:
    """What the encoder of an encoder-decoder target has read, for draft models that have an encoder too.

    Attributes:
        prompt: Int32[T], the decoder's first tokens.
        states: [1, S, D], the output of the target's encoder, without those of padding.
        inputs: what the encoder read, by name, such as `input_ids` or `input_features`; None if it is not known.
    """

    prompt: Int32
    states: EngineArray
    inputs: Mapping[str, EngineArray] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SessionRequest:
    """The inputs of a new session.

    Attributes:
        prompt: Int32[T], the prompt's tokens.
        sampling: how the target's distribution is warped; a drafter that samples warps its own the same way.
        seed: seed of the drafter's random numbers. It is derived, never the sampler's own: drafts and acceptance tests
            that share a random stream are correlated, which biases the output.
        target: the target's cache of this sequence, lent to drafters that draft with the target itself; else None.
        constraint: which tokens are forbidden or forced, if the output is constrained; else None.
        tenant: whose memory to draft from, if a server keeps several; "" for the shared one.
        prediction: Int32[P], a text that the answer is expected to resemble; empty for none.
        source: what the target's encoder has read, if it has one; else None. A text that it read precedes the decoder's
            tokens in `prompt`.
    """

    prompt: Int32
    sampling: Sampling = GREEDY
    seed: np.random.SeedSequence = field(default_factory=lambda: np.random.SeedSequence(0))
    target: TargetCache | None = None
    constraint: DraftFilter | None = None
    tenant: str = ""
    prediction: Int32 = field(default_factory=EMPTY_PATH.copy)
    source: EncoderSource | None = None

    def round_seed(self, number: int) -> int:
        """Return the seed of a round's random numbers, with which the same draft can be drawn again."""
        words = np.random.SeedSequence(self.seed.entropy, spawn_key=(*self.seed.spawn_key, number))
        return int(words.generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verified:
    """The result of a round, for the session to learn from.

    Attributes:
        tree: the draft that was verified, N nodes.
        path: Int32[A], the accepted nodes in order.
        tokens: Int32[A + 1], the committed tokens: the accepted ones, then the target's own. This holds even if the
            text ends inside the draft, because its last token then counts as the target's own.
        top_ids: Int32[R, k], the target's most probable tokens after each of R = N + 1 + Q rows (row 0: the root, then
            nodes, then the tree's queries), or None.
        top_logits: Float32[R, k], their logits, or None.
        hidden: [R, L', D], the hidden states that `RequestedOutputs` asks for, in the engine's array type on its
            device. In the first observation, after the prompt's pass, [1, L', D], or with `RequestedOutputs.prompt`
            [T', L', D] for the T' prompt tokens that the pass read. None if none were asked for.
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
        """Return a draft within the budget, best nodes first. Calling it again before `observe` returns the same."""

    def propose_after(self, tokens: Sequence[int], budget: Budget) -> DraftTree:
        """Return a draft below tokens that may follow the root, without treating them as committed.

        For drafters that draft for another drafter's model. By default this is the part of the session's own draft
        below these tokens; sessions that can look ahead override it.
        """
        wider = Budget(nodes=budget.nodes + len(tokens), depth=budget.depth + len(tokens), trees=budget.trees)
        return self.propose(wider).below(tokens).head(budget.nodes)

    def empty_draft(self) -> DraftTree:
        """Return a draft without nodes for a pass without drafting; before the first `observe`, for the prompt's pass.

        For acceptance rules that read q after the root of every pass, such as contrastive decoding.
        """
        return DraftTree.empty()

    def observe(self, verified: Verified) -> None:
        """Learn from a round; also called once after the prompt's pass, with an empty tree and the first token."""

    def follow(self, tokens: Int32) -> None:
        """Learn the tokens committed in a pause of drafting, one per round; called at its end, instead of `observe`."""
        for place in range(len(tokens)):
            self.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=tokens[place : place + 1]))

    @property
    def selective(self) -> bool:
        """Whether it can draft without the model that must read a text; it then decides by `Budget.start_price`."""
        return False

    def unread(self) -> int:
        """Return how many committed tokens, such as the prompt's, a model of the drafter must read before it drafts."""
        return 0

    def close(self) -> None:
        """End the request; the drafter keeps what it learned."""

    def forecast(self, nodes: int) -> Float64 | None:
        """Return the expected gain of drafts in tokens, for drafters whose drafts are sized before they are drafted.

        Returns:
            Float64[D, n], n <= nodes, if drafting time is proportional to the number of levels: row d - 1 holds the
            gains of drafts of 1, 2, ... nodes and at most d levels. [D]: the gains of d levels, if nodes are trimmed
            afterwards. [0]: nothing is known, but drafting takes the same time for every size. None: drafts are sized
            by the weights of their nodes, or chains by the acceptance rate at each depth.
        """
        return None


class Drafter(Protocol):
    """Owns what was learned from all requests; safe to share between threads."""

    @property
    def needs(self) -> RequestedOutputs:
        """The outputs of the target's passes that it needs."""

    def open(self, start: SessionRequest) -> Session:
        """Begin a request."""

    def propose(self, sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
        """Return a draft for each of several sessions; drafters that are models override it to run one batched pass.

        If it raises, the caller may ask for each session alone, to find out which one fails.
        """
        return [session.propose(budget) for session, budget in zip(sessions, budgets, strict=True)]


@runtime_checkable
class Loadable(Protocol):
    """A drafter that can start from a memory file."""

    def load(self, path: Path) -> None:
        """Replace the memory with the contents of a file."""


@runtime_checkable
class Persistent(Loadable, Protocol):
    """A drafter whose memory can also be saved."""

    def save(self, path: Path) -> None:
        """Write the memory to a file atomically: a crash leaves either the old file or the new one."""


@dataclass(frozen=True, slots=True)
class LearnedPhrase:
    """Consecutive tokens that a memory holds.

    Attributes:
        tokens: the phrase's tokens, in order.
        uses: approximate number of times that its first two tokens were seen.
        following: tokens that were seen after it and their shares, most frequent first.
    """

    tokens: tuple[int, ...]
    uses: int
    following: tuple[tuple[int, float], ...]


@runtime_checkable
class Inspectable(Protocol):
    """A drafter that can show what it has learned."""

    def top_phrases(self, count: int, *, without: Container[int] = ()) -> list[LearnedPhrase]:
        """Return up to `count` phrases that contain no token of `without`, most used first."""

    def seen_share(self, tokens: Int32, *, start: int) -> float:
        """Return the share of tokens[start:] that the memory has seen after the same two preceding tokens."""


@runtime_checkable
class Background(Protocol):
    """A drafter that does work in background threads."""

    def close(self) -> None:
        """Stop the background work; drafts may still be asked for."""


__getattr__ = resolve_former(__name__, {"Start": "SessionRequest"})
