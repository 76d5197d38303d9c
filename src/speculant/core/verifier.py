"""The contract of a verifier: the acceptance rule that walks a draft after the target's pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from speculant.core.engine import Array, Pass
from speculant.core.sampler import Sampler
from speculant.core.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Walk:
    """What a round commits.

    Attributes:
        path: the accepted nodes [A], in order.
        tokens: the committed tokens [A + 1]: the accepted ones, then the target's own.
        ended: whether the text ends with the last of them.
    """

    path: list[int]
    tokens: list[int]
    ended: bool


class Verifier(Protocol):
    """An acceptance rule.

    Attributes:
        exactness: "tokens" if the output is token-identical to plain decoding with the same random stream;
            "distribution" if it has exactly the target's distribution; "lossy" if neither.
        trees: whether drafts may branch.
        sampled: whether drafts may be sampled (have a Proposal).
        scored: whether it reads q after the root of every pass, the prompt's too, so that sessions open before it.
    """

    exactness: Literal["tokens", "distribution", "lossy"]
    trees: bool
    sampled: bool
    scored: bool = False

    def prepare(self, tree: DraftTree, result: Pass, sampler: Sampler) -> Any:
        """Give the sampler a pass; return what `decide` is to work on, None if nothing."""

    def decide(self, prepared: Sequence[Any]) -> list[Array]:
        """Return what the walks need of what was prepared for some sequences, an array [n] on the device for each.

        It crosses from the device in one transfer.
        """
        return list(prepared)

    def walk(self, tree: DraftTree, prepared: list[Any] | None, sampler: Sampler) -> Walk:
        """Accept a path of the draft, commit its tokens and the target's own; return them.

        Args:
            tree: the draft.
            prepared: what `decide` returned, on the host; None if nothing was prepared.
            sampler: of the sequence; each committed token goes through its `commit`.
        """
