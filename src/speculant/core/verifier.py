"""The interface of a verifier: the acceptance rule that walks a draft after the target's pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from speculant.core.engine import EngineArray, Pass
from speculant.core.sampler import Sampler
from speculant.core.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Walk:
    """The tokens that a round commits.

    Attributes:
        path: the accepted nodes [A], in order.
        tokens: the committed tokens [A + 1]: the accepted ones, then the target's own.
        ended: whether the text ends with the last of these tokens.
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
        scored: whether it reads q after the root of every pass, including the prompt's, so that sessions must be opened
            before the prompt's pass is walked.
    """

    exactness: Literal["tokens", "distribution", "lossy"]
    trees: bool
    sampled: bool
    scored: bool = False

    def prepare(self, tree: DraftTree, result: Pass, sampler: Sampler) -> Any:
        """Load a pass into the sampler; return the input of `decide`, or None if it has nothing to do."""

    def decide(self, prepared: Sequence[Any]) -> list[EngineArray]:
        """Compute, for each prepared sequence, the array [n] on the device that its walk needs.

        All of them are transferred to the host at once.
        """
        return list(prepared)

    def walk(self, tree: DraftTree, prepared: list[Any] | None, sampler: Sampler) -> Walk:
        """Accept a path of the draft, commit its tokens and the target's own, and return them.

        Args:
            tree: the draft.
            prepared: the result of `decide`, on the host; None if nothing was prepared.
            sampler: the sequence's sampler; its `commit` is called for each committed token.
        """
