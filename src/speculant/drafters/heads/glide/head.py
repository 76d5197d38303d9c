"""GLIDE: a small decoder layer that attends to its own text and to the target's last keys and values.

Du, Jiang et al.: "GliDe with a CaPE: A Low-Hassle Method to Accelerate Speculative Decoding", ICML 2024, arXiv
2402.02082. The layer has self-attention, then cross-attention to what the target's top layer has cached for committed
tokens (keys are rotated already, so queries are rotated like the target's), then its MLP. Its own keys and values
depend only on the tokens, so those of drafted tokens stay valid when the tokens are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from speculant.core.engine import TargetCache
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.glide.cross import CrossAttention, CrossShape
from speculant.drafters.heads.head import HeadState, TargetParts, TextHead
from speculant.drafters.heads.layers import Angles, DecoderLayer, LayerShape, RMSNorm, Rotary, join_tensors


class GlideLayer(DecoderLayer):
    """A decoder layer with cross-attention before its MLP."""

    def __init__(self, shape: LayerShape, cross: CrossShape) -> None:
        super().__init__(shape)
        self.cross_attn = CrossAttention(shape.hidden, cross)


@dataclass(frozen=True, slots=True, eq=False)
class GlideRows:
    """What the layer reads of n tokens.

    Attributes:
        x: [..., n, D], embeddings.
        given: [..., n, D], the input of its own attention.
        angles, cross: cos and sin [..., n, d] for its own attention, and for that to the target's keys.
    """

    x: Tensor
    given: Tensor
    angles: Angles
    cross: Angles


class GlideHead(nn.Module, TextHead):
    """The weights, named as in the authors' checkpoints without `model.`."""

    taps = ()
    depth = None
    ids = None

    def __init__(self, shape: LayerShape, cross: CrossShape, *, vocabulary: int) -> None:
        """Build a head with random weights.

        Args:
            shape: shape of its layer.
            cross: shape of the target's attention.
            vocabulary: V of the target.
        """
        super().__init__()
        self.shape, self.cross = shape, cross
        self.embed_tokens = nn.Embedding(vocabulary, shape.hidden)
        self.layers = nn.ModuleList([GlideLayer(shape, cross)])
        self.norm = RMSNorm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, vocabulary, bias=False)
        self.rotary = Rotary(shape)

    def open_text(self, tokens: Sequence[int], target: TargetParts, cache: TargetCache | None) -> HeadState:
        if cache is None:
            raise UnsupportedError("GLIDE reads the target's keys and values, but was not given its cache.")
        return GlideState(self, tokens, target, cache)

    def extend_all(self, states: Sequence[HeadState], hidden: Sequence[Tensor], following: Sequence[Tensor]) -> None:
        extend_texts(_select_own(states), following)

    def start_all(self, states: Sequence[HeadState]) -> list[Tensor]:
        return start_texts(_select_own(states))

    def grow_all(
        self, states: Sequence[HeadState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        return grow_texts(_select_own(states), tokens, above)

    @property
    def layer(self) -> GlideLayer:
        """The only layer."""
        layer = self.layers[0]
        assert isinstance(layer, GlideLayer)
        return layer

    def rows(self, ids: Tensor, positions: Tensor, maximum: int | None = None) -> GlideRows:
        """Return the inputs of tokens Int64[..., n] at positions up to `maximum`; None if that is not known."""
        layer, x = self.layer, self.embed_tokens(ids)
        angles, cross = (
            rotary.angles(positions, x) if maximum is None else rotary.look_up(positions, maximum, x)
            for rotary in (self.rotary, layer.cross_attn.rotary)
        )
        return GlideRows(x, layer.attention_input(x), angles, cross)

    def keys_values(self, rows: GlideRows) -> tuple[Tensor, Tensor]:
        """Return its own keys and values [..., H, n, d] of rows."""
        return self.layer.self_attn.keys_values(rows.given, rows.angles)

    def outputs(self, rows: GlideRows, attend: Callable[[Tensor], Tensor], cross: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the input [..., n, D] of the output projection for rows.

        Args:
            rows: the rows.
            attend: returns its own attention's output before projection, [..., n, H * d], for queries [..., H, n, d].
            cross: returns the same for the attention to the target's keys.
        """
        layer = self.layer
        x = rows.x + layer.self_attn.o_proj(attend(layer.self_attn.queries(rows.given, rows.angles)))
        crossed = layer.cross_attn.o_proj(cross(layer.cross_attn.queries(x, rows.cross)))
        found: Tensor = self.norm(layer.finish(x, crossed))
        return found


class GlideState(HeadState):
    """State of one text.

    Attributes:
        head, target: the head and its target.
        read: the target's cache.
        cache: rows of its tokens, including the root's.
    """

    def __init__(self, head: GlideHead, tokens: Sequence[int], target: TargetParts, cache: TargetCache) -> None:
        self.head, self.target, self.read = head, target, cache
        self._text, self.cache = list(tokens[:1]), HeadCache(1)
        self._code = target.cross_code(head.layer, head.norm, head.rotary)

    @property
    def length(self) -> int:
        return len(self._text) - 1

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        extend_texts([self], [following])

    def start(self) -> Tensor:
        [logits] = start_texts([self])
        return logits

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        [logits] = grow_texts([self], [tokens], [above])
        return logits

    def take(self, following: Tensor) -> list[int]:
        """Add committed tokens Int64[n]; return the tokens of the text that have no rows."""
        self._text += following.tolist()
        return self._text[self.cache.length :]

    @property
    def root(self) -> int:
        """The newest token."""
        return self._text[-1]

    def drop(self) -> None:
        self.cache.drop()

    def crop(self, length: int) -> None:
        del self._text[length + 1 :]
        self.cache.crop(length + 1)

    @property
    def last(self) -> int:
        """The highest position of its rows, or more."""
        return self.cache.length + self.cache.drafted

    def run_code(self, ids: Tensor, positions: Tensor, seen: Tensor | None) -> Tensor | None:
        """Return the outputs [n, D] of the newest rows by fast code, which writes their keys and values.

        Args:
            ids: Int64[n], the root, or tokens for which the cache has reserved rows.
            positions: Int64[n].
            seen: Bool[n, rows], rows that each may attend to; None for all.

        Returns:
            None if there is no code for these rows.
        """
        code, count, shape = self._code, len(ids), self.head.shape
        if code is None or count > code.maximum:
            return None
        x = self.head.embed_tokens(ids)
        keys, values, length = self.cache.reserve(0, count, (shape.kv_heads, shape.head_dim), x)
        return code(x, positions, self.last, keys, values, length, seen, self.read.layer_rows(-1))


def extend_texts(states: Sequence[GlideState], following: Sequence[Tensor]) -> None:
    """Append rows of committed tokens to texts of one head."""
    head, new = states[0].head, [state.take(own) for state, own in zip(states, following, strict=True)]
    ids = _ids(head, new)
    positions = [state.cache.commit(len(own), ids.device)[0] for state, own in zip(states, new, strict=True)]
    rows = head.rows(ids, join_tensors(positions), max(state.last for state in states))
    _append(states, head.keys_values(rows), [len(own) for own in new])


def start_texts(states: Sequence[GlideState]) -> list[Tensor]:
    """Return the logits [1, V] after the root of each text of one head."""
    ids = _ids(states[0].head, [[state.root] for state in states])
    positions = torch.tensor([state.cache.length - 1 for state in states], device=ids.device)
    return _logits(states, ids, positions, [None] * len(states), new=False)


def grow_texts(
    states: Sequence[GlideState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Append draft rows to texts of one head; takes the arguments of `grow` for each text."""
    ids = _ids(states[0].head, tokens)
    branched = [state.cache.branch(own, ids.device) for state, own in zip(states, above, strict=True)]
    positions, seen = zip(*branched, strict=True)
    return _logits(states, ids, join_tensors(positions), seen, new=True)


def _append(
    states: Sequence[GlideState], added: tuple[Tensor, Tensor], sizes: list[int]
) -> list[tuple[Tensor, Tensor]]:
    """Append keys and values [H, n, d] of rows, `sizes` per text; return those of all rows, by text."""
    keys, values = (torch.split(each, sizes, dim=-2) for each in added)
    return [state.cache.append(0, *own) for state, *own in zip(states, keys, values, strict=True)]


def _logits(
    states: Sequence[GlideState], ids: Tensor, positions: Tensor, seen: Sequence[Tensor | None], *, new: bool
) -> list[Tensor]:
    """Return the logits [n, V] after the newest rows of several texts, by text.

    Args:
        states: states of the texts.
        ids: Int64[n], tokens of the rows, text by text.
        positions: Int64[n], their positions.
        seen: rows that each row of a text sees; None for one that sees all.
        new: whether the rows are to be written.
    """
    head, target = states[0].head, states[0].target
    sizes = [1 if own is None else len(own) for own in seen]
    outputs = states[0].run_code(ids, positions, seen[0]) if len(states) == 1 else None
    if outputs is None:
        rows = head.rows(ids, positions, max(state.last for state in states))
        held = _append(states, head.keys_values(rows), sizes) if new else [state.cache.rows(0) for state in states]
        outputs = head.outputs(
            rows,
            lambda queries: head.layer.self_attn.weigh_apart(queries, held, seen, sizes),
            lambda queries: _cross(states, queries, sizes),
        )
    return [*torch.split(target.linear(head.lm_head, outputs), sizes)]


def _cross(states: Sequence[GlideState], queries: Tensor, sizes: list[int]) -> Tensor:
    """Return the output of the cross-attention before its projection, each text's rows over its target's keys."""
    attention = states[0].head.layer.cross_attn
    own = zip(torch.split(queries, sizes, dim=-2), states, strict=True)
    return join_tensors([attention.weigh(each, *state.read.layer_rows(-1), None) for each, state in own])


def _ids(head: GlideHead, tokens: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([token for own in tokens for token in own], device=head.lm_head.weight.device)


def _select_own(states: Sequence[HeadState]) -> list[GlideState]:
    return [state for state in states if isinstance(state, GlideState)]
