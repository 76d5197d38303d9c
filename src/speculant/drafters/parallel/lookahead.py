"""Lookahead Decoding: the target guesses n-grams in a window next to the draft, which consists of n-grams found before.

Fu, Bailis, Stoica, Zhang: "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding", ICML 2024, arXiv
2402.02057. Two branches share every target pass. The lookahead branch is a window of W positions and N - 1 Jacobi
iterations (`window.py`); its rows are queries, so they are never accepted. Its n-grams go into a pool, keyed by first
token (`pool.py`). The verification branch is the draft: up to G n-grams that begin with the root, as a tree, so that
common prefixes are verified once.

Differences from the authors' code (hao-ai-lab/LookaheadDecoding): n-grams are drafted as soon as the pool has some, not
only when the window is full; an n-gram accepted to its end commits N tokens instead of N - 1, since the bonus token
counts too; when the target samples, drafts are verified like those of all methods here, token-identical to plain
decoding with the same seed; and tokens that end a text stay in the window, since a drafter does not know which those
are. The window's first guesses are drawn from the prompt, with the request's drafting seed.

A round without a draft (a budget of 0 nodes) also runs without the window, so that it costs as much as plain decoding;
a window that does not fit the model's positions is left out. In both cases it is kept unchanged, and its tokens count
from the root of the next round that runs it. If an engine limits the number of branches, the window loses its last
columns.

The weight of a node is a product of measured acceptance rates, counted per request by a token's rank among those that
the pool offers for its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.tree import NO_QUERIES, ROOT, DraftTree
from speculant.drafters.parallel.pool import NgramPool
from speculant.drafters.parallel.window import LookaheadWindow, max_queries

_PRIOR_TRIALS = 4.0
_PRIOR_FIRST, _PRIOR_NEXT = 0.3, 0.5  # rates for the most recent n-gram's first token, and for its further ones


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadSettings:
    """Settings of Lookahead Decoding; the first three are the published ones for a model of 7 B parameters on a GPU.

    A pass runs (N - 1) W - 1 query rows, 27, and up to G (N - 1) nodes, 28. Where rows cost time, as on CPUs, smaller
    values pay off.

    Attributes:
        window: W, number of positions guessed in parallel.
        ngram: N, tokens per n-gram.
        candidates: G, n-grams kept and drafted per first token.
        from_prompt: whether the n-grams of the prompt and of the output also go into the pool.
        pool: maximum number of first tokens in a request's pool.

    Raises:
        UsageError: a number is too small.
    """

    window: int = 7
    ngram: int = 5
    candidates: int = 7
    from_prompt: bool = False
    pool: int = 4096

    def __post_init__(self) -> None:
        if min(self.window, self.ngram) < 2:
            raise UsageError("window and ngram must each be 2 or more; give larger ones.")
        if min(self.candidates, self.pool) < 1:
            raise UsageError("candidates and pool must each be 1 or more; give larger ones.")


class LookaheadDrafter(Drafter):
    """Opens sessions; no state is kept between them."""

    def __init__(self, *, settings: LookaheadSettings | None = None) -> None:
        """Prepare for requests; `settings` None for the defaults."""
        self.settings = settings or LookaheadSettings()

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs this drafter needs: the best token at every row, and query rows for the window."""
        return RequestedOutputs(top_k=1, queries=max_queries(self.settings.window, self.settings.ngram))

    def open(self, start: SessionRequest) -> Session:
        """Start a request."""
        return LookaheadSession(start, self.settings)


class LookaheadSession(Session):
    """Session of one request: its window, its pool, and the end of its text."""

    def __init__(self, start: SessionRequest, settings: LookaheadSettings) -> None:
        self._settings = settings
        self._pool = NgramPool(candidates=settings.candidates, first_tokens=settings.pool)
        prompt = start.prompt.tolist() or [0]
        drawn = np.random.default_rng(start.seed).choice(prompt, settings.window + settings.ngram - 3)
        self._window = LookaheadWindow(drawn.tolist(), width=settings.window, ngram=settings.ngram)
        self._text = prompt[:1]  # at most the last N tokens
        self._read(prompt[1:])
        shape = 2, settings.candidates
        self._tried = np.full(shape, _PRIOR_TRIALS)
        self._right = self._tried * [[_PRIOR_FIRST], [_PRIOR_NEXT]] / np.arange(1, settings.candidates + 1)

    def propose(self, budget: Budget) -> DraftTree:
        """Return a tree of the n-grams that begin with the root, with the window as its queries."""
        if min(budget.nodes, budget.depth) < 1:
            return DraftTree.empty()
        columns, tree = self._window.columns_within(budget.branches), self._tree(budget)
        window = self._window.first_columns(columns)
        queries = window.queries() if columns and budget.queries >= window.depth else NO_QUERIES
        return DraftTree.trusted(tree.tokens, tree.parents, tree.weights, queries=queries)

    def observe(self, verified: Verified) -> None:
        """Add the n-grams that the window found to the pool."""
        tokens = verified.tokens.tolist()
        self._count(tokens)
        if verified.top_ids is not None and len(verified.tree.queries):
            best = verified.top_ids[:, 0].tolist()
            self._window = self._window.asked_by(verified.tree.queries)
            for ngram in self._window.advance(self._text[-1], best[0], best[len(verified.tree) + 1 :]):
                self._pool.add(ngram)
        self._read(tokens)

    def close(self) -> None:
        """Do nothing."""

    def _tree(self, budget: Budget) -> DraftTree:
        """Return the draft, heaviest nodes first."""
        paths = [rest[: budget.depth] for rest in self._pool.after(self._text[-1])]
        tree, rates = DraftTree.from_paths(paths), self._right / self._tried
        weights, children = list[float](), dict[int, int]()
        for parent in tree.parents.tolist():
            place = children.get(parent, 0)
            children[parent] = place + 1
            above = 1.0 if parent == ROOT else weights[parent]
            weights.append(above * float(rates[int(parent != ROOT), place]))
        tree = DraftTree.trusted(tree.tokens, tree.parents, np.array(weights, np.float32))
        return DraftTree.merge([tree], len(tree)).within(depth=budget.depth, trees=budget.trees).head(budget.nodes)

    def _count(self, tokens: Sequence[int]) -> None:
        """Count which of the tokens that the pool offered for each committed position was correct."""
        left = self._pool.after(self._text[-1])
        for depth, token in enumerate(tokens[: self._settings.ngram - 1]):
            offered = list(dict.fromkeys(rest[depth] for rest in left))
            self._tried[int(depth > 0), : len(offered)] += 1
            if token not in offered:
                break
            self._right[int(depth > 0), offered.index(token)] += 1
            left = [rest for rest in left if rest[depth] == token]

    def _read(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text, and with `from_prompt`, its n-grams to the pool."""
        length = self._settings.ngram
        for token in tokens:
            self._text = [*self._text[1 - length :], token]
            if self._settings.from_prompt and len(self._text) == length:
                self._pool.add(self._text)
