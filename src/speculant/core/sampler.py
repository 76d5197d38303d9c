"""The interface of a sampler: target distribution, random stream and end-of-text rules of one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from speculant.core.engine import EngineArray
from speculant.core.tree import DraftTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the target's distribution is warped before a token is drawn from it.

    Attributes:
        temperature: 0 for greedy decoding.
        top_k: keep the k most probable tokens; None for all.
        top_p: keep the smallest set of most probable tokens whose probabilities sum to at least p; None for all.
        min_p: keep tokens whose probability is at least this fraction of the highest one; None for all.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


GREEDY = Sampling()


class Sampler(Protocol):
    """The target's next-token distribution p, and the text generated so far. Lives as long as one request.

    The order of calls in a round: `load`, then `draw_all` or `probabilities` or neither, then for each committed token
    `draw` or `distribution` or neither, and `commit`; `end_round` at the end.

    Attributes:
        tokens: tokens committed so far, without the prompt.
        greedy: whether decoding is greedy.
        parallel: whether it pays to compute the tokens after all rows at once, on the device.
    """

    tokens: list[int]
    greedy: bool
    parallel: bool

    @property
    def room(self) -> int:
        """Maximum number of tokens that may still be added to the text."""

    def load(self, logits: EngineArray) -> None:
        """Take the logits [N + 1, V] of a pass."""

    def draw_all(self, tree: DraftTree) -> EngineArray | None:
        """Draw the token after every row at once, Int[N + 1] on the device, if p does not depend on the prefix.

        The result is transferred together with those of other sequences and passed to `set_drawn`. None if `draw`
        needs no such result.
        """

    def set_drawn(self, drawn: list[Any]) -> None:
        """Take the result of `draw_all`, transferred from the device."""

    def draw(self, row: int) -> int:
        """Return the token after a row, drawn exactly as plain decoding draws it."""

    def distribution(self, row: int) -> EngineArray:
        """Return p [V] after a row, with all processors applied to the committed text; one-hot if greedy."""

    def probabilities(self) -> EngineArray | None:
        """Return p [N + 1, V] after every row; None if p depends on the text in a way that rules this out.

        If decoding is greedy, p is the softmax of the processed logits at temperature 1.
        """

    def uniforms(self, n: int) -> EngineArray:
        """Return n numbers in [0, 1) [n] from the request's stream, for acceptance tests and draws."""

    def commit(self, token: int) -> bool:
        """Append a token to the text; return whether the text ends with it."""

    def end_round(self) -> None:
        """Advance the random stream to the position that plain decoding would have reached."""
