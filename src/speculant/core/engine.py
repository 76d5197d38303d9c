"""The interface of an engine, which runs forward passes of the target, and of its cache of one sequence.

`EngineArray` stands for the engine's own type of arrays: torch tensors on the model's device, NumPy arrays for recorded
outputs. So nothing here imports an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from speculant.core.errors import UnsupportedError
from speculant.core.former_names import resolve_former
from speculant.core.sparse_cache import RowBudget, SparseCache
from speculant.core.sublayers import Sublayers
from speculant.core.tree import ROOT, UNLIMITED, DraftTree, Float32, Int32, Int64

EngineArray = Any
AnyCapabilities = TypeVar("AnyCapabilities", bound="Capabilities")

LAST_LAYER = -1  # as the number of a hidden layer: the last one's output, before the final norm
MAX_NODES = 64  # default maximum of a draft whose size is chosen per round


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedOutputs:
    """The outputs that a drafter requests from the target's passes.

    Attributes:
        top_k: number of the target's most probable tokens at every row, including rejected nodes; 0 for none.
        hidden_layers: the decoder layers whose output it reads, counted from 0; -1 is the last, before the final norm.
        prompt: whether it also needs the hidden states of the prompt.
        queries: maximum number of query rows in its drafts, see `tree.Queries`; models that verify only chains take
            none.
        explores: whether it learns from `top_k` at rejected nodes, which sizing then counts as a gain.
        max_nodes: maximum nodes of a draft whose size is chosen per round.
        always: whether it needs the outputs of every pass; otherwise they are omitted in pauses of drafting, so that
            passes cost no more than plain ones.
        hidden_context: number of rounds before the end of a pause in which hidden states are needed again, for drafters
            whose `Session.follow` restarts from them; 0 if they are needed from every pass.
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
        """Return whether a pass needs no outputs besides the logits.

        Args:
            left: number of rounds without a draft that remain, including this one.
        """
        if self.always or (self.hidden_layers and not self.hidden_context):
            return False
        return left > max(1, self.hidden_context if self.hidden_layers else 0)


