"""Cascade Speculative Drafting: draft models that draft for each other, with a drafter without a model at the end.

Chen et al.: "Cascade Speculative Drafting for Even Faster LLM Inference", NeurIPS 2024, arXiv 2312.11462, algorithm 1,
over a list of draft models, the largest first, and Max-Gram or another drafter behind them:

- Horizontal: later tokens of a draft are rarely reached, so smaller models make them. Of the target's draft, drafter j
  makes lengths[0][j] tokens. Where the target is sampled, each is drawn from the q of the model that made it, and those
  of the last drafter are chosen; every token is tested as what it is.
- Vertical: a draft model does not decode by itself, but verifies in each of its passes what the drafters behind it
  propose: lengths[i][j] tokens of drafter j for model i. Its tokens are still drawn from its own distribution, and a
  proposal followed while it agrees, so the draft is the one that the model would have drawn alone. What is proposed
  here is chosen, which agrees most often.

The matrix of lengths is the authors' k matrix, its row 0 the target's; entries on and below the diagonal of the other
rows are not used. They may also accept leniently inside the cascade; ours does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from speculant.core.drafter import Budget, Session, SessionRequest, Verified
from speculant.core.engine import MAX_NODES, RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.tree import ROOT, DraftTree, Float64
from speculant.drafters.models.draft_text import DraftText, OpenCache
from speculant.drafters.models.level_session import drafted
from speculant.drafters.models.staged import BuildInner, InnerMemory
from speculant.drafters.models.tree_acceptance import LevelAcceptance
from speculant.drafters.models.warping import draw_token

Drawn = list[tuple[int, Tensor]]  # tokens, each with the q [V] that it was drawn from
Lengths = tuple[tuple[int, ...], ...]

FIRST, NEXT, SMALL, LAST = 5, 14, 1, 10  # the authors' k matrix for two models and Max-Gram, row by row


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeSettings:
    """Settings of `cs-drafting`.

    Attributes:
        inner: the method that drafts behind all models.
        lengths: tokens that each drafter makes, in turn, for the target and for every model; empty for
            5,14,10;0,1,10;0,0,10 where there are two models and the inner method, and such numbers elsewhere.
    """

    inner: str = "maxgram"
    lengths: str = ""


class CascadeDrafter(InnerMemory):
    """Vertical and horizontal cascades: `cs-drafting`. What is saved is the inner drafter's memory.

    Attributes:
        lengths: the matrix, a row for the target and each model.
    """

    def __init__(
        self,
        open_cache: OpenCache | Sequence[OpenCache],
        build_inner: BuildInner,
        *,
        vocabulary: int,
        settings: CascadeSettings | None = None,
    ) -> None:
        """Take the draft models, the largest first, and build the inner drafter.

        Args:
            open_cache: returns a cache of a draft model for a prompt Int32[T], which is not read yet; several for
                several models.
            build_inner: returns the drafter of a method by its name; refuses those that draft with a model themselves.
            vocabulary: V of the target.
            settings: None for the defaults.

        Raises:
            UsageError: the inner method drafts with a model itself, or the lengths are no such matrix.
        """
        s = settings or CascadeSettings()
        self._open_caches = [open_cache] if callable(open_cache) else list(open_cache)
        self.lengths = parse_lengths(s.lengths, len(self._open_caches))
        self._vocabulary, self._acceptance = vocabulary, LevelAcceptance()
        super().__init__(build_inner(s.inner))

    @property
    def needs(self) -> RequestedOutputs:
        """What the inner drafter learns from."""
        return self.inner.needs

    def open(self, start: SessionRequest) -> Session:
        inner = self.inner.open(start)
        levels: list[CascadeLevel] = []
        for place in reversed(range(len(self._open_caches))):
            text = DraftText.open(self._open_caches[place], start, self._vocabulary)
            levels.insert(0, CascadeLevel(text, levels[:], inner, self.lengths[place + 1][place + 1 :]))
        return CascadeSession(levels, inner, start, self.lengths[0], self._acceptance)


class CascadeLevel:
    """A draft model's text in one request, and what drafts for the model."""

    def __init__(self, text: DraftText, below: Sequence[CascadeLevel], inner: Session, lengths: Sequence[int]) -> None:
        """Take the text, the models behind this one, the inner drafter, and the tokens that each proposes."""
        self.text, self._below, self._inner, self._lengths = text, below, inner, lengths
        self._held: dict[tuple[int, ...], tuple[int, Tensor]] = {}  # by the tokens below the root: the row, q after it

    def restart(self) -> None:
        """Begin a round's draft."""
        self._held = {}

    def draw(self, tokens: Sequence[int], count: int, generator: torch.Generator | None) -> Drawn:
        """Return up to so many tokens that follow tokens below the root; without a generator the most probable ones."""
        path, found = tuple(tokens), Drawn()
        while len(found) < count and len(path) < self.text.depth:
            if path not in self._held:
                self._read(path, count - len(found))
            law = self._held[path][1]
            token = draw_token(law, generator)
            found.append((token, law))
            path = (*path, token)
        return found

    def _read(self, path: tuple[int, ...], left: int) -> None:
        """Read a path and what is proposed below it, in one pass."""
        if not self._held:
            self._held[()] = ROOT, self.text.begin()[0]
            if not path:
                return
        held = max(length for length in range(len(path)) if path[:length] in self._held)
        row, first = self._held[path[:held]][0], self.text.rows
        tokens = [*path[held:], *self._propose(path, left - 1)]
        above = [row, *range(first, first + len(tokens) - 1)]
        rest = self._propose_inner([*path[:held], *tokens], left - 1 - (held + len(tokens) - len(path)))
        below = first + len(tokens)
        above += [below - 1 if parent == ROOT else below + parent for parent in rest.parents.tolist()]
        tokens += rest.tokens.tolist()
        rows, laws = self.text.read(tokens, above)
        paths = {row: path[:held]}
        for token, parent, own, law in zip(tokens, above, rows, laws, strict=True):
            paths[own] = (*paths[parent], token)
            self._held.setdefault(paths[own], (own, law))

    def _propose(self, path: tuple[int, ...], left: int) -> list[int]:
        """Return what the models behind this one propose below a path, chosen tokens."""
        tokens = list[int]()
        for level, length in zip(self._below, self._lengths, strict=False):
            room = min(length, left - len(tokens), self.text.depth - len(path) - len(tokens))
            tokens += [token for token, _ in level.draw([*path, *tokens], room, None)]
        return tokens

    def _propose_inner(self, path: Sequence[int], left: int) -> DraftTree:
        """Return what the inner drafter proposes below a path."""
        room = min(self.text.depth - len(path), left)
        if min(room, self._lengths[-1]) < 1 or not self.text.trees:  # what is wrong of it stays in the cache
            return DraftTree.empty()
        return self._inner.propose_after(path, Budget(nodes=self._lengths[-1], depth=room))


