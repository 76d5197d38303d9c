"""The branches of a draft as llama.cpp sequences: which sequences share which cached rows.

The committed text of a sequence has one id. The first child of a row continues with that row's id; every other child
starts a branch with an id of its own, which shares all rows above it. Rows of the same pass are given the id when they
are written; rows that are already cached are given it by a sequence copy, which only marks them in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from speculant.core.tree import ROOT, Int32


@dataclass(frozen=True, slots=True)
class Share:
    """A sequence id that shares cached rows: those of the sequence `source` before the position `end`."""

    source: int
    target: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """The effect of further rows on the branches.

    Attributes:
        branches: the branches including the new rows.
        positions: Int32[n], positions of the new rows.
        sequences: [n], the ids of each new row, its own first.
        shares: to be applied before the rows are written.
        taken: the newly used ids.
    """

    branches: Branches
    positions: Int32
    sequences: list[list[int]]
    shares: list[Share]
    taken: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """Uncommitted rows below a committed text.

    Attributes:
        text: the id of the committed text.
        length: number of committed tokens.
        parents: parent of each row; -1 for the committed text.
        depths: depth of each row; 1 for children of the committed text.
        own: for each row, the id of the sequence that ends with it, or with a row below it.
        extended: the rows (or -1) whose id continues in a row below.
        taken: the ids in use besides `text`.
    """

    text: int
    length: int
    parents: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    own: tuple[int, ...] = ()
    extended: frozenset[int] = frozenset()
    taken: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.parents)

    def grown(self, parents: Int32, take: Callable[[int], list[int]]) -> Grown:
        """Return these rows with further ones appended.

        Args:
            parents: Int32[n], numbered over all rows; a parent precedes its children.
            take: returns the given number of unused ids.

        Raises:
            ValueError: a parent does not precede its child.
        """
        before = len(self)
        above, depths, own = [*self.parents, *parents.tolist()], [*self.depths], [*self.own]
        extended, first = set(self.extended), list[bool]()
        for row in range(before, len(above)):
            parent = above[row]
            if not ROOT <= parent < row:
                raise ValueError("the row that another follows must come before it, or be -1 for the committed text")
            first.append(parent not in extended)
            extended.add(parent)
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        fresh = take(first.count(False))
        left, shares = iter(fresh), list[Share]()
        sequences: list[list[int]] = []
        for row, goes_on in enumerate(first, start=before):
            parent = above[row]
            if goes_on:
                own.append(self.text if parent == ROOT else own[parent])
                sequences.append([own[-1]])
                continue
            own.append(next(left))
            sequences.append([own[-1]])
            while parent >= before:
                sequences[parent - before].append(own[-1])
                parent = above[parent]
            source = self.text if parent == ROOT else own[parent]
            end = self.length + (0 if parent == ROOT else depths[parent])
            shares.append(Share(source, own[-1], end))
        branches = Branches(
            self.text,
            self.length,
            tuple(above),
            tuple(depths),
            tuple(own),
            frozenset(extended),
            (*self.taken, *fresh),
        )
        positions = np.array(depths[before:], np.int32) + np.int32(self.length - 1)
        return Grown(branches, positions, sequences, shares, fresh)
