"""Cache layers that hold a state: convolution windows and recurrences, whose rows are recorded until some are kept.

They are transformers' own kind of layer, so that its classes and `generate` go on with them. The tensors of the
committed state are never written to: passes by the model's own functions begin with copies of what those write in
place, and a path of recorded rows is folded into new tensors. So a state can be remembered by reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers import cache_utils

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.caches.in_place_layer import InPlaceLayer
from speculant.engines.hf.states.record import Record

# Older releases of transformers keep states in classes of each model's own, which are not decoded by these layers.
LinearAttentionLayer: Any = getattr(cache_utils, "LinearAttentionLayer", type("LinearAttentionLayer", (), {}))

MAX_MARKS = 2  # such as behind a shared beginning and behind the prompt
Place = tuple[str, int, int]  # "conv" or "recurrent", the index of the state in its layer, and of the head's scan


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a layer behind a text.

    Attributes:
        tokens: of the text.
        conv: by index, [1, C, K]; None before the first pass.
        recurrent: by index, [1, ...]; None before the first pass.
    """

    tokens: int
    conv: dict[int, Tensor | None]
    recurrent: dict[int, Tensor | None]


class StateLayer(LinearAttentionLayer):  # type: ignore[misc]
    """The convolution windows and recurrent states of one layer.

    Attributes:
        tokens: how many the committed state has read.
    """

    def __init__(self, number_of_states: int = 1) -> None:
        super().__init__(number_of_states=number_of_states)
        self.tokens = 0
        self._marks: list[Snapshot] = []  # states behind beginnings of the text, for texts that begin alike
        self._before: Snapshot | None = None  # the committed state while an own pass of the model is not kept
        self._records: dict[Place, Record] = {}
        self._stamp = self._stamped()

    @classmethod
    def holding(cls, layer: LinearAttentionLayer, tokens: int) -> Self:
        """Return a layer that holds what another one does, which has read so many tokens."""
        if isinstance(layer, cls):
            return layer
        adopted = cls(layer.number_of_states)
        adopted.device, adopted.dtype = layer.device, layer.dtype
        adopted.conv_kernel_size = dict(layer.conv_kernel_size)
        conv = {index: state if layer.has_previous_state[index] else None for index, state in layer.conv_states.items()}
        adopted._restore(Snapshot(tokens, conv, dict(layer.recurrent_states)))
        return adopted

    def snapshot(self) -> Snapshot:
        """Return the committed state, by reference."""
        return self._before or self._current()

    def _current(self) -> Snapshot:
        conv = {index: self.conv_states[index] if held else None for index, held in self.has_previous_state.items()}
        return Snapshot(self.tokens, conv, dict(self.recurrent_states))

    def restore(self, snapshot: Snapshot) -> None:
        """Take a state, by reference; rows that were not kept are dropped, and marks of what followed it."""
        self._before, self._records = None, {}
        self._marks = [mark for mark in self._marks if mark.tokens <= snapshot.tokens]
        self._restore(snapshot)

    def _restore(self, snapshot: Snapshot) -> None:
        self.tokens = snapshot.tokens
        self.conv_states, self.recurrent_states = dict(snapshot.conv), dict(snapshot.recurrent)
        self.has_previous_state = {index: state is not None for index, state in snapshot.conv.items()}
        self.is_conv_states_initialized = dict(self.has_previous_state)
        self.is_recurrent_states_initialized = {index: state is not None for index, state in snapshot.recurrent.items()}
        self._stamp = self._stamped()

    def reset(self) -> None:
        """Forget everything."""
        self.restore(self._nothing())

    def _nothing(self) -> Snapshot:
        empty: dict[int, Tensor | None] = dict.fromkeys(range(self.number_of_states))
        return Snapshot(0, empty, empty)

    @property
    def rows(self) -> int:
        """How many rows it has read, those that are not committed included."""
        return self.tokens + max((len(record) for record in self._records.values()), default=0)

    def mark(self) -> None:
        """Remember the committed state, for texts that begin alike."""
        mark = self.snapshot()
        self._marks = [*(each for each in self._marks if each.tokens < mark.tokens), mark][-MAX_MARKS:]

    def mark_before(self, length: int) -> int:
        """Return the longest beginning of the text, of at most so many tokens, whose state is known; 0 for none."""
        return max(mark.tokens for mark in self._known() if mark.tokens <= length)

    def return_to(self, length: int) -> None:
        """Take the state behind the first tokens, as `mark_before` gives them."""
        self.restore(self._mark_at(length))

    def copied(self, length: int, room: int) -> Self:
        """Return a layer with a copy of the state behind the first tokens, as `mark_before` gives them."""
        mark = self._mark_at(length)
        copy = type(self)(self.number_of_states)
        copy.device, copy.dtype, copy.conv_kernel_size = self.device, self.dtype, dict(self.conv_kernel_size)
        conv, recurrent = (
            {index: _copied(state) for index, state in states.items()} for states in (mark.conv, mark.recurrent)
        )
        copy._restore(Snapshot(length, conv, recurrent))
        copy._marks = [each for each in self._marks if each.tokens < length]
        return copy

    def note_others(self, tokens: int | None) -> None:
        """Take note of passes that other code has run on this layer.

        Args:
            tokens: what its states have read by now; None where nothing tells.

        Raises:
            UnsupportedError: there were some, and nothing tells what they read; or an interrupt has left it behind.
        """
        same = self._before is None and _alike(self._stamp, self._stamped())
        if same and tokens in (None, self.tokens):
            return
        if same or tokens is None:
            raise UnsupportedError("this cache's states are not those of its text; begin without it.")
        self._marks, self._before, self._records = [], None, {}
        self.tokens, self._stamp = tokens, self._stamped()

    def _stamped(self) -> list[tuple[int, int | Tensor]]:
        """Return what changes when others write to the states; inference mode keeps no versions, so values there."""
        states = [state for state in self.conv_states.values() if state is not None]
        return [(id(state), state.clone() if state.is_inference() else state._version) for state in states]

    def _known(self) -> list[Snapshot]:
        return [self._nothing(), *self._marks, self.snapshot()]

    def _mark_at(self, length: int) -> Snapshot:
        return next(mark for mark in self._known() if mark.tokens == length)

    @property
    def trunk(self) -> int:
        """How many rows that are not committed the current state has read: those of a pass of the model's own."""
        return 0 if self._before is None else self.tokens - self._before.tokens

    def begin_own(self, tokens: int, *, in_place: bool) -> None:
        """Prepare for a pass of the model's own functions over so many tokens, which follow the current state.

        Args:
            tokens: of the pass.
            in_place: whether they write recurrent states in place, as they do convolution windows.
        """
        if self._before is None:
            self._before = self._current()
        self.tokens += tokens
        self.conv_states = {index: _copied(state) for index, state in self.conv_states.items()}
        if in_place:
            self.recurrent_states = {index: _copied(state) for index, state in self.recurrent_states.items()}

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        """Take a new state by reference, where transformers' layer would write over the old one."""
        self.recurrent_states[state_idx] = recurrent_states
        self.is_recurrent_states_initialized[state_idx] = True
        return recurrent_states

    def take(self, conv: Tensor, recurrent: Tensor) -> None:
        """Take the first convolution's and recurrence's new states, by reference."""
        self.conv_states[0], self.recurrent_states[0] = conv, recurrent
        self.has_previous_state[0] = self.is_conv_states_initialized[0] = True
        self.is_recurrent_states_initialized[0] = True

    def record(self, place: Place) -> Record | None:
        """Return what is recorded of one of its states; None where nothing is."""
        return self._records.get(place)

    def set_record(self, place: Place, record: Record) -> None:
        """Take the record of one of its states, with the rows of a further pass."""
        self._records[place] = record

    def cut_rows(self, rows: int) -> None:
        """Drop what a pass that failed has added behind the first rows."""
        recorded = rows - self.trunk
        if recorded < 0:
            assert self._before is not None
            self.restore(self._before)
        else:
            self._records = {place: record.cut(recorded) for place, record in self._records.items()}

    def after(self, path: Sequence[int]) -> Snapshot:
        """Return the state behind a path of rows, from the root's down; the committed one for an empty path.

        Nothing is changed, so that all layers' can be computed before one is taken (`restore`).

        Raises:
            ValueError: the path is shorter than what a pass of the model's own functions has read.
        """
        trunk = self.trunk
        if not path:
            return self.snapshot()
        if len(path) < trunk:
            raise ValueError(f"{len(path)} rows cannot be kept of a pass over {trunk}")
        recorded = [row - trunk for row in path[trunk:]]
        return self._folded(recorded) if recorded else self._current()

    @property
    def uncommitted(self) -> int:
        """How many rows it has read that are not committed."""
        return self.rows - self.snapshot().tokens

    def _folded(self, path: list[int]) -> Snapshot:
        """Return the state behind a path of recorded rows."""
        folded = {"conv": dict(self.conv_states), "recurrent": dict(self.recurrent_states)}
        heads: dict[int, list[Tensor]] = {}
        for (kind, index, head), record in sorted(self._records.items(), key=lambda each: each[0]):
            state: Any = folded[kind][index]
            if head or (kind, index, 1) in self._records:
                heads.setdefault(index, []).append(record.folded(state[:, head], path))
            else:
                folded[kind][index] = record.folded(state, path)
        for index, states in heads.items():
            folded["recurrent"][index] = torch.stack(states, dim=1)
        return Snapshot(self.tokens + len(path), folded["conv"], folded["recurrent"])

    @property
    def nbytes(self) -> int:
        """The bytes that it takes."""
        return self.states_nbytes

    @property
    def states_nbytes(self) -> int:
        """The bytes of its states and of what is recorded."""
        snapshots = [self._current(), *self._marks, *([] if self._before is None else [self._before])]
        held = {
            id(state): state.nbytes
            for snapshot in snapshots
            for state in (*snapshot.conv.values(), *snapshot.recurrent.values())
            if state is not None
        }
        return sum(held.values()) + self.recorded_bytes

    @property
    def recorded_bytes(self) -> int:
        """The bytes of what is recorded of rows."""
        return sum(record.nbytes for record in self._records.values())


