"""States of texts on heads of DFlash's family, see network.py.

Blocks of several texts are denoised in one pass: their slots share the matrix products, and attend to their own texts.
Context rows of committed tokens are projected together, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from speculant.drafters.heads.block import BlockHead, BlockState, SlotRows
from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.dflash.corrections import CorrectedRows
from speculant.drafters.heads.dflash.network import BlockNetwork
from speculant.drafters.heads.head import HeadState, TargetParts
from speculant.drafters.heads.layers import Angles, Attention, join_tensors


class DFlashHead(BlockNetwork, BlockHead):
    """The network as a head."""

    def open(self, first: int, target: TargetParts) -> HeadState:
        return DFlashState(self, target, first)

    def extend_all(self, states: Sequence[HeadState], hidden: Sequence[Tensor], following: Sequence[Tensor]) -> None:
        extend_contexts([each for each in states if isinstance(each, DFlashState)], hidden, following)


class DFlashState(BlockState):
    """State of one text.

    Attributes:
        cache: keys and values of its context rows.
        confidence: predicted acceptance probability of the token after each row of the last call; None if the head
            does not predict it.
    """

    def __init__(self, head: DFlashHead, target: TargetParts, first: int) -> None:
        """Start a text whose tokens before position `first` have no rows."""
        super().__init__()
        self._head, self._target = head, target
        self.cache = HeadCache(head.block.layers, first=first)
        self._codes = [None if head.block.convolution else target.layer_code(layer) for layer in head.layers]
        self._root: Tensor | None = None  # Int64[]
        self._outputs: Tensor | None = None  # [K, D]
        self._carried: list[Tensor] = []  # [S] each, of the root and of the draft's rows
        self.confidence: Tensor | None = None

    @property
    def head(self) -> DFlashHead:
        """The head."""
        return self._head

    @property
    def length(self) -> int:
        return self.cache.length

    @property
    def root(self) -> Tensor:
        """The root, Int64[]."""
        assert self._root is not None
        return self._root

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        extend_contexts([self], [hidden], [following])

    def take_root(self, root: Tensor) -> None:
        """Set the token Int64[] after the last context row."""
        self._root = root
        self.forget_block()

    def run_blocks(self, states: Sequence[BlockState]) -> list[Tensor]:
        texts, head = _texts(states), self._head
        slots, device = head.block.size, texts[0].root.device
        positions = torch.stack([text.cache.branch(range(-1, slots - 1), device)[0] for text in texts])
        code = self._run_code if len(texts) == 1 else None  # PyTorch is efficient enough with several texts
        try:
            outputs = head.denoise(
                torch.stack([text.root for text in texts]), positions, self._target, _Attending(texts, positions), code
            )
        finally:
            for text in texts:
                text.cache.drop()
        logits = torch.split(head.logits(outputs.flatten(0, 1), self._target), head.block.drafted)
        for text, own in zip(texts, outputs, strict=True):
            text._outputs = own
        return [*logits]

    def _run_code(self, index: int, x: Tensor, given: Tensor, angles: Angles) -> Tensor | None:
        code, shape = self._codes[index], self._head.shape
        if code is None or x.shape[1] > code.maximum:
            return None
        rows = self.cache.reserve(index, x.shape[1], (shape.kv_heads, shape.head_dim), x)
        found = code(x[0], given[0], (angles[0][0], angles[1][0]), *rows, None)
        return None if found is None else found[None]

    def condition(self, states: Sequence[BlockState], rows: Sequence[SlotRows]) -> list[Tensor]:
        head, texts = self._head, _texts(states)
        if head.correction is None and not head.block.confidence:
            return [own.logits for own in rows]
        device, sizes = rows[0].logits.device, [len(own.depths) for own in rows]
        both = list(zip(texts, rows, strict=True))
        before = join_tensors(
            [torch.tensor([*own.tokens], device=device) if own.tokens else text.root[None] for text, own in both]
        )
        outputs = join_tensors([text.outputs(own.depths) for text, own in both])
        if head.block.confidence:
            confidence = torch.split(head.confidence(outputs, before).sigmoid(), sizes)
            for text, each in zip(texts, confidence, strict=True):
                text.confidence = each
        found, handed = head.correct_logits(
            CorrectedRows(
                logits=join_tensors([own.logits for own in rows]),
                outputs=outputs,
                tokens=before,
                depths=torch.tensor([depth for own in rows for depth in own.depths], device=device),
                carried=join_tensors([text.carry(own.above) for text, own in both]),
            ),
            self._target,
        )
        for text, own, each in zip(texts, rows, torch.split(handed, sizes), strict=True):
            text._carried = [*(text._carried if own.tokens else ()), *each.unbind()]
        return [*torch.split(found, sizes)]

    def outputs(self, depths: Sequence[int]) -> Tensor:
        """Return the outputs [n, D] of the slots that predict what follows nodes at these depths."""
        assert self._outputs is not None
        return self._outputs[list(depths)]

    def carry(self, above: Sequence[int]) -> Tensor:
        """Return the states [n, S] that rows pass on, -1 for the root's; zeros [1, S] for no rows."""
        if above:
            return torch.stack([self._carried[row + 1] for row in above])
        assert self._outputs is not None
        return self._head.nothing_carried(self._outputs[:1])

    def crop(self, length: int) -> None:
        self.cache.crop(length)
        self._root = None
        self.forget_block()


class _Attending:
    """Attention of several texts' slots, each to its own context and block; see `network.Attend`."""

    def __init__(self, texts: Sequence[DFlashState], positions: Tensor) -> None:
        self._texts, self._positions = texts, positions

    def __call__(self, index: int, attention: Attention, given: Tensor, angles: Angles) -> Tensor:
        keys, values = attention.keys_values(given, angles)
        queries, found = attention.queries(given, angles), list[Tensor]()
        for place, text in enumerate(self._texts):
            cache, positions = text.cache, self._positions[place]
            rows = cache.append(index, keys[place], values[place])
            context = torch.arange(cache.first, cache.length, device=positions.device)
            every = torch.ones(1, len(context), dtype=torch.bool, device=positions.device)
            seen = text.head.seen(index, positions, context, every)
            found.append(attention.weigh(queries[place], *rows, seen))
        return torch.stack(found)


def extend_contexts(states: Sequence[DFlashState], hidden: Sequence[Tensor], following: Sequence[Tensor]) -> None:
    """Append context rows of committed tokens to texts of one head; takes the arguments of `extend` for each text."""
    head, sizes = states[0].head, [len(own) for own in hidden]
    context = head.context(join_tensors(hidden))
    positions = join_tensors(
        [state.cache.commit(size, context.device)[0] for state, size in zip(states, sizes, strict=True)]
    )
    for index, added in enumerate(head.context_keys(context, positions)):
        keys, values = (torch.split(each, sizes, dim=-2) for each in added)
        for place, state in enumerate(states):
            state.cache.append(index, keys[place], values[place])
    for state, tokens in zip(states, following, strict=True):
        state.take_root(tokens[-1])


def _texts(states: Sequence[BlockState]) -> list[DFlashState]:
    return [state for state in states if isinstance(state, DFlashState)]
