"""A window of a text that the target wrote, with what the target computed at its positions.

Everything at index i belongs to the *input* token i, as a model's logits do: `known[i]` tells that the target's
distribution of token i + 1 is known, and `wrong[i]` that the draft of token i + 1 was rejected. The published code of
Online Speculative Decoding marks the index of the corrected token itself, on logits that are not shifted, and so trains
the position behind; it also counts the bonus token of a fully accepted draft as wrong, and attends to padding. Here a
position is wrong only if something was drafted there, and windows are run one by one, without padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from speculant.core.tree import Bool, Int32

Float16 = npt.NDArray[np.float16]
Array = npt.NDArray[Any]
_FIELDS = ("tokens", "known", "wrong", "top_ids", "top_logits", "hidden")


@dataclass(frozen=True, slots=True, eq=False)
class TextWindow:
    """T tokens of a text.

    Attributes:
        tokens: Int32[T].
        known: Bool[T], where the target's distribution of the next token is known.
        wrong: Int32[T], the depth at which the rejected draft of the next token stood, from 1; 0 where none was.
        greedy: whether the text was decoded greedily, so that a draft counts where it is the target's best token.
        top_ids: Int32[T, k], the target's best next tokens; valid where `known`. None for heads.
        top_logits: Float16[T, k], their logits less the greatest of them.
        hidden: [T, n, D], the layers that a head taps, and the last one before the final norm; 16-bit floats, as
            Float16 or as the bits of bfloat16 (UInt16). None for draft models.
    """

    tokens: Int32
    known: Bool
    wrong: Int32
    greedy: bool
    top_ids: Int32 | None = None
    top_logits: Float16 | None = None
    hidden: Array | None = None

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, Array]:
        """Return its arrays by name, those that are there."""
        found = {name: getattr(self, name) for name in _FIELDS}
        return {name: array for name, array in found.items() if array is not None}

    @classmethod
    def of(cls, arrays: Mapping[str, Array], *, greedy: bool) -> TextWindow:
        """Return the window that these arrays are of; they are copied."""
        return cls(greedy=greedy, **{name: np.array(array) for name, array in arrays.items()})
