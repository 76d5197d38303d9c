"""The interface of a head: which hidden states it reads, and what it returns for a request.

All heads, autoregressive or not, are used in the same way: they return the logits after the root, and those after
drafted nodes, level by level. A head whose logits depend only on the depth returns the same for all nodes of a level.
So any head drafts chains and trees of any shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from speculant.core.engine import RequestedOutputs, TargetCache
from speculant.core.errors import UsageError
from speculant.drafters.heads.layers import RMSNorm, Rotary
from speculant.drafters.heads.step import GrownDraft, StepCode, StepParts
from speculant.drafters.models.shapes import GrowthPlan


class LayerCode(Protocol):
    """Fast code for a head's decoder layer, for a few rows of one text and without gradients."""

    maximum: int  # maximum rows per call

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
        """Return the layer's output [n, D] and write the rows' keys and values; None if unsupported for these rows.

        Args:
            x: [n, D], residual stream.
            given: [n, D'], normalised input of the attention.
            angles: cos and sin [n, d] of the rows.
            keys, values: [H_kv, room, d], contiguous; the new rows are the last of the first `length`.
            length: number of rows of keys and values, including the new ones.
            seen: Bool[n, length], keys that each row may see; None for all.
        """


class CrossLayerCode(Protocol):
    """Fast code for a decoder layer with cross-attention before its MLP, and for the norm after it; see `LayerCode`."""

    maximum: int  # maximum rows per call

    def __call__(
        self,
        x: Tensor,
        positions: Tensor,
        last: int,
        keys: Tensor,
        values: Tensor,
        length: int,
        seen: Tensor | None,
        read: tuple[Tensor, Tensor],
    ) -> Tensor | None:
        """Return the norm's output [n, D] and write the rows' keys and values; None if unsupported for these rows.

        Args:
            x: [n, D], embeddings.
            positions: Int64[n], positions of the rows in their text.
            last: highest position.
            keys, values, length, seen: as for `LayerCode`.
            read: keys and values [H_kv, m, d] of the cross-attention, of which every row sees all.
        """


