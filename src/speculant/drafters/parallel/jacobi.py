"""Jacobi decoding: guess all next tokens at once, and let every target pass improve the guesses.

Santilli, Severino, Postolache, Maiorca, Mancusi, Marin, Rodola: "Accelerating Transformer Inference for Translation via
Parallel Decoding", ACL 2023, arXiv 2305.10427; before that Song et al., ICML 2021, arXiv 2002.03629. Greedy decoding is
a system of equations, y_i = argmax p(. | y_1 .. y_(i-1)), solved here by Jacobi's method: a pass over the guesses gives
the argmax after each, and these are the next guesses. The first wrong guess is replaced by the right token, so every
pass settles one token or more, and the fixed point is the output of plain decoding.

As a drafter: the guesses are a chain, the pass verifies them, and the argmax at every row, those of rejected nodes
included, is the next iterate. The three variants of the paper differ in which positions are iterated:

- `pj` (parallel Jacobi): all that are left of the text, here as many as the budget pays for;
- `pgj` (parallel Gauss-Seidel-Jacobi): those of one block; the next block begins when this one is settled;
- `hgj` (hybrid): the same for the first `length` tokens, and plain decoding from there on, since the length of a text
  is not known in advance. A text that ends before does so in every variant, by the rules that end texts.

What differs from the authors' code, which settles one token a pass until a whole block repeats itself: each round
keeps all guesses that the pass confirms. And where the target samples, the drawn tokens are verified as such; the next
guesses are still argmaxes.

The weights of nodes are measured per request. A guess that a pass has just changed is seldom right and one that several
passes left alone often, so acceptance is counted by the number of passes that have returned the same guess.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.tree import UNLIMITED, DraftTree, Int32

_PRIOR_RATES = (0.02, 0.1, 0.4, 0.7)  # of guesses that no pass has returned, that one has, two, three or more
_PRIOR_TRIALS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JacobiSettings:
    """Settings; block and length are those of the authors' code.

    Attributes:
        variant: "pj", "pgj" or "hgj".
        block: tokens of a block of "pgj" and "hgj"; a pass runs one node less, since its last row yields a token too.
        length: tokens after which "hgj" decodes plainly.
        fill: the token that positions hold before their first pass, for instance the model's padding token, as in the
            paper; None for the prompt's tokens in order, again and again.

    Raises:
        UsageError: there is no such variant, a block has fewer than 2 tokens, or the length is negative.
    """

    variant: str = "pj"
    block: int = 3
    length: int = 512
    fill: int | None = None

    def __post_init__(self) -> None:
        if self.variant not in ("pj", "pgj", "hgj"):
            raise UsageError(f"the variants of Jacobi decoding are 'pj', 'pgj' and 'hgj', not {self.variant!r}.")
        if self.block < 2:
            raise UsageError("a block of one token is plain decoding; give a block of 2 or more.")
        if self.length < 0:
            raise UsageError("length counts tokens; give 0 or more.")


class JacobiDrafter(Drafter):
    """Opens sessions; nothing is kept between them."""

    def __init__(self, *, vocabulary: int, settings: JacobiSettings | None = None) -> None:
        """Prepare for requests.

        Args:
            vocabulary: V, the number of token ids.
            settings: None for the defaults.

        Raises:
            UsageError: the token to fill with is none of the model's.
        """
        self.settings = settings or JacobiSettings()
        if self.settings.fill is not None and not 0 <= self.settings.fill < vocabulary:
            raise UsageError(f"the model has no token {self.settings.fill}; fill with one from 0 to {vocabulary - 1}.")

    @property
    def needs(self) -> RequestedOutputs:
        """The target's best token at every row."""
        return RequestedOutputs(top_k=1)

    def open(self, start: SessionRequest) -> Session:
        """Begin a request."""
        return JacobiSession(start.prompt, self.settings)


class JacobiSession(Session):
    """One request: the guesses behind the root, and how often passes have returned each."""

    def __init__(self, prompt: Int32, settings: JacobiSettings) -> None:
        self._settings = settings
        self._fill = [settings.fill] if settings.fill is not None else prompt.tolist() or [0]
        self._guesses: list[int] = []
        self._returned: list[int] = []  # passes in a row that returned each guess
        self._done = 0  # tokens committed
        self._right = _PRIOR_TRIALS * np.array(_PRIOR_RATES)
        self._tried = np.full(len(_PRIOR_RATES), _PRIOR_TRIALS)

    def propose(self, budget: Budget) -> DraftTree:
        """Return the guesses of the positions that are iterated, as a chain."""
        nodes = min(budget.nodes, budget.depth, self._unsettled() - 1)
        if nodes < 1:
            return DraftTree.empty()
        self._guess(nodes)
        rates = (self._right / self._tried)[self._returned[:nodes]]
        return DraftTree.trusted(
            np.array(self._guesses[:nodes], np.int32),
            np.arange(-1, nodes - 1, dtype=np.int32),
            np.cumprod(rates).astype(np.float32),
        )

    def observe(self, verified: Verified) -> None:
        """Take the argmax of each row behind the accepted path as the guess of the next position."""
        nodes, accepted, committed = len(verified.tree), len(verified.path), len(verified.tokens)
        self._guess(max(nodes + 1, committed))
        self._count(nodes, verified.tokens)
        if verified.top_ids is not None:
            best = verified.top_ids[:, 0].tolist()
            for place in range(accepted + 1, nodes + 1):
                same = self._guesses[place] == best[place]
                self._returned[place] = min(self._returned[place] + 1, len(_PRIOR_RATES) - 1) if same else 1
                self._guesses[place] = best[place]
        del self._guesses[:committed], self._returned[:committed]
        self._done += committed

    def close(self) -> None:
        """Do nothing."""

    def _unsettled(self) -> int:
        """Return how many tokens behind the committed ones are iterated; 0 or less where decoding is plain."""
        settings, done = self._settings, self._done
        if settings.variant == "pj":
            return UNLIMITED
        left = settings.block - done % settings.block
        return left if settings.variant == "pgj" else min(left, settings.length - done)

    def _guess(self, positions: int) -> None:
        """Give each of the next positions a guess."""
        for place in range(len(self._guesses), positions):
            self._guesses.append(self._fill[(self._done + place) % len(self._fill)])
            self._returned.append(0)

    def _count(self, nodes: int, tokens: Int32) -> None:
        """Count which of the verified guesses were right, up to the first that was not."""
        for place, token in enumerate(tokens.tolist()[:nodes]):
            right = self._guesses[place] == token
            self._tried[self._returned[place]] += 1
            self._right[self._returned[place]] += right
            if not right:
                break