class HybridStateLayer(StateLayer, InPlaceLayer):
    """A layer with a state and with keys and values of every row."""

    is_compileable = False

    def __init__(self, number_of_states: int = 1) -> None:
        InPlaceLayer.__init__(self)
        StateLayer.__init__(self, number_of_states)

    @classmethod
    def holding(cls, layer: LinearAttentionLayer, tokens: int) -> Self:
        if isinstance(layer, cls):
            return layer
        adopted = super().holding(layer, tokens)
        if layer.is_initialized and layer.get_seq_length():
            adopted.keys, adopted.values = layer.keys, layer.values
            adopted.is_initialized = True
        return adopted

    def copied(self, length: int, room: int) -> Self:
        copy = super().copied(length, room)
        copy._take_prefix(self, length, room)
        return copy

    def reset(self) -> None:
        StateLayer.reset(self)
        InPlaceLayer.reset(self)

    @property
    def nbytes(self) -> int:
        return self.states_nbytes + self.rows_nbytes


def _alike(stamp: list[tuple[int, int | Tensor]], other: list[tuple[int, int | Tensor]]) -> bool:
    return len(stamp) == len(other) and all(
        one == two and (torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b)
        for (one, a), (two, b) in zip(stamp, other, strict=True)
    )


def _copied(state: Tensor | None) -> Tensor | None:
    return None if state is None else state.clone()
