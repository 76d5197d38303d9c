"""A committed text on a head, kept in step with the target's: what shapes of drafts grow from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from speculant.core.drafter import Start, Verified
from speculant.core.tree import ROOT
from speculant.drafters.heads.head import HeadState
from speculant.drafters.heads.kept import KeptStates
from speculant.drafters.models.level_session import LevelText
from speculant.drafters.models.warping import Warping

_UNREAD = 64  # committed tokens whose states may wait to be read


class HeadText(LevelText):
    """One request.

    Attributes:
        tokens: the committed text, the root included.
        state: the head's; None until the prompt's pass was observed.
    """

    def __init__(self, states: KeptStates, start: Start) -> None:
        """Begin a request.

        Args:
            states: where the text's state comes from and where it is kept when the request ends.
            start: of the request.
        """
        self._states, self._warping, self._cache = states, Warping(start.sampling), start.target
        self._head, self._target = states.head, states.target
        self.tokens: list[int] = start.prompt.tolist()
        self.state: HeadState | None = None
        self._rows: list[int] = []  # by the number of a row of the draft, the state's
        self._unread: list[int] = []  # committed tokens behind those that have no row yet
        self._hidden: list[Tensor] = []  # the target's states at these, round by round

    @property
    def depth(self) -> int:
        """How deep a draft may be."""
        deepest = [self._head.depth] if self._head.depth is not None else []
        if self._target.positions is not None:
            deepest.append(self._target.positions - len(self.tokens))
        if self.state is not None and self.state.room is not None:
            deepest.append(self.state.room)
        return max(0, min(deepest, default=len(self.tokens) + 1024))

    @property
    def trees(self) -> bool:
        """Heads read drafts that branch."""
        return True

    @property
    def rows(self) -> int:
        """How many rows the draft has: the number of the next one."""
        return len(self._rows)

    def begin(self) -> Tensor:
        """Drop all rows of a draft, read what was committed; return q [1, V] after the root."""
        assert self.state is not None
        with torch.inference_mode():
            self._rows = []
            self._catch_up(self.state)
            return self._distributions(self.state.start())

    def read(self, tokens: Sequence[int], above: Sequence[int]) -> tuple[list[int], Tensor]:
        """Run n nodes below rows (-1: the root, or nodes among them); return their rows and q [n, V] after them."""
        assert self.state is not None
        first, grown = len(self._rows), len(self._rows)
        self._rows += [ROOT] * len(tokens)
        levels, found = _levels(above, first), list[Tensor]()
        with torch.inference_mode():
            for level in levels:
                parents = [ROOT if above[node] == ROOT else self._rows[above[node]] for node in level]
                found.append(self._distributions(self.state.grow([tokens[node] for node in level], parents)))
                for node in level:
                    self._rows[first + node], grown = grown, grown + 1
            q = found[0]
            if len(levels) > 1:  # in the order of the nodes
                order = sorted(range(len(tokens)), key=[node for level in levels for node in level].__getitem__)
                q = torch.cat(found)[order]
        return list(range(first, len(self._rows))), q

    def observe(self, verified: Verified) -> None:
        """Take committed tokens with the target's own states; those after the prompt are read when a draft begins.

        So rounds without a draft cost no pass of the head, and all that they committed is read in one.
        """
        hidden, following, most = verified.hidden, verified.tokens.tolist(), _UNREAD
        if self.state is None:  # of the prompt, as far as it was not cached before
            cached = 0 if hidden is None else len(self.tokens) - len(hidden)
            self.state = self._states.open(self.tokens[: cached + 1], self._cache)
            following, most = self.tokens[cached + 1 :] + following, 0
        elif hidden is not None and len(hidden) > 1:
            hidden = hidden[[0, *(verified.path + 1).tolist()]]
        if hidden is None:  # the head reads the text
            hidden, most = torch.empty(len(following), 0, 0), 0
        self._hidden.append(hidden)
        self._unread += following
        self._rows = []
        if len(self._unread) > most:
            self._catch_up(self.state)
        self.tokens += verified.tokens.tolist()

    def _catch_up(self, state: HeadState) -> None:
        """Drop the rows of a draft; append those of committed tokens that have none."""
        state.drop()
        if not self._unread:
            return
        following, held = self._unread, self._hidden
        self._unread, self._hidden = [], []
        hidden = held[0] if len(held) == 1 else torch.cat(held)
        with torch.inference_mode():
            state.extend(hidden, torch.tensor(following, device=hidden.device))

    def release(self) -> None:
        """Keep the state for a text that goes on from this one."""
        state, self.state = self.state, None
        if state is not None:
            self._catch_up(state)
            self._states.keep(self.tokens, state)

    def _distributions(self, logits: Tensor) -> Tensor:
        """Return the distributions [n, V] of logits [n, V'], over the target's vocabulary."""
        logits, ids = logits.float(), self._head.ids
        if ids is not None:
            wide = logits.new_full((len(logits), self._target.vocabulary), -torch.inf)
            logits = wide.index_copy_(1, ids, logits)
        return self._warping(logits[:, : self._target.vocabulary])


def _levels(above: Sequence[int], first: int) -> list[list[int]]:
    """Return nodes by their depth among each other, given the rows above them, of which theirs begin at `first`."""
    levels, depths = list[list[int]](), list[int]()
    for node, row in enumerate(above):
        depth = 0 if row < first else depths[row - first] + 1
        depths.append(depth)
        if depth == len(levels):
            levels.append([])
        levels[depth].append(node)
    return levels
