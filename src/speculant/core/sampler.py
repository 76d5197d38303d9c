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

    In a round: `load`, then `choose` or `probabilities` or neither, then for every committed token in order `draw`,
    `distribution` or neither, and `commit`; `end_round` at the end.

    Attributes:
        tokens: committed so far, prompt excluded.
        greedy: whether each token is the most probable one.
        parallel: whether it pays to compute what follows every row at once, on the device.
    """

    tokens: list[int]
    greedy: bool
    parallel: bool

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

    def probabilities(self) -> Array | None:
        """Return p [N + 1, V] after every row; None where p depends on the text in a way that rules this out.

        Where decoding is greedy: of the processed logits at temperature 1.
        """

    def uniforms(self, n: int) -> Array:
        """Return n numbers in [0, 1) [n] from the request's stream, for acceptance tests and draws."""

    def commit(self, token: int) -> bool:
        """Append a token to the text; return whether the text ends with it."""

    def end_round(self) -> None:
        """Bring the random stream to where plain decoding would have it."""
