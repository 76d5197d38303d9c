"""Cascade Speculative Drafting: draft models that draft for each other, with a model-free drafter as the last.

Chen et al.: "Cascade Speculative Drafting for Even Faster LLM Inference", NeurIPS 2024, arXiv 2312.11462, algorithm 1,
over a list of draft models, the largest first, followed by Max-Gram or another drafter:

- Horizontal: later tokens of a draft are rarely reached, so smaller models draft them. Of the draft for the target,
  drafter j makes lengths[0][j] tokens. When the target samples, each token is drawn from the q of the model that made
  it, while those of the last drafter are deterministic; each token is tested accordingly.
- Vertical: a draft model does not decode on its own, but verifies in each of its passes what the drafters after it
  propose: lengths[i][j] tokens of drafter j for model i. Its tokens are still drawn from its own distribution, and a
  proposal is followed while it agrees, so the draft is the one that the model would have drawn alone. These proposals
  are deterministic, which agrees most often.

The matrix of lengths is the authors' k matrix, with the target's as row 0; in the other rows, entries on and below the
diagonal are unused. The paper also allows lenient acceptance inside the cascade; ours does not.
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
from speculant.drafters.models.level_session import build_draft
from speculant.drafters.models.staged import BuildInner, InnerMemory
from speculant.drafters.models.tree_acceptance import LevelAcceptance
from speculant.drafters.models.warping import draw_token

Drawn = list[tuple[int, Tensor]]  # tokens, each with the q [V] it was drawn from
Lengths = tuple[tuple[int, ...], ...]

FIRST, NEXT, SMALL, LAST = 5, 14, 1, 10  # the authors' k matrix for two models and Max-Gram, row by row


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeSettings:
    """Settings of `cs-drafting`.

    Attributes:
        inner: method that drafts after all models.
        lengths: tokens that each drafter makes for the target and for each model, as rows of a matrix; empty for
            5,14,10;0,1,10;0,0,10 with two models and the inner method, and similar numbers otherwise.
    """

    inner: str = "maxgram"
    lengths: str = ""


class CascadeDrafter(InnerMemory):
    """Vertical and horizontal cascades: `cs-drafting`. Only the inner drafter's memory is saved.

    Attributes:
        lengths: the matrix, with a row for the target and one for each model.
    """

    def __init__(
        self,
        open_cache: OpenCache | Sequence[OpenCache],
        build_inner: BuildInner,
        *,
        vocabulary: int,
        settings: CascadeSettings | None = None,
    ) -> None:
        """Set up the draft models, the largest first, and build the inner drafter.

        Args:
            open_cache: returns an unread cache of a draft model for a prompt Int32[T]; a sequence of such functions for
                several models.
            build_inner: returns the drafter for a method name; rejects methods that use a draft model themselves.
            vocabulary: V of the target.
            settings: None for the defaults.

        Raises:
            UsageError: the inner method uses a draft model itself, or the lengths are invalid.
        """
        s = settings or CascadeSettings()
        self._open_caches = [open_cache] if callable(open_cache) else list(open_cache)
        self.lengths = parse_lengths(s.lengths, len(self._open_caches))
        self._vocabulary, self._acceptance = vocabulary, LevelAcceptance()
        super().__init__(build_inner(s.inner))

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs that the inner drafter learns from."""
        return self.inner.needs

    def open(self, start: SessionRequest) -> Session:
        inner = self.inner.open(start)
        levels: list[CascadeLevel] = []
        for place in reversed(range(len(self._open_caches))):
            text = DraftText.open(self._open_caches[place], start, self._vocabulary)
            levels.insert(0, CascadeLevel(text, levels[:], inner, self.lengths[place + 1][place + 1 :]))
        return CascadeSession(levels, inner, start, self.lengths[0], self._acceptance)