NO_OUTPUTS = RequestedOutputs()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
    """The outputs of a forward pass over R rows.

    Attributes:
        logits: [R, V], on the engine's device; None if only hidden states of a subset of layers were computed.
        hidden: [R, L', D], outputs of the layers that `RequestedOutputs.hidden_layers` names, in that order; None if
            none.
        top_ids: Int32[R, k], the most probable tokens, best first; None if not requested. On the host, but valid only
            after the engine's next `read`, which waits for the device.
        top_logits: Float32[R, k], their logits.
        early: share of the pass that already ran while its rows were drafted; see `core.exit_cache`.
    """

    logits: EngineArray
    hidden: EngineArray = None
    top_ids: Int32 | None = None
    top_logits: Float32 | None = None
    early: float = 0.0

    def head(self, rows: int) -> Pass:
        """Return the outputs of the first `rows` rows."""
        parts: list[Any] = [self.logits, self.hidden, self.top_ids, self.top_logits]
        logits, hidden, top_ids, top_logits = (None if part is None else part[:rows] for part in parts)
        return Pass(logits=logits, hidden=hidden, top_ids=top_ids, top_logits=top_logits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do with its model.

    Attributes:
        vocabulary: V, the number of token ids of the model.
        positions: maximum number of tokens that the model has positions for; None if unlimited.
        refusal: why drafts cannot be verified, so that every text is decoded plainly; "" if they can.
        trees: whether a pass can verify a tree; otherwise only chains.
        sequences: maximum number of texts plus branches of their drafts in a pass, see `Budget.branches`.
        hidden_layers: number of decoder layers whose output can be read; 0 if none.
        by_slot: whether positions count the rows of a cache, including padding.
        media: whether the model also reads images, audio or other inputs, such as the output of an encoder.
        keeps_logits: whether a pass can compute the logits of only the last rows.
        cache_argument: the keyword of the cache in the model's own `generate`.
        notes: remarks for the user.
    """

    vocabulary: int
    positions: int | None = None
    refusal: str = ""
    trees: bool = True
    sequences: int = UNLIMITED
    hidden_layers: int = 0
    by_slot: bool = False
    media: bool = False
    keeps_logits: bool = False
    cache_argument: str = "past_key_values"
    notes: tuple[str, ...] = ()

    @property
    def drafts(self) -> bool:
        """Whether drafts can be verified."""
        return not self.refusal


def make_refused(capabilities: AnyCapabilities, reason: str) -> AnyCapabilities:
    """Return the capabilities of a model that is decoded without drafts, with the reason added to its notes."""
    note = f"{reason.rstrip('.')}: decoded plainly, without drafts."
    return replace(capabilities, refusal=reason, notes=(*capabilities.notes, note))


class TargetCache(Protocol):
    """The KV cache of one sequence on one model, and the passes that extend it.

    Rows that `prefill` read or `keep` kept are committed. `forward` appends uncommitted rows after them, in any number
    of calls, so that a tree can be grown level by level, until `keep` or `rollback`.
    """

    @property
    def length(self) -> int:
        """Number of committed tokens."""

    @property
    def unread(self) -> int:
        """Number of prompt tokens that `prefill` has not read yet."""

    @property
    def depth(self) -> int:
        """Maximum depth of a draft after the prompt and the committed tokens, by positions and rotary limits."""

    @property
    def room(self) -> int:
        """Maximum number of rows that a pass after the prompt may append besides the root's."""
        return UNLIMITED

    @property
    def trees(self) -> bool:
        """Whether rows may branch; otherwise each must follow the one before it."""
        return True

    @property
    def rereads(self) -> bool:
        """Whether committed tokens can be read again; see `reread`."""
        return False

    def watch_prompt(self, take: Callable[[int, EngineArray], None]) -> None:
        """Register a callback for the logits of all prompt rows; must be called before `prefill`.

        Args:
            take: called for each chunk with the position of its first row in the prompt and its logits [n, V], which
                are valid until it returns. Chunks that are read again are passed again.

        Raises:
            UnsupportedError: the engine computes the logits of the last row only.
        """
        raise UnsupportedError("this engine returns no logits of the prompt; leave out `prompt_logprobs`.")

    def prefill(self, maximum: int | None = None, *, needs: RequestedOutputs = NO_OUTPUTS) -> Pass | None:
        """Read at most `maximum` more prompt tokens; return None until all are read, then the last token's Pass.

        The Pass has one row; with `needs.prompt` its `hidden` holds all tokens read so far, [T', L', D]. If a call
        fails, the cache is as it was before, and the call may be repeated.

        Raises:
            OutOfMemoryError: the device is full.
            UsageError: the cache has been used elsewhere in the meantime.
            UnsupportedError: the model cannot return the outputs that the drafter needs.
        """

    def forward(
        self,
        tokens: Int32,
        parents: Int32,
        *,
        needs: RequestedOutputs = NO_OUTPUTS,
        layers: Sequence[int] | Sublayers | None = None,
        embeddings: EngineArray = None,
    ) -> Pass:
        """Run a pass over n new rows and append them.

        Args:
            tokens: Int32[n].
            parents: Int32[n], the parent row of each, counted from the first uncommitted row; -1 for children of the
                last committed token.
            needs: outputs to return besides the logits.
            layers: the decoder layers to run, in order, or sublayers of them; None for all. If some are skipped, the
                rows must be dropped, not kept: they have no keys in layers whose attention was skipped.
            embeddings: [E, D], input embeddings of extra tokens V, V + 1, ... outside the model's vocabulary; None if
                there are none. Their rows must be dropped, not kept.

        Raises:
            OutOfMemoryError: the device is full; nothing was appended.
            UsageError: the cache has been used elsewhere in the meantime.
            UnsupportedError: hidden states, these layers or sublayers, or other embeddings are not available on this
                model.
        """

    def layer_rows(self, layer: int) -> tuple[EngineArray, EngineArray]:
        """Return the cached keys and values [H, T, d] of the committed tokens in one layer; read-only.

        Padding is left out. Keys are rotated if the model rotates them.

        Args:
            layer: counted from 0; -1 is the last.

        Raises:
            UnsupportedError: the layer has no keys and values of its own, or does not keep all tokens.
        """
        raise UnsupportedError(
            "keys and values of single layers cannot be read on this engine; use a head that needs none."
        )

    def open_sparse(self, budget: RowBudget) -> SparseCache:
        """Return a cache of a subset of this text's rows, on which the same weights can draft.

        Raises:
            UnsupportedError: passes of this model cannot read part of their cache; the message gives the reason.
        """
        raise UnsupportedError("this engine's passes read their whole cache; use a method such as 'mix'.")

    def reread(self, tokens: Int32, layers: Sequence[int] | Sublayers) -> Pass:
        """Run the last committed tokens again through some layers or sublayers, without changing the cache.

        Each token attends to the cached tokens before the reread ones, and to the reread ones. The Pass has a row for
        each token: what the subset of layers would have drafted after it.

        Args:
            tokens: Int32[n], the last n committed tokens; the caller keeps the text, the cache only its rows.
            layers: the decoder layers to run, in order, or sublayers of them.

        Raises:
            OutOfMemoryError: the device is full.
            ValueError: a token is not one of the model.
            UsageError: fewer tokens are committed, there are uncommitted rows, or the cache has been used elsewhere in
                the meantime.
            UnsupportedError: these layers or sublayers cannot be run alone on this model.
        """
        raise UnsupportedError("single layers of this model cannot be run on this engine; use a method such as 'mix'.")

    def check(self, draft: DraftTree) -> None:
        """Check that the next pass can verify a draft, before the draft joins a pass of several sequences.

        Raises:
            ValueError: a node or query is not a token of the model, or a query has no position.
            UsageError: the cache has been used elsewhere in the meantime.
        """

    def keep(self, rows: Sequence[int]) -> None:
        """Commit these rows, ascending and counted like `parents`, as the sequence's next tokens; drop the others."""

    def rollback(self) -> None:
        """Drop all uncommitted rows, if any."""

    def restart(self) -> None:
        """Drop everything except what was cached before `prefill`."""

    def release(self) -> None:
        """Free the keys and values; the cache cannot be used afterwards."""


def check_path(rows: Sequence[int], parents: Sequence[int] | Int64) -> None:
    """Check that rows to keep form a path down from the last committed token.

    Args:
        rows: the rows.
        parents: the parent of every uncommitted row; -1 for children of that token.

    Raises:
        ValueError: they do not.
    """
    above = ROOT
    for row in rows:
        if not 0 <= row < len(parents) or parents[row] != above:
            raise ValueError(f"the rows {list(rows)} are not a path below the committed text")
        above = row


class Engine(Protocol):
    """Runs passes of one model."""

    @property
    def capabilities(self) -> Capabilities: ...

    def prepare_check(self, batch: Sequence[tuple[Any, int, DraftTree]]) -> None:
        """Compute some rows of this batch's next pass by other means, for `forward` to compare with.

        By default it does nothing, for engines that trust their passes. It is a separate step because its time must not
        count as time of the pass, by which draft sizes are chosen.

        Raises:
            OutOfMemoryError: the device is full.
        """
        return

    def forward(self, batch: Sequence[tuple[Any, int, DraftTree]], needs: RequestedOutputs = NO_OUTPUTS) -> list[Pass]:
        """Run one target pass over several sequences; return the Pass over the rows of each, R = N + 1 + Q.

        The rows are the root, the N nodes of the draft and its Q queries.

        `keep` or `rollback` must be called on every cache afterwards, even if this raises.

        Args:
            batch: for each sequence, its TargetCache on this engine, its root and its draft.
            needs: outputs to return besides the logits.

        Raises:
            OutOfMemoryError: the device is full.
            DraftsRefusedError: the engine found that drafts change this model's output and accepts none from now on.
            UsageError, ValueError: `TargetCache.check` rejects a draft or cache.
        """

    def prefill(
        self, batch: Sequence[tuple[Any, int | None]], needs: RequestedOutputs = NO_OUTPUTS
    ) -> list[Pass | None]:
        """Read more prompt tokens of several sequences, in one pass if the model can; see `TargetCache.prefill`.

        If this raises, `restart` must be called on every cache.

        Args:
            batch: for each sequence, its TargetCache and the maximum number of tokens to read, None for all.
            needs: outputs to return besides the logits.

        Raises:
            OutOfMemoryError: the device is full.
            UsageError, UnsupportedError: as in `TargetCache.prefill`.
        """
        return [cache.prefill(maximum, needs=needs) for cache, maximum in batch]

    def read(self, arrays: Sequence[EngineArray]) -> list[list[Any]]:
        """Transfer device arrays, [n] each, to the host as lists, waiting for the device only once."""


__getattr__ = resolve_former(__name__, {"Needs": "RequestedOutputs", "NO_NEEDS": "NO_OUTPUTS"})
