"""The rows of a pass as a `llama_batch` over numpy arrays, filled without a loop per row.

Each row carries the ids of all sequences it belongs to. llama.cpp lets a row attend to cached rows of its first
sequence at its position or before, so a tree needs no mask: each leaf has a sequence, and a node is in the sequences of
all leaves at or below it (SpecInfer's tree attention, arXiv 2305.09781, in the form of llama.cpp's pull request 3624).
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from speculant.core.tree import Int32


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of a pass.

    Attributes:
        tokens: Int32[n].
        positions: Int32[n].
        sequences: [n], the sequence ids of each row; at least one.
        outputs: [n], whether the row's logits are requested.
    """

    tokens: Int32
    positions: Int32
    sequences: Sequence[Sequence[int]]
    outputs: Sequence[bool]

    def __len__(self) -> int:
        return len(self.tokens)

    @staticmethod
    def plain(tokens: Sequence[int], start: int, sequence: int, *, wanted: int) -> Rows:
        """Return rows of one sequence starting at a position; the logits of the last `wanted` rows are requested."""
        count = len(tokens)
        return Rows(
            np.array(tokens, np.int32),
            np.arange(start, start + count, dtype=np.int32),
            [(sequence,)] * count,
            [False] * (count - wanted) + [True] * wanted,
        )

    @staticmethod
    def join(parts: Sequence[Rows]) -> Rows:
        """Return the rows of several texts, concatenated."""
        if len(parts) == 1:
            return parts[0]
        return Rows(
            np.concatenate([part.tokens for part in parts]),
            np.concatenate([part.positions for part in parts]),
            [ids for part in parts for ids in part.sequences],
            [wanted for part in parts for wanted in part.outputs],
        )


class BatchArrays:
    """The arrays that a `llama_batch` points to."""

    def __init__(self, api: Any, maximum: int) -> None:
        """Allocate arrays for `maximum` rows; `api` is the module llama_cpp."""
        self._tokens, self._positions, self._counts = (np.zeros(maximum, np.int32) for _ in range(3))
        self._outputs = np.zeros(maximum, np.int8)
        self._pointers = np.zeros(maximum, np.uintp)
        self._ids = np.zeros(maximum, np.int32)
        whole, flag = ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_int8)
        self._batch = api.llama_batch(
            n_tokens=0,
            token=self._tokens.ctypes.data_as(whole),
            embd=None,
            pos=self._positions.ctypes.data_as(whole),
            n_seq_id=self._counts.ctypes.data_as(whole),
            seq_id=self._pointers.ctypes.data_as(ctypes.POINTER(whole)),
            logits=self._outputs.ctypes.data_as(flag),
        )

    def fill(self, rows: Rows) -> Any:
        """Return the `llama_batch` of some rows, valid until the next call."""
        n = len(rows)
        counts = [len(ids) for ids in rows.sequences]
        self._ids = np.fromiter(itertools.chain.from_iterable(rows.sequences), np.int32, sum(counts))
        self._tokens[:n], self._positions[:n], self._outputs[:n] = rows.tokens, rows.positions, rows.outputs
        self._counts[:n] = counts
        ends = np.cumsum(self._counts[:n], dtype=np.uintp)
        starts = (ends - self._counts[:n].astype(np.uintp)) * np.uintp(self._ids.itemsize)
        self._pointers[:n] = np.uintp(self._ids.ctypes.data) + starts
        self._batch.n_tokens = n
        return self._batch