class TargetParts(Protocol):
    """Parts of the target that a head uses. The weights belong to the target and are never changed.

    Attributes:
        hidden_size: D.
        vocabulary: V.
        layers: number of decoder layers.
        positions: maximum number of positions of the target; None for no limit.
        source_size: size S of the encoder's states that an encoder-decoder reads; 0 for decoder-only targets.
        config: transformers' config of the target's text model.
    """

    hidden_size: int
    vocabulary: int
    layers: int
    positions: int | None
    source_size: int
    config: object

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings [..., D] of tokens Int64[...]."""

    def embedding_rows(self, ids: Tensor) -> Tensor:
        """Return the embedding weights [..., D] of tokens Int64[...], before any scaling that some models apply."""

    def norm(self, hidden: Tensor) -> Tensor:
        """Apply the final norm to the output [..., D] of the last layer."""

    def project(self, hidden: Tensor) -> Tensor:
        """Return the target's logits [..., V] for normalised hidden states [..., D]."""

    def projection(self) -> Tensor:
        """Return the weights [V, D] of the target's output projection, without bias and cap; heads may copy them."""

    def linear(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return module(x) for a linear layer of a head, using fast code if the engine has some for this few rows."""
        found: Tensor = module(x)
        return found

    def layer_code(self, layer: nn.Module) -> LayerCode | None:
        """Return fast code for a head's decoder layer, or None.

        Args:
            layer: layer with the parts and names of `layers.DecoderLayer`.
        """
        return None

    def cross_code(self, layer: nn.Module, norm: RMSNorm, rotary: Rotary) -> CrossLayerCode | None:
        """Return fast code for a head's decoder layer with cross-attention, or None.

        Args:
            layer: as for `layer_code`, with a `glide.cross.CrossAttention` as `cross_attn`.
            norm: the norm after it.
            rotary: rotary embedding of its own attention.
        """
        return None

    def step_code(self, parts: StepParts) -> StepCode | None:
        """Return fast code for whole steps of a head, or None."""
        return None

    def new_norm(self) -> nn.Module:
        """Return a copy of the final norm, into which a head can load its own weights."""

    def new_layer(self, weights: Mapping[str, Tensor] | None, kind: str) -> nn.Module:
        """Return a decoder layer of the target's own class, to be called like a `target_layer.TargetLayer`.

        Args:
            weights: by the names of that class, with experts possibly as separate tensors; None for a copy of the
                target's last layer of the kind.
            kind: kind of its attention, as named in `layer_types` of configs.

        Raises:
            UnsupportedError: the class has no such layer, or one with other weights; the message names them.
        """

    def plain_shape(self, layer: nn.Module, norms: Sequence[nn.Module]) -> Mapping[str, Any] | None:
        """Return the sizes of a layer that computes the same as `layers.DecoderLayer`, with the same tensor names.

        Args:
            layer: result of `new_layer`.
            norms: norms of the target's class around the layer.

        Returns:
            The arguments of `layers.LayerShape`; None if the layer or a norm computes something else.
        """
        return None

    def first_layers(self, count: int) -> tuple[Sequence[nn.Module], Mapping[str, Any]] | None:
        """Return the target's first layers as `layers.DecoderLayer`s that share its weights, and their sizes.

        Returns:
            The layers, and the arguments of `layers.LayerShape`; None if they compute something else, or if embeddings
            are modified before them.
        """
        return None

    def with_output_rows(self, ids: Tensor) -> TargetParts | None:
        """Return the same parts with logits for only the tokens Int64[V']; None if the projection is not a matrix."""
        return None

    def frequencies(self, rope: Mapping[str, Any], head_dim: int, positions: int) -> tuple[Tensor, float]:
        """Return the rotary frequencies Float32[head_dim / 2] given by a config, and the scale of cos and sin.

        Raises:
            UnsupportedError: the kind of rotary embedding is unknown.
        """


@runtime_checkable
class TargetPasses(TargetParts, Protocol):
    """A target that can also be run, as the training of some heads requires. Its weights stay unchanged."""

    def text_keys(self, ids: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values [B, H, T, d] of texts Int64[B, T] in a layer, as stored in a cache.

        Args:
            ids: texts, padded on the right.
            layer: index of the layer from 0; -1 is the last.

        Raises:
            UnsupportedError: the layer has no keys and values of its own.
        """

    def run(self, embeddings: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """Return the logits [B, n, V] of rows given as embeddings [B, n, D], with gradients.

        Args:
            embeddings: input of the decoder layers.
            positions: Int64[B, n].
            seen: Bool[B, 1, n, n], rows that each may see.

        Raises:
            UnsupportedError: the model does not accept masks.
        """


class HeadState(Protocol):
    """A head's state for one text: a row for each token whose hidden states are known, and the draft's rows below them.

    The root is the token after the last of these rows: `extend` gives every row the token that follows it. Row k
    belongs to the token at position k of the text; the first rows may be missing if a prefix was already cached.
    """

    @property
    def length(self) -> int:
        """Number of tokens of the text that have rows, including those missing at the beginning."""

    @property
    def room(self) -> int | None:
        """Current maximum depth of a draft, if the head has positions of its own; None for no limit."""
        return None

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        """Append rows of committed tokens; draft rows must have been dropped.

        Args:
            hidden: [n, L', D], the target's states at these tokens, from the layers that the head taps.
            following: Int64[n], the token after each; the last one is the root.
        """

    def start(self) -> Tensor:
        """Return the logits [1, V'] after the root."""

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        """Append rows of n drafted tokens; return the logits [n, V'] after them.

        Args:
            tokens: n tokens, not necessarily of the same depth.
            above: parent of each among the draft rows appended by earlier calls; -1 for the root.
        """

    def drop(self) -> None:
        """Drop the rows of the draft."""

    def crop(self, length: int) -> None:
        """Drop the rows of the draft, and those of all tokens from position `length` on."""


class Head(Protocol):
    """A head with its weights, for any number of requests at once.

    Attributes:
        taps: decoder layers whose output it reads, from 0; -1 is the last, before the final norm. Public checkpoints
            name boundaries (0: the embeddings) or layers, which loaders convert to these.
        depth: maximum depth of a drafted token; None for no limit.
        ids: Int64[V'], the target's token for each of its logits; None if the vocabularies are equal.
        paths: published static tree for such heads, as rank paths (`static_tree`); () for none.
        parallel: whether logits depend only on the depth of a node, and those of all depths are read together.
    """

    taps: tuple[int, ...]
    depth: int | None
    ids: Tensor | None
    paths: tuple[tuple[int, ...], ...] = ()
    parallel: bool = False

    def open(self, first: int, target: TargetParts) -> HeadState:
        """Return the state of a text whose tokens before position `first` have no rows."""

    def with_vocabulary(self, ids: Tensor) -> Head | None:
        """Return a head with the same weights for a target that projects to only the tokens Int64[V'].

        Returns:
            None if the head has its own projection or a reduced vocabulary already, or drafts in another way.
        """
        return None

    def extend_all(self, states: Sequence[HeadState], hidden: Sequence[Tensor], following: Sequence[Tensor]) -> None:
        """Append rows of committed tokens to several texts; heads that can run them together."""
        for state, own, tokens in zip(states, hidden, following, strict=True):
            state.extend(own, tokens)

    def start_all(self, states: Sequence[HeadState]) -> list[Tensor]:
        """Return the logits after the roots of several texts; heads that can compute them together."""
        return [state.start() for state in states]

    def grow_all(
        self, states: Sequence[HeadState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        """Append draft rows to several texts and return the logits after them; heads that can run them together."""
        return [state.grow(own, rows) for state, own, rows in zip(states, tokens, above, strict=True)]

    def level_logits(self, states: Sequence[HeadState], levels: int) -> list[Tensor]:
        """Return the logits [levels, V'] after the root and after nodes at depths 1, 2, ... of each text.

        Args:
            states: states of texts on a head that is `parallel`.
            levels: number of depths, at most `depth` and the room of each text.
        """
        raise TypeError("the logits of this head depend on drafted tokens")

    def grow_whole_all(
        self, states: Sequence[HeadState], plans: Sequence[GrowthPlan], temperatures: Sequence[float]
    ) -> list[GrownDraft | None]:
        """Return whole deterministic drafts grown by fast code, or None for each without code. Rows are not kept.

        Args:
            states: states of the texts.
            plans: growth plans of their drafts.
            temperatures: temperatures of their probabilities.
        """
        return [None] * len(states)


@runtime_checkable
class TextHead(Head, Protocol):
    """A head that reads the text, with its own model or the target's cache, instead of the prompt's hidden states.

    If its `taps` are (), states get hidden states of shape [n, 0, 0] and store all tokens from the first one on.
    Otherwise they get the hidden states of the prompt's last token and of all later ones. They end with the request.
    """

    def open(self, first: int, target: TargetParts) -> HeadState:
        raise UsageError("this head reads text; open it with `open_text`.")

    def open_text(self, tokens: Sequence[int], target: TargetParts, cache: TargetCache | None) -> HeadState:
        """Return the state of a text that begins with these tokens, without any rows yet.

        Args:
            tokens: at least one token.
            target: target of the head.
            cache: the target's cache of the request, lent to heads that read or run the target.
        """


@runtime_checkable
class SourceHead(Protocol):
    """A head that reads the text, and what the encoder of an encoder-decoder target has read; its `taps` are ()."""

    def open_source(self, tokens: Sequence[int], target: TargetParts, source: Tensor) -> HeadState:
        """Return the state of a text that begins with these tokens, without any rows yet.

        Args:
            tokens: at least one token of the decoder's text.
            target: target of the head.
            source: [n, S], the encoder's states.
        """


@runtime_checkable
class LayerHead(Protocol):
    """A head that reads the target's states, and runs layers of the target on its own cache."""

    def open_below(
        self, first: int, target: TargetParts, cache: TargetCache | None, kept: HeadState | None
    ) -> HeadState:
        """Return the state of a text whose tokens before position `first` have no rows, or reuse a kept state.

        Args:
            first: the position.
            target: target of the head.
            cache: the target's cache of the request, lent to the head.
            kept: state with the rows of these tokens, or None.

        Raises:
            UnsupportedError: there is no cache, or its first layers cannot be run on their own.
        """

    def end(self, state: HeadState) -> None:
        """Release the lent cache of an ended request, whose state is kept."""


_CONTEXT = 16  # rounds whose states a head reads before it drafts again after a pause


def head_needs(head: Head) -> RequestedOutputs:
    """Return what a head needs from passes: the states it reads, also for prompts unless it reads the text itself.

    A head that reads nothing but the text needs nothing during pauses, after which it reads what was committed.
    """
    if isinstance(head, TextHead):
        return RequestedOutputs(hidden_layers=head.taps, prompt=not head.taps, always=bool(head.taps))
    return RequestedOutputs(hidden_layers=head.taps, hidden_context=_CONTEXT, prompt=True)
