"""The contract of an engine: where forward passes of the target happen, and the cache of one sequence on it.

`Array` stands for the engine's own arrays (torch tensors on the model's device, numpy for recorded outputs), so that
nothing here imports an engine.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from speculant.core.errors import UnsupportedError
from speculant.core.sparse_cache import RowBudget, SparseCache
from speculant.core.tree import UNLIMITED, DraftTree, Float32, Int32

Array = Any
AnyCapabilities = TypeVar("AnyCapabilities", bound="Capabilities")


MAX_NODES = 64  # of a draft whose size is chosen round by round, where the drafter says nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedOutputs:
    """What a drafter wants back from the target's passes.

    Attributes:
        top_k: how many of the target's best tokens at every row, rejected nodes too; 0 for none.
        hidden_layers: the decoder layers whose output it reads, counted from 0; -1 is the last, before the final norm.
        prompt: whether the hidden states of the prompt are wanted too.
        queries: the most query rows of its drafts, see `tree.Queries`; models that verify chains only take none.
        explores: whether `top_k` at rejected nodes teaches it something, which sizing then counts as a gain.
        max_nodes: of a draft whose size is chosen round by round.
        always: whether it is wanted of every pass; else not of those in pauses of drafting, which are to take no longer
            than plain passes.
        hidden_context: rounds before the end of a pause in which hidden states are wanted again, for drafters whose
            `Session.follow` begins anew with them; 0 where they are wanted of every pass.
    """

    top_k: int = 0
    hidden_layers: tuple[int, ...] = ()
    prompt: bool = False
    queries: int = 0
    explores: bool = True
    max_nodes: int = MAX_NODES
    always: bool = False
    hidden_context: int = 0

    def rests(self, left: int) -> bool:
        """Return whether nothing is wanted of a pass.

        Args:
            left: rounds that ask for no draft, this one included.
        """
        if self.always or (self.hidden_layers and not self.hidden_context):
            return False
        return left > max(1, self.hidden_context if self.hidden_layers else 0)


NO_OUTPUTS = RequestedOutputs()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
    """What a forward pass over R rows returned.

    Attributes:
        logits: [R, V], on the engine's device; None where only hidden states of a subset of layers were computed.
        hidden: [R, L', D], the layers that `RequestedOutputs.hidden_layers` names, in that order; None if none.
        top_ids: Int32[R, k] of the best tokens, best first; None if none were asked for. On the host, but to be read
            only after the engine's next `read`, which waits for the device.
        top_logits: Float32[R, k], their logits.
        early: the share of the pass that was run before, when its rows were drafted; see `core.exit_cache`.
    """

    logits: Array
    hidden: Array = None
    top_ids: Int32 | None = None
    top_logits: Float32 | None = None
    early: float = 0.0

    def head(self, rows: int) -> Pass:
        """Return the pass over the first rows."""
        parts: list[Any] = [self.logits, self.hidden, self.top_ids, self.top_logits]
        logits, hidden, top_ids, top_logits = (None if part is None else part[:rows] for part in parts)
        return Pass(logits=logits, hidden=hidden, top_ids=top_ids, top_logits=top_logits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do with its model.

    Attributes:
        vocabulary: V, how many token ids the model knows.
        positions: the most tokens that the model has positions for; None for any number.
        refusal: why drafts cannot be verified, so that every text is decoded plainly; "" where they can.
        trees: whether a pass can verify a tree; else only chains.
        sequences: how many texts and branches of their drafts a pass may have together, see `Budget.branches`.
        hidden_layers: how many decoder layers can be tapped; 0 if none can.
        by_slot: whether positions are counted by the rows of a cache, padding included.
        reads_padding: whether padding in front of a text decides its tokens.
        drafts_padded: whether drafts are verified behind padding.
        media: whether the model also reads images, sound or other inputs, such as what an encoder made of a source.
        keeps_logits: whether a pass can leave out the logits of all but the last rows.
        cache_argument: the keyword by which the model's own `generate` takes a cache.
        notes: what the user should know.
    """

    vocabulary: int
    positions: int | None = None
    refusal: str = ""
    trees: bool = True
    sequences: int = UNLIMITED
    hidden_layers: int = 0
    by_slot: bool = False
    reads_padding: bool = False
    drafts_padded: bool = True
    media: bool = False
    keeps_logits: bool = False
    cache_argument: str = "past_key_values"
    notes: tuple[str, ...] = ()

    @property
    def drafts(self) -> bool:
        """Whether drafts can be verified."""
        return not self.refusal


def make_refused(capabilities: AnyCapabilities, reason: str) -> AnyCapabilities:
    """Return the capabilities of a model that is decoded without drafts for this reason, which its notes give."""
    note = f"{reason.rstrip('.')}: decoded plainly, without drafts."
    return replace(capabilities, refusal=reason, notes=(*capabilities.notes, note))


class TargetCache(Protocol):
    """The keys and values of one sequence on one model, and the passes that extend them.

    Rows that `prefill` read or that `keep` kept are committed. `forward` appends rows below those, in any number of
    calls, so that a tree can be grown level by level; `keep` or `rollback` ends that.
    """

    @property
    def length(self) -> int:
        """How many tokens are committed."""

    @property
    def unread(self) -> int:
        """How many prompt tokens `prefill` has not read yet."""

    @property
    def depth(self) -> int:
        """How deep a draft below a root may be now: what positions and rotary limits have room for."""

    @property
    def room(self) -> int:
        """How many rows a pass may append beside the root's."""
        return UNLIMITED

    @property
    def trees(self) -> bool:
        """Whether rows may branch; else each must follow the one before it."""
        return True

    @property
    def rereads(self) -> bool:
        """Whether committed tokens can be read again, see `reread`."""
        return True

    def watch_prompt(self, take: Callable[[int, Array], None]) -> None:
        """Hand the logits of every row of the prompt to `take` as `prefill` reads them; to be called before that.

        Args:
            take: gets the place of a part's first row in the prompt, and the part's logits [n, V], which hold until it
                returns. Parts that are read again are handed over again.

        Raises:
            UnsupportedError: the engine keeps the last row's only.
        """
        raise UnsupportedError("this engine returns no logits of the prompt; leave out `prompt_logprobs`.")

    def prefill(self, maximum: int | None = None, *, needs: RequestedOutputs = NO_OUTPUTS) -> Pass | None:
        """Read further prompt tokens, at most `maximum`; return None until all are read, then the last token's Pass.

        The Pass has one row; with `needs.prompt` its `hidden` holds all tokens read so far, [T', L', D]. Where a call
        fails, the cache is as it was before that call, and the call may be repeated.

        Raises:
            OutOfMemoryError: the device is full.
            UsageError: the cache was used elsewhere meanwhile.
            UnsupportedError: the model cannot give what the drafter needs.
        """

    def forward(
        self,
        tokens: Int32,
        parents: Int32,
        *,
        needs: RequestedOutputs = NO_OUTPUTS,
        layers: Sequence[int] | None = None,
        embeddings: Array = None,
    ) -> Pass:
        """Run a pass over n new rows and append them.

        Args:
            tokens: Int32[n].
            parents: Int32[n], the row that each follows, counted from the first row that is not committed; -1 for
                those that follow the last committed token.
            needs: what is wanted beside the logits.
            layers: the decoder layers to run, in order; None for all. Rows of a pass that left layers out have no keys
                in those, so such rows must be dropped, not kept.
            embeddings: [E, D], what the decoder layers read for tokens V, V + 1, ... that the model does not have; None
                if there are none. Such rows must be dropped, not kept.

        Raises:
            OutOfMemoryError: the device is full; nothing was appended.
            UsageError: the cache was used elsewhere meanwhile.
            UnsupportedError: hidden states, a subset of layers or other embeddings are not available on this model.
        """

    def layer_rows(self, layer: int) -> tuple[Array, Array]:
        """Return the keys and values [H, T, d] of the committed tokens in one layer, as cached; not to be written.

        Padding is left out. Keys are rotated where the model rotates them.

        Args:
            layer: counted from 0; -1 is the last.

        Raises:
            UnsupportedError: the layer keeps none of its own, or not all tokens.
        """
        raise UnsupportedError(
            "keys and values of single layers cannot be read on this engine; use a head that needs none."
        )

    def open_sparse(self, budget: RowBudget) -> SparseCache:
        """Return a cache of a few of this text's rows, which drafts with the same weights are grown on.

        Raises:
            UnsupportedError: passes of this model cannot read a part of their cache; the message gives the reason.
        """
        raise UnsupportedError("this engine's passes read their whole cache; use a method such as 'mix'.")

    def reread(self, count: int, layers: Sequence[int]) -> Pass:
        """Run the last `count` committed tokens again through some decoder layers; the cache stays as it is.

        Each token sees the committed tokens before the first of them as they are cached, and those read again. The Pass
        has a row for each token: what the subset of layers would have drafted after it.

        Raises:
            OutOfMemoryError: the device is full.
            UsageError: fewer tokens are committed, or the cache has rows that are not, or was used elsewhere meanwhile.
            UnsupportedError: a subset of layers is not available on this model.
        """

    def check(self, draft: DraftTree) -> None:
        """Refuse a draft that the next pass cannot take, before it is part of a pass of several sequences.

        Raises:
            ValueError: a node or a query is no token of the model, or a query has no position.
            UsageError: the cache was used elsewhere meanwhile.
        """

    def keep(self, rows: Sequence[int]) -> None:
        """Commit these rows, rising and counted like `parents`, as the sequence's next tokens; drop the others."""

    def rollback(self) -> None:
        """Drop all rows that are not committed; nothing happens where there are none."""

    def restart(self) -> None:
        """Drop everything but what was cached before `prefill`."""

    def release(self) -> None:
        """Free the keys and values; nothing can follow."""


class Engine(Protocol):
    """Runs passes of one model."""

    @property
    def capabilities(self) -> Capabilities: ...

    def sample(self, batch: Sequence[tuple[Any, int, DraftTree]]) -> None:
        """Compute some rows of the pass over this batch that follows, by other means, for `forward` to compare.

        An engine that trusts its passes does nothing. It is a step of its own since its time is not that of a pass, by
        which the size of drafts is chosen.

        Raises:
            OutOfMemoryError: the device is full.
        """
        return

    def forward(self, batch: Sequence[tuple[Any, int, DraftTree]], needs: RequestedOutputs = NO_OUTPUTS) -> list[Pass]:
        """Run one target pass over several sequences; return the Pass over the rows of each, R = N + 1 + Q.

        The rows are the root, the N nodes of the draft and its Q queries.

        Every cache must be given `keep` or `rollback` afterwards, also where this raises.

        Args:
            batch: of each sequence its TargetCache on this engine, its root and its draft.
            needs: what is wanted beside the logits.

        Raises:
            OutOfMemoryError: the device is full.
            DraftsRefusedError: the engine found that drafts change this model's output, and takes none from now on.
            UsageError, ValueError: a draft or cache is not what `TargetCache.check` accepts.
        """

    def prefill(
        self, batch: Sequence[tuple[Any, int | None]], needs: RequestedOutputs = NO_OUTPUTS
    ) -> list[Pass | None]:
        """Read further prompt tokens of several sequences, in one pass where the model can; see `TargetCache.prefill`.

        Where this raises, every cache must be given `restart`.

        Args:
            batch: of each sequence its TargetCache and the most tokens to read, None for all.
            needs: what is wanted beside the logits.

        Raises:
            OutOfMemoryError: the device is full.
            UsageError, UnsupportedError: as in `TargetCache.prefill`.
        """
        return [cache.prefill(maximum, needs=needs) for cache, maximum in batch]

    def read(self, arrays: Sequence[Array]) -> list[list[Any]]:
        """Return arrays of the device, [n] each, as lists; waits for the device once for all of them."""


def __getattr__(name: str) -> Any:
    """Return what had another name, for drafters that were written before."""
    renamed = {"Needs": RequestedOutputs, "NO_NEEDS": NO_OUTPUTS}
    if name not in renamed:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = "RequestedOutputs" if name == "Needs" else "NO_OUTPUTS"
    warnings.warn(f"{name} is called {new}.", DeprecationWarning, stacklevel=2)
    return renamed[name]
