"""The contributions of draft rows to a state, recorded until a path of them is kept.

A recurrence starts a pass with the committed state S_0, and gives each row i the output that its own path of tokens
would have given. Nothing is copied per row: a row's contribution to the state has low rank, and is recorded. A row's
state is then S_0, decayed along the row's path, plus its ancestors' contributions, each decayed from there on. In the
other files of this folder, G_i is the sum of the log decays from the root's row down to i, and A(i) are the ancestors
of i and i itself. Decays are masked before they are exponentiated, so that exponents are never above 0.

A record grows by the rows of each pass, so a tree may be grown over several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

from torch import Tensor


class Record(ABC):
    """The contributions of rows to one state; rows are numbered from the first one after the committed text."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of recorded rows."""

    @abstractmethod
    def cut(self, rows: int) -> Self:
        """Return the record of the first `rows` rows."""

    @abstractmethod
    def fold_rows(self, state: Tensor, path: Sequence[int]) -> Tensor:
        """Return the state [1, ...] after a path of rows, in a new tensor."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The size of the record in bytes."""