class CascadeSession(Session):
    """One request: its text on the draft models, and the inner drafter's session."""

    def __init__(
        self,
        levels: Sequence[CascadeLevel],
        inner: Session,
        start: SessionRequest,
        lengths: Sequence[int],
        acceptance: LevelAcceptance,
    ) -> None:
        self._levels, self._inner, self._start = levels, inner, start
        self._lengths, self._acceptance, self._round = lengths, acceptance, 0

    def propose(self, budget: Budget) -> DraftTree:
        """Return a chain. Asked again before `observe`, it draws the same tokens again."""
        sampled = bool(self._start.sampling.temperature)
        generator = torch.Generator().manual_seed(self._start.round_seed(self._round)) if sampled else None
        for level in self._levels:
            level.restart()
        maximum, drawn = min(budget.nodes, budget.depth), Drawn()
        for level, length in zip(self._levels, self._lengths, strict=False):
            drawn += level.draw([token for token, _ in drawn], min(length, maximum - len(drawn)), generator)
        tokens, weights, laws = [token for token, _ in drawn], list[float](), dict[int, Tensor]()
        for node, (token, law) in enumerate(drawn):
            laws[node - 1] = law
            weights.append(min(1.0, float(law[token])) * (weights[-1] if weights else 1.0))
        rest = DraftTree.empty()
        if (left := min(maximum - len(tokens), self._lengths[-1])) > 0:
            rest = self._inner.propose_after(tokens, Budget(nodes=left, depth=left, trees=False))
        chosen = [False] * len(tokens) + [True] * len(rest)
        weights += ((weights[-1] if weights else 1.0) * rest.weights).tolist()
        tokens += rest.tokens.tolist()
        parents = list(range(-1, len(tokens) - 1))
        return drafted(tokens, parents, weights, laws if sampled else {}, chosen=chosen if len(rest) else None)

    def forecast(self, nodes: int) -> Float64:
        return self._acceptance.chain_gains(min(nodes, sum(self._lengths)))

    def observe(self, verified: Verified) -> None:
        """Let the inner drafter learn from the target's pass."""
        if len(verified.tree):
            self._acceptance.observe(int(verified.tree.depths().max()), len(verified.path))
        for level in self._levels:
            level.text.observe(verified)
        self._inner.observe(verified)
        self._round += 1

    def close(self) -> None:
        self._inner.close()
        for level in self._levels:
            level.text.release()


def parse_lengths(text: str, models: int) -> Lengths:
    """Return the matrix of lengths [models + 1, models + 1] of a setting such as 5,10;0,10.

    Raises:
        UsageError: it is none for so many models and the inner method, or a number is out of range.
    """
    size = models + 1
    if not str(text).strip():
        first = (FIRST, *[NEXT] * (models - 1), LAST)
        return first, *((*[0] * (row + 1), *[SMALL] * (models - row - 1), LAST) for row in range(models))
    try:
        found = tuple(tuple(int(each) for each in row.split(",")) for row in str(text).split(";"))
    except ValueError as error:
        raise UsageError(f"lengths are rows of numbers, as in 5,10;0,10, not {text!r}.") from error
    if len(found) != size or any(len(row) != size for row in found):
        raise UsageError(
            f"lengths={text} has {len(found)} rows; {models} draft models and the inner method take {size} rows of "
            f"{size} numbers."
        )
    if any(not 0 <= each <= MAX_NODES for row in found for each in row) or not sum(found[0]):
        raise UsageError(f"lengths are 0 to {MAX_NODES}, and the first row makes at least one token; not {text}.")
    return found
