"""The contract between a target and the decoding loop. Both parts live as long as one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from speculant.core.tree import DraftTree, Float32, Int32

Logits = Any
"""The engine's own array: [V] after prefill, [N + 1, V] after a verify pass."""

Choices = Any
"""The engine's own array of chosen tokens, Int[N + 1], still on its device."""


class Target(Protocol):
    """The model whose output must be reproduced, with the cache of one sequence."""

    def prefill(self) -> Logits:
        """Read the prompt; return Logits[1, V], which follow its last token. Where it fails nothing was read."""

    def restart(self) -> None:
        """Forget the prompt and all that followed: the cache is as it was given."""

    def shape(self, tree: DraftTree) -> DraftTree:
        """Return the part of the draft that this target can verify in one pass."""

    def verify(self, root: int, tree: DraftTree) -> Logits:
        """Run one pass over root and N nodes; return Logits[N + 1, V], row 0 follows the root."""

    def commit(self, path: list[int]) -> None:
        """Keep the cache rows of the root and of the accepted path, drop the others."""

    def rollback(self) -> None:
        """Forget the cache rows of a pass that was not committed; nothing happens where there are none."""

    def read(self, choices: Sequence[Choices]) -> list[list[int]]:
        """Return what samplers chose, brought from the device in one go."""

    def top(self, logits: Logits, k: int) -> tuple[Int32, Float32]:
        """Return ids and logits of each row's k best tokens, best first: [N + 1, k].

        Called before the sampler looks, so that both answers cross from the device together; the arrays may be
        read only after `read` or, where the sampler has nothing to receive, after it looked.
        """


class Sampler(Protocol):
    """Draws the target's tokens exactly as plain decoding would."""

    @property
    def room(self) -> int:
        """How many more tokens the text may take."""

    def look(self, logits: Logits, tree: DraftTree) -> Choices | None:
        """Take the logits of a pass, Logits[N + 1, V]; return choices to be received before any draw, or None."""

    def receive(self, choices: list[int]) -> None:
        """Take the choices of the last look, read from the device."""

    def draw(self, row: int) -> tuple[int, bool]:
        """Draw and commit the token after a row; return it and whether the text ends with it."""

    def settle(self) -> None:
        """End the round, with the random stream where plain decoding would have it."""
