"""The contract of a sampler: the target's distribution, random stream and end of text of one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from speculant.core.engine import Array
from speculant.core.tree import DraftTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the target's distribution is warped before a token is drawn from it.

    Attributes:
        temperature: 0 for greedy decoding.
        top_k: keep the k most probable tokens; None for all.
        top_p: keep the fewest tokens whose probabilities reach p; None for all.
        min_p: keep tokens at least as probable as this share of the most probable one's; None for all.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


GREEDY = Sampling()


class Sampler(Protocol):
    """The target's next-token distribution p and the text as it grows. Lives as long as one request.

    In a round: `load`, then `choose` or not, then for every committed token in order one of `draw` and `distribution`,
    and `commit`; `end_round` at the end.

    Attributes:
        tokens: committed so far, prompt excluded.
    """

    tokens: list[int]

    @property
    def room(self) -> int:
        """How many more tokens the text may take."""

    def load(self, logits: Array) -> None:
        """Take the logits [N + 1, V] of a pass."""

    def choose(self, tree: DraftTree) -> Array | None:
        """Draw a token after every row at once, Int[N + 1] on the device, where nothing depends on the prefix.

        What is returned is read together with other sequences' and handed to `set_choices`. None: `draw` needs none.
        """

    def set_choices(self, choices: list[Any]) -> None:
        """Take what `choose` returned, read from the device."""

    def draw(self, row: int) -> int:
        """Return the token after a row, drawn exactly as plain decoding draws it."""

    def distribution(self, row: int) -> Array:
        """Return p [V] after a row, all processors applied to the committed text; one-hot where decoding is greedy."""

    def sample(self, distribution: Array) -> int:
        """Return a token drawn from a distribution [V], which need not be normalised, with the request's stream."""

    def uniform(self) -> float:
        """Return a number in [0, 1) for an acceptance test, from the request's stream; 0.5 where decoding is greedy."""

    def commit(self, token: int) -> bool:
        """Append a token to the text; return whether the text ends with it."""

    def end_round(self) -> None:
        """Bring the random stream to where plain decoding would have it."""
