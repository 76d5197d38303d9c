"""Gemma 4 assistants: a few layers that attend to the target's own keys and values.

Google publishes one for each model of the family (`google/gemma-4-*-it-assistant`); the formula is that of
`Gemma4AssistantForCausalLM` in transformers, which the 12B's `gemma4_unified_assistant` shares. A row reads the
target's embedding of a token and the state of the token before it: for the root, the target's own state after its final
norm, and for drafted tokens, the output of the parent row, projected back to the target's width. The layers have only
queries. Those of sliding attention read the target's last sliding layer that has keys and values of its own, those of
full attention its last full one.

All rows of a draft are at the root's position and see only committed tokens, those that the target's own query there
would see. (transformers 5.23 leaves keys of rejected tokens among them.) In large vocabularies, only the clusters with
the best centroids get logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from speculant.core.engine import TargetCache
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.assistant.layers import (
    AssistantLayer,
    AssistantShape,
    Clusters,
    ReadLayer,
    SeenRows,
    WideNorm,
)
from speculant.drafters.heads.head import HeadState, TargetParts, TextHead
from speculant.drafters.heads.layers import LayerShape, Rotary, join_tensors

_LAST = -1


class AssistantModel(nn.Module):
    """The part that checkpoints call `model`: the layers, and embeddings used only for the output projection."""

    def __init__(self, shape: AssistantShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        self.layers = nn.ModuleList([AssistantLayer(shape, kind) for kind in shape.kinds])
        self.norm = WideNorm(shape.hidden, shape.eps)


class AssistantHead(nn.Module, TextHead):
    """The weights, named as in Google's checkpoints."""

    taps = (_LAST,)
    depth = None
    ids = None
    paths = ()

    def __init__(self, shape: AssistantShape) -> None:
        """Build an assistant with random weights."""
        super().__init__()
        self.shape = shape
        self.model = AssistantModel(shape)
        self.pre_projection = nn.Linear(2 * shape.target_hidden, shape.hidden, bias=False)
        self.post_projection = nn.Linear(shape.hidden, shape.target_hidden, bias=False)
        self.masked_embedding = Clusters(shape) if shape.centroids else None
        self.rotary = nn.ModuleDict({kind: Rotary(_rotate(shape, read)) for kind, read in shape.read.items()})

    def open_text(self, tokens: Sequence[int], target: TargetParts, cache: TargetCache | None) -> HeadState:
        if cache is None:
            raise UnsupportedError(
                "Gemma 4 assistants read the target's keys and values, but were not given its cache."
            )
        return AssistantState(self, target, cache, len(tokens) - 1)

    def start_all(self, states: Sequence[HeadState]) -> list[Tensor]:
        return start_texts(_select_own(states))

    def grow_all(
        self, states: Sequence[HeadState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        return grow_texts(_select_own(states), tokens, above)

    def seen(self, cache: TargetCache, position: int) -> dict[str, SeenRows]:
        """Return, for each kind of layer, what queries at a position see: the rows of the tokens before it."""
        like, place = self.pre_projection.weight, torch.tensor([position], device=self.pre_projection.weight.device)
        found = {}
        for kind, read in self.shape.read.items():
            keys, values = (each[:, read.seen(position)].to(like) for each in cache.layer_rows(read.layer))
            rotary = self.rotary[kind]
            assert isinstance(rotary, Rotary)
            found[kind] = SeenRows(keys, values, rotary.angles(place, like))
        return found

    def run(
        self, embeddings: Tensor, hidden: Tensor, seen: Mapping[str, Sequence[SeenRows]], target: TargetParts
    ) -> Tensor:
        """Return the outputs [n, D'] of rows after the norm; rows of one text are at one position.

        Args:
            embeddings: [n, D], the target's embeddings of their tokens, text by text.
            hidden: [n, D], states of the preceding tokens.
            seen: for each kind of layer, the result of `seen` for each text.
            target: target of the head.
        """
        like = self.pre_projection.weight
        x = target.linear(self.pre_projection, torch.cat([embeddings.to(like), hidden.to(like)], dim=-1))
        for layer in self.model.layers:
            assert isinstance(layer, AssistantLayer)
            x = layer(x, seen[layer.kind], target.linear)
        found: Tensor = self.model.norm(x)
        return found

    def logits(self, outputs: Tensor, target: TargetParts) -> Tensor:
        """Return the logits [n, V] for the result of `run`; -inf for tokens of clusters that are left out."""
        if self.masked_embedding is None:
            return self._cap_logits(target.linear(self.model.embed_tokens, outputs))
        found, tokens = self.masked_embedding(outputs, self.model.embed_tokens.weight, target.linear)
        wide: Tensor = found.new_full((len(found), self.shape.vocabulary), -torch.inf)
        return wide.scatter_(1, tokens, self._cap_logits(found))

    def _cap_logits(self, logits: Tensor) -> Tensor:
        cap = self.shape.cap
        return logits if cap is None else torch.tanh(logits / cap) * cap


class AssistantState(HeadState):
    """State of one text: the target's cache of it, and the state of its newest token."""

    def __init__(self, head: AssistantHead, target: TargetParts, cache: TargetCache, length: int) -> None:
        """Start a text of which `length` tokens are known."""
        self._head, self._target, self._cache, self._length = head, target, cache, length
        self._newest: tuple[Tensor, Tensor] | None = None  # state [1, D] of the last token, and the root Int64[1]
        self._seen: dict[str, SeenRows] | None = None  # in this round
        self._passed: list[Tensor] = []  # [D] each, states that the root and the draft's rows pass to their children

    @property
    def length(self) -> int:
        return self._length

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        self._length += len(hidden)
        self._newest = self._target.norm(hidden[-1:, -1]), following[-1:]

    def start(self) -> Tensor:
        [logits] = start_texts([self])
        return logits

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        [logits] = grow_texts([self], [tokens], [above])
        return logits

    def begin(self) -> tuple[Tensor, Tensor]:
        """Start a draft; return the root Int64[1], and the state [1, D] of the token before it."""
        assert self._newest is not None
        self._passed = []
        return self._newest[1], self._newest[0]

    def stack_passed(self, above: Sequence[int]) -> Tensor:
        """Return the states [n, D] that the given rows pass to their children, -1 for the root."""
        return torch.stack([self._passed[row + 1] for row in above])

    def seen(self) -> dict[str, SeenRows]:
        """Return what queries see, for each kind of layer."""
        if self._seen is None:
            self._seen = self._head.seen(self._cache, self._length)
        return self._seen

    def drop(self) -> None:
        self._passed, self._seen = [], None

    def crop(self, length: int) -> None:
        self.drop()
        self._length, self._newest = min(self._length, length), None


def start_texts(states: Sequence[AssistantState]) -> list[Tensor]:
    """Start drafts on texts of one head; return the logits [1, V] after each root."""
    roots, hidden = zip(*(state.begin() for state in states), strict=True)
    return _run(states, join_tensors(roots), join_tensors(hidden), [1] * len(states))


def grow_texts(
    states: Sequence[AssistantState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Append draft rows to texts of one head; takes the arguments of `grow` for each text."""
    hidden = join_tensors([state.stack_passed(own) for state, own in zip(states, above, strict=True)])
    ids = torch.tensor([token for own in tokens for token in own], device=hidden.device)
    return _run(states, ids, hidden, [len(own) for own in tokens])


def _run(states: Sequence[AssistantState], ids: Tensor, hidden: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Run rows of several texts, with `counts` rows per text; return the logits [n, V] after them, by text."""
    head, target = states[0]._head, states[0]._target
    seen = [state.seen() for state in states]
    by_kind = {
        kind: [replace(own[kind], count=count) for own, count in zip(seen, counts, strict=True)] for kind in seen[0]
    }
    outputs = head.run(target.embed(ids), hidden, by_kind, target)
    passed = torch.split(target.linear(head.post_projection, outputs), [*counts])
    for state, own in zip(states, passed, strict=True):
        state._passed += own.unbind()
    return [*torch.split(head.logits(outputs, target), [*counts])]


def _select_own(states: Sequence[HeadState]) -> list[AssistantState]:
    return [state for state in states if isinstance(state, AssistantState)]


def _rotate(shape: AssistantShape, read: ReadLayer) -> LayerShape:
    return LayerShape(
        hidden=shape.hidden,
        inner=shape.inner,
        heads=shape.heads,
        kv_heads=read.kv_heads,
        head_dim=read.head_dim,
        frequencies=read.frequencies,
        scale=read.scale,
    )