class CascadeLevel:
    """A draft model's text in one request, together with the drafters that propose to the model."""

    def __init__(self, text: DraftText, below: Sequence[CascadeLevel], inner: Session, lengths: Sequence[int]) -> None:
        """Combine the text, the models after this one, the inner drafter, and the number of tokens each proposes."""
        self.text, self._below, self._inner, self._lengths = text, below, inner, lengths
        self._held: dict[tuple[int, ...], tuple[int, Tensor]] = {}  # row and q, by the path of tokens below the root

    def restart(self) -> None:
        """Start a new round's draft."""
        self._held = {}

    def draw(self, tokens: Sequence[int], count: int, generator: torch.Generator | None) -> Drawn:
        """Return up to `count` tokens that follow a path below the root; without a generator the most probable ones."""
        path, found = tuple(tokens), Drawn()
        while len(found) < count and len(path) < self.text.depth:
            if path not in self._held:
                self._read(path, count - len(found))
            distribution = self._held[path][1]
            token = draw_token(distribution, generator)
            found.append((token, distribution))
            path = (*path, token)
        return found

    def _read(self, path: tuple[int, ...], left: int) -> None:
        """Read a path and the proposals below it in one pass."""
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
        rows, distributions = self.text.read(tokens, above)
        paths = {row: path[:held]}
        for token, parent, own, distribution in zip(tokens, above, rows, distributions, strict=True):
            paths[own] = (*paths[parent], token)
            self._held.setdefault(paths[own], (own, distribution))

    def _propose(self, path: tuple[int, ...], left: int) -> list[int]:
        """Return the deterministic tokens that the models after this one propose below a path."""
        tokens = list[int]()
        for level, length in zip(self._below, self._lengths, strict=False):
            room = min(length, left - len(tokens), self.text.depth - len(path) - len(tokens))
            tokens += [token for token, _ in level.draw([*path, *tokens], room, None)]
        return tokens

    def _propose_inner(self, path: Sequence[int], left: int) -> DraftTree:
        """Return the draft that the inner drafter proposes below a path."""
        room = min(self.text.depth - len(path), left)
        if min(room, self._lengths[-1]) < 1 or not self.text.trees:  # a chain's cache could not drop wrong proposals
            return DraftTree.empty()
        return self._inner.propose_after(path, Budget(nodes=self._lengths[-1], depth=room))


class CascadeSession(Session):
    """Session of one request: its text on the draft models, and the inner drafter's session."""

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
        """Return a chain. Repeated calls before `observe` draw the same tokens."""
        sampled = bool(self._start.sampling.temperature)
        generator = torch.Generator().manual_seed(self._start.round_seed(self._round)) if sampled else None
        for level in self._levels:
            level.restart()
        maximum, drawn = min(budget.nodes, budget.depth), Drawn()
        for level, length in zip(self._levels, self._lengths, strict=False):
            drawn += level.draw([token for token, _ in drawn], min(length, maximum - len(drawn)), generator)
        tokens, weights, distributions = [token for token, _ in drawn], list[float](), dict[int, Tensor]()
        for node, (token, distribution) in enumerate(drawn):
            distributions[node - 1] = distribution
            weights.append(min(1.0, float(distribution[token])) * (weights[-1] if weights else 1.0))
        rest = DraftTree.empty()
        if (left := min(maximum - len(tokens), self._lengths[-1])) > 0:
            rest = self._inner.propose_after(tokens, Budget(nodes=left, depth=left, trees=False))
        chosen = [False] * len(tokens) + [True] * len(rest)
        weights += ((weights[-1] if weights else 1.0) * rest.weights).tolist()
        tokens += rest.tokens.tolist()
        parents = list(range(-1, len(tokens) - 1))
        return build_draft(
            tokens, parents, weights, distributions if sampled else {}, chosen=chosen if len(rest) else None
        )

    def forecast(self, nodes: int) -> Float64:
        return self._acceptance.chain_gains(min(nodes, sum(self._lengths)))

    def unread(self) -> int:
        return self._levels[0].text.unread

    def observe(self, verified: Verified) -> None:
        """Record what was accepted, and let the inner drafter learn from the target's pass."""
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
    """Return the matrix of lengths [models + 1, models + 1] for a setting such as 5,10;0,10.

    Raises:
        UsageError: the matrix has the wrong size for the models and the inner method, or a number is out of range.
    """
    size = models + 1
    if not str(text).strip():
        first = (FIRST, *[NEXT] * (models - 1), LAST)
        return first, *((*[0] * (row + 1), *[SMALL] * (models - row - 1), LAST) for row in range(models))
    try:
        found = tuple(tuple(int(each) for each in row.split(",")) for row in str(text).split(";"))
    except ValueError as error:
        raise UsageError(f"lengths must be rows of numbers, as in 5,10;0,10, not {text!r}.") from error
    if len(found) != size or any(len(row) != size for row in found):
        raise UsageError(
            f"lengths={text} has {len(found)} rows; {models} draft models and the inner method take {size} rows of "
            f"{size} numbers."
        )
    if any(not 0 <= each <= MAX_NODES for row in found for each in row) or not sum(found[0]):
        raise UsageError(
            f"lengths must be from 0 to {MAX_NODES}, and the first row must draft at least one token; not {text}."
        )
    return found
