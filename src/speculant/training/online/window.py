"""A window of a text that the target wrote, with what the target computed at its positions.

Everything at index i belongs to the *input* token i, like a model's logits: `known[i]` means that the target's
distribution of token i + 1 is known, and `wrong[i]` that the draft of token i + 1 was rejected. The published code of
Online Speculative Decoding marks the index of the corrected token itself, on unshifted logits, and so trains the
following position; it also counts the bonus token of a fully accepted draft as wrong, and attends to padding. Here a
position is wrong only if something was drafted there, and windows are run one at a time, without padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from speculant.core.tree import Array, Bool, Int32

Float16 = npt.NDArray[np.float16]
_FIELDS = ("tokens", "known", "wrong", "top_ids", "top_logits", "hidden")


@dataclass(frozen=True, slots=True, eq=False)
class TextWindow:
    """A window of T tokens.

    Attributes:
        tokens: Int32[T].
        known: Bool[T], where the target's distribution of the next token is known.
        wrong: Int32[T], the depth from 1 of the rejected draft of the next token; 0 if there was none.
        greedy: whether the text was decoded greedily, so that a draft is accepted if it is the target's top token.
        top_ids: Int32[T, k], the target's top next tokens; valid where `known`. None for heads.
        top_logits: Float16[T, k], their logits minus the maximum of them.
        hidden: [T, n, D], the layers that a head taps, and the last one before the final norm; 16-bit floats, as
            Float16 or as bfloat16 bits (UInt16). None for draft models.
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
        """The size of the window in bytes."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, Array]:
        """Return its arrays by name, without missing ones."""
        found = {name: getattr(self, name) for name in _FIELDS}
        return {name: array for name, array in found.items() if array is not None}

    @classmethod
    def of(cls, arrays: Mapping[str, Array], *, greedy: bool) -> TextWindow:
        """Create a window from copies of its arrays."""
        return cls(greedy=greedy, **{name: np.array(array) for name, array in arrays.items()})
