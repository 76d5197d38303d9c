"""Kangaroo: an adapter that drafts from the target's hidden states after a shallow layer.

Liu, Tang, Liu, Ni, Han, Wang: "Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting", NeurIPS 2024,
arXiv 2404.18911. The first layers of the target run on its own cache. The adapter, which is attention between two
norms, reads their output, and the target's output projection computes the logits of the next token. So a drafted token
costs the first layers and the adapter, and the verifying pass reuses its rows of the first layers.

Row k reads the state of token k. The states of drafted tokens are the target's own, so the rows of accepted tokens
remain valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from speculant.core.engine import TargetCache
from speculant.core.errors import UnsupportedError
from speculant.core.exit_cache import ExitCache
from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.head import Head, HeadState, TargetParts
from speculant.drafters.heads.layers import Attention, LayerShape, RMSNorm, Rotary
from speculant.drafters.heads.step import DraftRoot, GrownDraft, StepCode, StepParts, TextRows
from speculant.drafters.models.shapes import GrowthPlan


class ExitLayer(nn.Module):
    """Pre-norm attention without an MLP."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)


class ExitHead(nn.Module, Head):
    """The weights, named as in the authors' checkpoints; see `heads.head.Head`."""

    depth = None
    ids = None
    paths = ()

    def __init__(self, shape: LayerShape, *, exit_layer: int) -> None:
        """Build an adapter with random weights.

        Args:
            shape: shape of its attention; D is the target's hidden size.
            exit_layer: number of the target's first layers that run below it.
        """
        super().__init__()
        self.shape, self.exit_layer = shape, exit_layer
        self.taps = (exit_layer - 1,)
        self.layers = nn.ModuleList([ExitLayer(shape)])
        self.norm = RMSNorm(shape.hidden, shape.eps)
        self.rotary = Rotary(shape)

    @property
    def layer(self) -> ExitLayer:
        """The adapter's layer."""
        layer = self.layers[0]
        assert isinstance(layer, ExitLayer)
        return layer

    def open(self, first: int, target: TargetParts) -> HeadState:
        raise UnsupportedError("an early-exit adapter runs layers of its target, but was not given its cache.")

    def open_below(
        self, first: int, target: TargetParts, cache: TargetCache | None, kept: HeadState | None
    ) -> HeadState:
        """Return the state of a text; see `heads.head.LayerHead`."""
        if not isinstance(cache, ExitCache) or not cache.exits:
            raise UnsupportedError(
                "the first layers of this model cannot be run alone, which an early-exit adapter needs; use another "
                "head, or a method such as 'mix'."
            )
        state = kept if isinstance(kept, ExitState) else ExitState(self, target, first)
        state.lend(cache)
        return state

    def end(self, state: HeadState) -> None:
        if isinstance(state, ExitState):
            state.lend(None)

    def grow_whole_all(
        self, states: Sequence[HeadState], plans: Sequence[GrowthPlan], temperatures: Sequence[float]
    ) -> list[GrownDraft | None]:
        return [
            state.draft(plan, warmth) if isinstance(state, ExitState) else None
            for state, plan, warmth in zip(states, plans, temperatures, strict=True)
        ]

    def step_parts(self, target: TargetParts) -> StepParts | None:
        """Return the target's first layers and the adapter as one head; None if their rotary angles differ."""
        found = target.first_layers(self.exit_layer)
        if found is None:
            return None
        layers, sizes = found
        below, own = Rotary(LayerShape(**sizes)), self.rotary
        frequencies = own.frequencies.to(below.frequencies.device)
        same = below.frequencies.shape == frequencies.shape and torch.allclose(
            below.frequencies, frequencies, rtol=1e-5
        )
        same = same and below.scale == own.scale
        heads = (self.shape.heads, self.shape.kv_heads, self.shape.head_dim)
        if not same or heads != (sizes["heads"], sizes["kv_heads"], sizes["head_dim"]):
            return None
        return StepParts(
            fuse=None,
            layers=(*layers, self.layer),
            normed_residual=False,
            norm=self.norm,
            carries_norm=False,
            output=None,
            rotary=below,  # the target's own to the last bit
            embeddings=None,
            ids=None,
            exit=self.exit_layer,
        )

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Return the input [..., D] of the output projection, from the states [..., D] and the attention's output."""
        found: Tensor = self.norm(hidden + attended)
        return found


