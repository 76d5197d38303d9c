"""Jacobi decoding: guess all next tokens at once, and let every target pass improve the guesses.

Santilli, Severino, Postolache, Maiorca, Mancusi, Marin, Rodola: "Accelerating Transformer Inference for Translation via
Parallel Decoding", ACL 2023, arXiv 2305.10427; before that Song et al., ICML 2021, arXiv 2002.03629. Greedy decoding is
a system of equations, y_i = argmax p(. | y_1 .. y_(i-1)), solved here by Jacobi's method: a pass over the guesses gives
the argmax after each, and these are the next guesses. The first wrong guess is replaced by the correct token, so every
pass settles at least one token, and the fixed point is the output of plain decoding.

As a drafter: the guesses are a chain, the pass verifies them, and the argmax at every row, including those of rejected
nodes, is the next iterate. The paper's three variants differ in which positions are iterated:

- `pj` (parallel Jacobi): all remaining positions of the text, here as many as the budget allows;
- `pgj` (parallel Gauss-Seidel-Jacobi): the positions of one block; the next block begins when this one is settled;
- `hgj` (hybrid): the same for the first `length` tokens, then plain decoding, since the length of a text is not known
  in advance. In every variant a text that ends earlier does so by the usual stopping rules.

Unlike the authors' code, which settles one token per pass until a whole block repeats itself, each round keeps all
guesses that the pass confirms. If the target samples, the sampled tokens decide what is accepted; the next guesses are
still argmaxes.

The weights of nodes are measured per request. A guess that the last pass changed is seldom correct, and one that
several passes left unchanged often is, so acceptance is counted by the number of passes that have returned it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.tree import UNLIMITED, DraftTree, Int32

_PRIOR_RATES = (0.02, 0.1, 0.4, 0.7)  # for guesses returned by 0, 1, 2, and 3 or more passes in a row
_PRIOR_TRIALS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JacobiSettings:
    """Settings of Jacobi decoding; block and length are those of the authors' code.

    Attributes:
        variant: "pj", "pgj" or "hgj".
        block: tokens per block in "pgj" and "hgj"; a pass has one node less, since its last row also yields a token.
        length: number of tokens after which "hgj" decodes plainly.
        fill: token that positions hold before their first pass, for instance the model's padding token, as in the
            paper; None to repeat the prompt's tokens in order.

    Raises:
        UsageError: the variant is unknown, the block has fewer than 2 tokens, or the length is negative.
    """

    variant: str = "pj"
    block: int = 3
    length: int = 512
    fill: int | None = None

    def __post_init__(self) -> None:
        if self.variant not in ("pj", "pgj", "hgj"):
            raise UsageError(f"variant must be 'pj', 'pgj' or 'hgj', not {self.variant!r}.")
        if self.block < 2:
            raise UsageError("a block of one token is plain decoding; give a block of 2 or more.")
        if self.length < 0:
            raise UsageError("length must be 0 tokens or more.")


class JacobiDrafter(Drafter):
    """Opens sessions; no state is kept between them."""

    def __init__(self, *, vocabulary: int, settings: JacobiSettings | None = None) -> None:
        """Prepare for requests.

        Args:
            vocabulary: V, the number of token ids.
            settings: None for the defaults.

        Raises:
            UsageError: `fill` is not a token of the model.
        """
        self.settings = settings or JacobiSettings()
        if self.settings.fill is not None and not 0 <= self.settings.fill < vocabulary:
            raise UsageError(f"the model has no token {self.settings.fill}; fill with one from 0 to {vocabulary - 1}.")

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs this drafter needs: the best token at every row."""
        return RequestedOutputs(top_k=1)

    def open(self, start: SessionRequest) -> Session:
        """Start a request."""
        return JacobiSession(start.prompt, self.settings)


class JacobiSession(Session):
    """Session of one request: the guesses after the root, and how often passes have returned each."""

    def __init__(self, prompt: Int32, settings: JacobiSettings) -> None:
        self._settings = settings
        self._fill = [settings.fill] if settings.fill is not None else prompt.tolist() or [0]
        self._guesses: list[int] = []
        self._returned: list[int] = []  # number of consecutive passes that returned each guess
        self._done = 0  # number of committed tokens
        self._right = _PRIOR_TRIALS * np.array(_PRIOR_RATES)
        self._tried = np.full(len(_PRIOR_RATES), _PRIOR_TRIALS)

    def propose(self, budget: Budget) -> DraftTree:
        """Return the guesses for the iterated positions, as a chain."""
        nodes = min(budget.nodes, budget.depth, self._count_unsettled() - 1)
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
        """Take the argmax of each row after the accepted path as the guess for the next position."""
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

    def _count_unsettled(self) -> int:
        """Return how many positions after the committed tokens are iterated; 0 or less where decoding is plain."""
        settings, done = self._settings, self._done
        if settings.variant == "pj":
            return UNLIMITED
        left = settings.block - done % settings.block
        return left if settings.variant == "pgj" else min(left, settings.length - done)

    def _guess(self, positions: int) -> None:
        """Ensure that each of the next `positions` positions has a guess."""
        for place in range(len(self._guesses), positions):
            self._guesses.append(self._fill[(self._done + place) % len(self._fill)])
            self._returned.append(0)

    def _count(self, nodes: int, tokens: Int32) -> None:
        """Count which of the verified guesses were correct, up to the first wrong one."""
        for place, token in enumerate(tokens.tolist()[:nodes]):
            right = self._guesses[place] == token
            self._tried[self._returned[place]] += 1
            self._right[self._returned[place]] += right
            if not right:
                break
