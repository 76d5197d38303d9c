"""The contract of a head: which hidden states it reads, and what it returns for one request.

All heads, autoregressive or not, are asked in the same way: for the logits after the root, and for those after drafted
nodes, level by level. A head whose logits depend on the depth alone returns the same for all nodes of a level. So any
head drafts chains and trees of any shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from speculant.core.engine import RequestedOutputs, TargetCache
from speculant.drafters.heads.step import GrownDraft, StepCode, StepParts
from speculant.drafters.models.shapes import GrowthPlan


class LayerCode(Protocol):
    """A decoder layer of a head in faster code, for a few rows of one text and without gradients."""

    maximum: int  # rows of a call

    def __call__(
        self,
        x: Tensor,
        given: Tensor,
        angles: tuple[Tensor, Tensor],
        keys: Tensor,
        values: Tensor,
        length: int,
        seen: Tensor | None,
    ) -> Tensor | None:
        """Return the layer's output [n, D], with the keys and values of the rows written; None if it does not do these.

        Args:
            x: [n, D], the residual stream.
            given: [n, D'], what the attention reads, normalised.
            angles: cos and sin [n, d] of the rows.
            keys, values: [H_kv, room, d], contiguous; the new rows are the last of the first `length`.
            length: of keys and values, with the new rows.
            seen: Bool[n, length], which keys each row may see; None for all.
        """


class TargetParts(Protocol):
    """What a head uses of its target. The weights are the target's and are never changed.

    Attributes:
        hidden_size: D.
        vocabulary: V.
        layers: decoder layers.
        positions: the most tokens that the target has positions for; None for any number.
        config: the config of the target's text model, as transformers has it.
    """

    hidden_size: int
    vocabulary: int
    layers: int
    positions: int | None
    config: object

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings [..., D] of tokens Int64[...]."""

    def embedding_rows(self, ids: Tensor) -> Tensor:
        """Return the weights [..., D] of the embeddings of tokens Int64[...], which some models scale on reading."""

    def norm(self, hidden: Tensor) -> Tensor:
        """Return the output [..., D] of the last layer after the final norm."""

    def project(self, hidden: Tensor) -> Tensor:
        """Return the target's logits [..., V] of normalised hidden states [..., D]."""

    def projection(self) -> Tensor:
        """Return the weights [V, D] of the target's logits, before any bias and cap; heads may begin with a copy."""

    def linear(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return module(x) of a linear layer of a head, by faster code where the engine has some for so few rows."""
        found: Tensor = module(x)
        return found

    def layer_code(self, layer: nn.Module) -> LayerCode | None:
        """Return faster code for a decoder layer of a head; None where there is none.

        Args:
            layer: with the parts and names of `layers.DecoderLayer`.
        """
        return None

    def step_code(self, parts: StepParts) -> StepCode | None:
        """Return faster code for whole steps of a head; None where there is none."""
        return None

    def new_norm(self) -> nn.Module:
        """Return a copy of the final norm, for a head to put its own weights into."""

    def new_layer(self, weights: Mapping[str, Tensor] | None, kind: str) -> nn.Module:
        """Return a decoder layer of the target's own class, called as a `target_layer.TargetLayer`.

        Args:
            weights: by the names of that class, where experts may have a tensor each; None for a copy of the target's
                last layer of the kind.
            kind: of its attention, as `layer_types` of configs names it.

        Raises:
            UnsupportedError: the class has no such layer, or one with other weights; the message names them.
        """

    def plain_shape(self, layer: nn.Module, norms: Sequence[nn.Module]) -> Mapping[str, Any] | None:
        """Return the sizes of a layer that computes what `layers.DecoderLayer` does, with tensors of the same names.

        Args:
            layer: what `new_layer` returned.
            norms: of the target's class, around it.

        Returns:
            The arguments of `layers.LayerShape`; None where the layer or a norm computes something else.
        """
        return None

    def first_layers(self, count: int) -> tuple[Sequence[nn.Module], Mapping[str, Any]] | None:
        """Return the target's first layers as `layers.DecoderLayer`s of its own weights, and their sizes.

        Returns:
            The layers, and the arguments of `layers.LayerShape`; None where they compute something else, or where
            embeddings are changed before them.
        """
        return None

    def with_output_rows(self, ids: Tensor) -> TargetParts | None:
        """Return the same parts with logits of some tokens Int64[V'] alone; None where the projection is no matrix."""
        return None

    def frequencies(self, rope: Mapping[str, Any], head_dim: int, positions: int) -> tuple[Tensor, float]:
        """Return the rotary frequencies Float32[head_dim / 2] that a config describes, and the scale of cos and sin.

        Raises:
            UnsupportedError: the kind of rotary embedding is unknown.
        """


@runtime_checkable
class TargetPasses(TargetParts, Protocol):
    """A target that can also be run, which the training of some heads needs. Its weights stay as they are."""

    def text_keys(self, ids: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values [B, H, T, d] of texts Int64[B, T] in a layer, as a cache holds them.

        Args:
            ids: the texts, padded behind.
            layer: counted from 0; -1 is the last.

        Raises:
            UnsupportedError: the layer keeps none of its own.
        """

    def run(self, embeddings: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """Return the logits [B, n, V] of rows that are given as embeddings [B, n, D], with their gradients.

        Args:
            embeddings: what the decoder layers read.
            positions: Int64[B, n].
            seen: Bool[B, 1, n, n], which rows each may see.

        Raises:
            UnsupportedError: the model takes no masks.
        """


class HeadState(Protocol):
    """A head's view of one text: a row for every token whose hidden states are known, and rows of the draft below them.

    The root is the token after the last of these: `extend` gives every row the token that follows it. Row k belongs to
    the token at position k of the text; the first of them may be missing where a text was cached by other means.
    """

    @property
    def length(self) -> int:
        """How many tokens of the text have rows, those missing at the beginning included."""

    @property
    def room(self) -> int | None:
        """How deep a draft may be now, where the head has positions of its own; None for any depth."""
        return None

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        """Append rows of committed tokens; rows of a draft must be dropped before.

        Args:
            hidden: [n, L', D], the target's own states at these tokens, of the layers that the head taps.
            following: Int64[n], the token after each; the last one is the root.
        """

    def start(self) -> Tensor:
        """Return the logits [1, V'] after the root."""

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        """Append rows of n drafted tokens; return the logits [n, V'] after them.

        Args:
            tokens: n of them, which need not be of one depth.
            above: the row of the draft that each follows, counted from its first and appended by earlier calls; -1 for
                the root.
        """

    def drop(self) -> None:
        """Drop the rows of the draft."""

    def crop(self, length: int) -> None:
        """Drop the rows of the draft, and those of all tokens from this position on."""


class Head(Protocol):
    """A head with its weights, for any number of requests at once.

    Attributes:
        taps: the decoder layers whose output it reads, from 0; -1 is the last, before the final norm. Public
            checkpoints name boundaries (0: the embeddings) or layers, which loaders turn into these.
        depth: the deepest token that it can draft; None for any.
        ids: Int64[V'], the target's token of each of its logits; None if they are the target's own.
        paths: the static tree that is published for such heads, as rank paths (`static_tree`); () for none.
    """

    taps: tuple[int, ...]
    depth: int | None
    ids: Tensor | None
    paths: tuple[tuple[int, ...], ...] = ()

    def open(self, first: int, target: TargetParts) -> HeadState:
        """Return the state of a text whose tokens before the position `first` have no rows."""

    def with_vocabulary(self, ids: Tensor) -> Head | None:
        """Return a head of the same weights for a target that projects to some tokens Int64[V'] alone.

        Returns:
            None where the head has a projection or a reduced vocabulary of its own, or drafts in another way.
        """
        return None

    def extend_all(self, states: Sequence[HeadState], hidden: Sequence[Tensor], following: Sequence[Tensor]) -> None:
        """Append rows of committed tokens to several texts; heads that can, run them together."""
        for state, own, tokens in zip(states, hidden, following, strict=True):
            state.extend(own, tokens)

    def start_all(self, states: Sequence[HeadState]) -> list[Tensor]:
        """Return the logits after the roots of several texts; heads that can, compute them together."""
        return [state.start() for state in states]

    def grow_all(
        self, states: Sequence[HeadState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        """Append rows of drafts to several texts, return the logits after them; heads that can, run them together."""
        return [state.grow(own, rows) for state, own, rows in zip(states, tokens, above, strict=True)]

    def grow_whole_all(
        self, states: Sequence[HeadState], plans: Sequence[GrowthPlan], temperatures: Sequence[float]
    ) -> list[GrownDraft | None]:
        """Return whole drafts of chosen tokens, grown by faster code; None where there is none. Rows are not kept.

        Args:
            states: of the texts.
            plans: of their drafts.
            temperatures: of their probabilities.
        """
        return [None] * len(states)


@runtime_checkable
class TextHead(Protocol):
    """A head that reads the text, with a model of its own or with the target's cache, and of prompts no hidden states.

    Where its `taps` are (), states get [n, 0, 0] for hidden states and hold all tokens from the first one on. Otherwise
    they get those of the prompt's last token and of all that follow. They end with the request.
    """

    def open_text(self, tokens: Sequence[int], target: TargetParts, cache: TargetCache | None) -> HeadState:
        """Return the state of a text that begins with these tokens, of which no row is there yet.

        Args:
            tokens: one or more.
            target: of the head.
            cache: the target's of the request, lent, for heads that read or run the target.
        """


@runtime_checkable
class LayerHead(Protocol):
    """A head that reads the target's states, and runs layers of the target on its own cache."""

    def open_below(
        self, first: int, target: TargetParts, cache: TargetCache | None, kept: HeadState | None
    ) -> HeadState:
        """Return the state of a text whose tokens before the position `first` have no rows, or a kept one.

        Args:
            first: the position.
            target: of the head.
            cache: the target's of the request, lent.
            kept: a state with the rows of these tokens; None if there is none.

        Raises:
            UnsupportedError: there is no cache, or its first layers cannot be run alone.
        """

    def end(self, state: HeadState) -> None:
        """Give the cache of a request back that has ended, whose state is kept."""


_CONTEXT = 16  # rounds whose states a head reads before it drafts again after a pause


def head_needs(head: Head) -> RequestedOutputs:
    """Return what a head wants back from passes: the states that it reads, of prompts too unless it reads the text."""
    if isinstance(head, TextHead):
        return RequestedOutputs(hidden_layers=head.taps, prompt=not head.taps, always=True)
    return RequestedOutputs(hidden_layers=head.taps, hidden_context=_CONTEXT, prompt=True)
