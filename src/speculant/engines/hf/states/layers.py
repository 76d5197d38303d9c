"""Cache layers that hold a state: convolution windows and recurrences, with rows recorded until some are kept.

They are transformers' own kind of layer, so that its classes and `generate` can continue with them. The tensors of the
committed state are never written to: passes by the model's own functions start from copies of what they write in place,
and a path of recorded rows is folded into new tensors. So a state can be remembered by reference.
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

# Older releases of transformers keep states in model-specific classes, which these layers do not support.
LinearAttentionLayer: Any = getattr(cache_utils, "LinearAttentionLayer", type("LinearAttentionLayer", (), {}))

MAX_MARKS = 2  # such as after a shared prefix and after the prompt
Place = tuple[str, int, int]  # "conv" or "recurrent", the index of the state in its layer, and the head of its scan


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a layer after a text.

    Attributes:
        tokens: number of tokens in the text.
        conv: states by index, [1, C, K]; None before the first pass.
        recurrent: states by index, [1, ...]; None before the first pass.
    """

    tokens: int
    conv: dict[int, Tensor | None]
    recurrent: dict[int, Tensor | None]


class StateLayer(LinearAttentionLayer):  # type: ignore[misc]
    """The convolution windows and recurrent states of one layer.

    Attributes:
        tokens: number of tokens the committed state has read.
    """

    def __init__(self, number_of_states: int = 1) -> None:
        super().__init__(number_of_states=number_of_states)
        self.tokens = 0
        self._marks: list[Snapshot] = []  # states after prefixes of the text, for texts with a shared prefix
        self._before: Snapshot | None = None  # the committed state while a pass of the model's own is not kept
        self._records: dict[Place, Record] = {}
        self._stamp = self._take_stamp()

    @classmethod
    def holding(cls, layer: LinearAttentionLayer, tokens: int) -> Self:
        """Return a layer with the contents of another one that has read `tokens` tokens."""
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
        """Set the state, by reference; drop rows that were not kept, and later marks."""
        self._before, self._records = None, {}
        self._marks = [mark for mark in self._marks if mark.tokens <= snapshot.tokens]
        self._restore(snapshot)

    def _restore(self, snapshot: Snapshot) -> None:
        self.tokens = snapshot.tokens
        self.conv_states, self.recurrent_states = dict(snapshot.conv), dict(snapshot.recurrent)
        self.has_previous_state = {index: state is not None for index, state in snapshot.conv.items()}
        self.is_conv_states_initialized = dict(self.has_previous_state)
        self.is_recurrent_states_initialized = {index: state is not None for index, state in snapshot.recurrent.items()}
        self._stamp = self._take_stamp()

    def reset(self) -> None:
        """Drop all states."""
        self.restore(self._nothing())

    def _nothing(self) -> Snapshot:
        empty: dict[int, Tensor | None] = dict.fromkeys(range(self.number_of_states))
        return Snapshot(0, empty, empty)

    @property
    def rows(self) -> int:
        """The number of rows read, including uncommitted ones."""
        return self.tokens + max((len(record) for record in self._records.values()), default=0)

    def mark(self) -> None:
        """Remember the committed state, for texts with a shared prefix."""
        mark = self.snapshot()
        self._marks = [*(each for each in self._marks if each.tokens < mark.tokens), mark][-MAX_MARKS:]

    def mark_before(self, length: int) -> int:
        """Return the length of the longest prefix, at most `length`, whose state is known; 0 for none."""
        return max(mark.tokens for mark in self._list_snapshots() if mark.tokens <= length)

    def return_to(self, length: int) -> None:
        """Restore the state after the first `length` tokens, a value of `mark_before`."""
        self.restore(self._mark_at(length))

    def copy_prefix(self, length: int, room: int) -> Self:
        """Return a layer with a copy of the state after the first `length` tokens, a value of `mark_before`."""
        mark = self._mark_at(length)
        copy = type(self)(self.number_of_states)
        copy.device, copy.dtype, copy.conv_kernel_size = self.device, self.dtype, dict(self.conv_kernel_size)
        conv, recurrent = (
            {index: _copy_state(state) for index, state in states.items()} for states in (mark.conv, mark.recurrent)
        )
        copy._restore(Snapshot(length, conv, recurrent))
        copy._marks = [each for each in self._marks if each.tokens < length]
        return copy

    def note_others(self, tokens: int | None) -> None:
        """Account for passes that other code has run on this layer.

        Args:
            tokens: number of tokens its states have read by now; None if unknown.

        Raises:
            UnsupportedError: there were such passes of unknown length, or an interrupt has left the layer behind.
        """
        same = self._before is None and _alike(self._stamp, self._take_stamp())
        if same and tokens in (None, self.tokens):
            return
        if same or tokens is None:
            raise UnsupportedError("this cache's states do not belong to its text; start without it.")
        self._marks, self._before, self._records = [], None, {}
        self.tokens, self._stamp = tokens, self._take_stamp()

    def _take_stamp(self) -> list[tuple[int, int | Tensor]]:
        """Return what changes when others write to the states: versions, or values in inference mode."""
        states = [state for state in self.conv_states.values() if state is not None]
        return [(id(state), state.clone() if state.is_inference() else state._version) for state in states]

    def _list_snapshots(self) -> list[Snapshot]:
        return [self._nothing(), *self._marks, self.snapshot()]

    def _mark_at(self, length: int) -> Snapshot:
        return next(mark for mark in self._list_snapshots() if mark.tokens == length)

    @property
    def trunk(self) -> int:
        """The number of uncommitted rows in the current state: those of a pass of the model's own."""
        return 0 if self._before is None else self.tokens - self._before.tokens

    def begin_own(self, tokens: int, *, in_place: bool) -> None:
        """Prepare for a pass of the model's own functions over tokens that follow the current state.

        Args:
            tokens: number of tokens in the pass.
            in_place: whether they write recurrent states in place, as they do with convolution windows.
        """
        if self._before is None:
            self._before = self._current()
        self.tokens += tokens
        self.conv_states = {index: _copy_state(state) for index, state in self.conv_states.items()}
        if in_place:
            self.recurrent_states = {index: _copy_state(state) for index, state in self.recurrent_states.items()}

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        """Set a new state by reference, where transformers' layer would overwrite the old one."""
        self.recurrent_states[state_idx] = recurrent_states
        self.is_recurrent_states_initialized[state_idx] = True
        return recurrent_states

    def take(self, conv: Tensor, recurrent: Tensor) -> None:
        """Set the new states of the first convolution and recurrence, by reference."""
        self.conv_states[0], self.recurrent_states[0] = conv, recurrent
        self.has_previous_state[0] = self.is_conv_states_initialized[0] = True
        self.is_recurrent_states_initialized[0] = True

    def record(self, place: Place) -> Record | None:
        """Return the record of one of its states; None without any."""
        return self._records.get(place)

    def set_record(self, place: Place, record: Record) -> None:
        """Set the record of one of its states, extended by the rows of a further pass."""
        self._records[place] = record

    def cut_rows(self, rows: int) -> None:
        """Drop the rows that a failed pass added after the first `rows`."""
        recorded = rows - self.trunk
        if recorded < 0:
            assert self._before is not None
            self.restore(self._before)
        else:
            self._records = {place: record.cut(recorded) for place, record in self._records.items()}

    def after(self, path: Sequence[int]) -> Snapshot:
        """Return the state after a path of rows, from the root's down; the committed state for an empty path.

        Nothing is changed, so that all layers' states can be computed before one is set (`restore`).

        Raises:
            ValueError: the path is shorter than what a pass of the model's own functions has read.
        """
        trunk = self.trunk
        if not path:
            return self.snapshot()
        if len(path) < trunk:
            raise ValueError(f"{len(path)} rows of a pass over {trunk} cannot be kept")
        recorded = [row - trunk for row in path[trunk:]]
        return self._fold_records(recorded) if recorded else self._current()

    @property
    def uncommitted(self) -> int:
        """The number of uncommitted rows read."""
        return self.rows - self.snapshot().tokens

    def _fold_records(self, path: list[int]) -> Snapshot:
        """Return the state after a path of recorded rows."""
        folded = {"conv": dict(self.conv_states), "recurrent": dict(self.recurrent_states)}
        heads: dict[int, list[Tensor]] = {}
        for (kind, index, head), record in sorted(self._records.items(), key=lambda each: each[0]):
            state: Any = folded[kind][index]
            if head or (kind, index, 1) in self._records:
                heads.setdefault(index, []).append(record.fold_rows(state[:, head], path))
            else:
                folded[kind][index] = record.fold_rows(state, path)
        for index, states in heads.items():
            folded["recurrent"][index] = torch.stack(states, dim=1)
        return Snapshot(self.tokens + len(path), folded["conv"], folded["recurrent"])

    @property
    def nbytes(self) -> int:
        """The size of the layer in bytes."""
        return self.states_nbytes

    @property
    def states_nbytes(self) -> int:
        """The size of its states and records in bytes."""
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
        """The size of its records in bytes."""
        return sum(record.nbytes for record in self._records.values())


class HybridStateLayer(StateLayer, InPlaceLayer):
    """A layer with a state as well as keys and values of every row."""

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

    def copy_prefix(self, length: int, room: int) -> Self:
        copy = super().copy_prefix(length, room)
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


def _copy_state(state: Tensor | None) -> Tensor | None:
    return None if state is None else state.clone()