class ExitState(HeadState):
    """One text: keys and values of the adapter, and the target's own cache during a request."""

    def __init__(self, head: ExitHead, target: TargetParts, first: int) -> None:
        """Start a text whose tokens before position `first` have no rows."""
        self.head, self._target = head, target
        self._cache: ExitCache | None = None
        self.cache = HeadCache(1, first=first)
        parts = head.step_parts(target)
        self._code: StepCode | None = None if parts is None else target.step_code(parts)
        self._root, self._read = -1, list[int]()  # tokens of the rows drafted by compiled code, starting with the root

    def lend(self, cache: ExitCache | None) -> None:
        """Set the target's cache when a request begins; None when it ends."""
        self._cache, self._read = cache, []

    @property
    def _lent(self) -> ExitCache:
        assert self._cache is not None
        return self._cache

    @property
    def length(self) -> int:
        return self.cache.length

    @property
    def room(self) -> int:
        return self._lent.depth

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        committed = [self._root, *following[:-1].tolist()]
        self._root, read = int(following[-1]), self._read
        self._read, known = [], 0
        while known < min(len(read), len(committed)) and read[known] == committed[known]:
            known += 1
        if known:  # their rows are already in place
            self.cache.commit(known, hidden.device)
            hidden = hidden[known:]
        if not len(hidden):
            return
        states = hidden[:, 0].to(self.head.norm.weight.dtype)
        positions, _ = self.cache.commit(len(states), states.device)
        attention = self.head.layer.self_attn
        angles = self.head.rotary.look_up(positions, self.cache.length, states)
        self.cache.append(0, *attention.keys_values(self.head.layer.input_layernorm(states), angles))

    def start(self) -> Tensor:
        self.drop()
        self._read = []
        return self._run([self._root], [-1])

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        return self._run(tokens, [row + 1 for row in above])  # the root has the first row

    def draft(self, plan: GrowthPlan, temperature: float) -> GrownDraft | None:
        """Return a whole chain of chosen tokens, drafted by compiled code; None if there is no code for it.

        Like the authors' code, it also runs the last drafted token through the first layers, so that verification needs
        no pass through them. A token that is not worth such a pass is not drafted.
        """
        code, committed, layers = self._code, self.cache.committed, self.head.exit_layer
        if code is None or plan.top_k != 1 or plan.expanded != 1 or self.cache.first or committed != self._lent.length:
            return None
        self.drop()
        held, like = self._lent.spare_exit(plan.levels + 1, layers), self.head.norm.weight
        if held is None or like.device.type != "cpu":
            return None
        shape = self.head.shape
        own = self.cache.spare(0, plan.levels + 1, (shape.kv_heads, shape.head_dim), like)
        states = like.new_empty(plan.levels + 1, shape.hidden)
        embedded = self._target.embed(torch.tensor([self._root]))
        root = TextRows(
            features=embedded,
            places=None,
            positions=torch.tensor([committed]),
            last=committed,
            seen=None,
            held=(*held, own),
            length=committed + 1,
            passed=torch.empty_like(embedded),
            exits=states[:1],
        )
        logits = code(embedded, [root])
        if logits is None:
            return None
        below = DraftRoot(
            passed=root.passed,
            logits=logits,
            held=root.held,
            length=committed + 1,
            position=committed + 1,
            exits=states[1:],
        )
        longer = replace(plan, levels=plan.levels + 1, ratios=[*plan.ratios, 1.0], nodes=plan.nodes + 1)
        drafts = code.draft([below], [longer], vocabulary=self._target.vocabulary, temperatures=[temperature])
        if drafts is None or drafts[0] is None:
            return None
        tokens, parents, weights, extended = drafts[0]
        self._read = [self._root, *tokens[: len(extended)].tolist()]
        self._lent.adopt_exit(np.array(self._read, np.int32), states[: len(self._read)])
        count = len(extended)
        return GrownDraft(tokens[:count], parents[:count], weights[:count], extended)

    def drop(self) -> None:
        self.cache.drop()
        if self._cache is not None:
            self._cache.drop_exit()

    def crop(self, length: int) -> None:
        self.drop()
        self.cache.crop(length)
        self._read = []

    def _run(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        """Append rows of tokens below other rows of the draft (0: the root's); return their logits [n, V]."""
        read = self._lent.read_exit(np.array(tokens, np.int32), np.array(above, np.int32), self.head.exit_layer)
        states = read.hidden[:, 0].to(self.head.norm.weight.dtype)
        positions, seen = self.cache.branch(above, states.device)
        attention, given = self.head.layer.self_attn, self.head.layer.input_layernorm(states)
        angles = self.head.rotary.look_up(positions, self.cache.length + self.cache.drafted, states)
        keys, values = self.cache.append(0, *attention.keys_values(given, angles))
        attended = attention.attend(attention.queries(given, angles), keys, values, seen)
        return self._target.project(self.head.finish(states, attended))
