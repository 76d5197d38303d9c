"""A committed text on a head, kept in step with the target's, from which drafts grow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch
from torch import Tensor

from speculant.core.drafter import SessionRequest, Verified
from speculant.core.errors import OutOfMemoryError, is_out_of_memory
from speculant.core.tree import ROOT
from speculant.drafters.heads.head import HeadState
from speculant.drafters.heads.kept import KeptStates
from speculant.drafters.heads.step import GrownDraft
from speculant.drafters.heads.whole_drafts import grow_drafts
from speculant.drafters.models.level_session import LevelText
from speculant.drafters.models.shapes import GrowthPlan
from speculant.drafters.models.together import Answer, NodeReading
from speculant.drafters.models.warping import Warping

_NO_ROOM = "the device ran out of memory in a pass of the head."
_PATIENCE = 3  # rounds without room after which a text asks for no more passes and is decoded plainly
_UNREAD = 4096  # maximum tokens whose states wait for more than a round until they are read; more are given up
_TIMED_DRAFTS, _TIMED_LEVELS, _TIMED_ROWS = 3, 3, 3


class HeadText(LevelText):
    """Text of one request.

    Attributes:
        head: the head.
        tokens: committed text, including the root.
        state: the head's state; None until the prompt's pass was observed.
    """

    def __init__(self, states: KeptStates, start: SessionRequest) -> None:
        """Start a request.

        Args:
            states: opens the text's state, and keeps it when the request ends.
            start: the request.
        """
        self._states, self._warping, self._cache = states, Warping(start.sampling), start.target
        self.head, self._target = states.head, states.target
        # Of an encoder-decoder's prompt, heads read the decoder's first tokens; the rest is the encoder's.
        self.tokens: list[int] = (start.prompt if start.source is None else start.source.prompt).tolist()
        self._source: Tensor | None = None if start.source is None else start.source.states[0]
        self.state: HeadState | None = None
        self._rows: list[int] = []  # the state's row for each row of the draft
        self._unread: list[int] = []  # for each committed token without a row, the token that follows it
        self._hidden: list[Tensor] = []  # the target's states at these tokens, round by round
        self._drafts = False  # whether the head has read anything
        self._failed = 0  # number of rounds in which there was no room for a pass of the head

    @property
    def depth(self) -> int:
        """Maximum depth of a draft.

        Raises:
            OutOfMemoryError: there was no room for the head's passes in several rounds.
        """
        if self.state is None and self._failed:
            if self._failed >= _PATIENCE:
                raise OutOfMemoryError(_NO_ROOM)
            return 0
        deepest = [self.head.depth] if self.head.depth is not None else []
        if self._target.positions is not None:
            deepest.append(self._target.positions - len(self.tokens))
        if self.state is not None and self.state.room is not None:
            deepest.append(self.state.room)
        return max(0, min(deepest, default=len(self.tokens) + 1024))

    @property
    def trees(self) -> bool:
        """True: heads can read drafts with branches."""
        return True

    @property
    def known_state(self) -> HeadState:
        """The head's state, which the prompt's pass opened.

        Raises:
            OutOfMemoryError: there was no room for a pass of the head in this round.
        """
        if self.state is None and self._failed:
            raise OutOfMemoryError(_NO_ROOM)
        assert self.state is not None
        return self.state

    @property
    def vocabulary(self) -> int:
        """V of the target."""
        return self._target.vocabulary

    @property
    def row_share(self) -> float | None:
        """Time of a further row in a level, relative to a level of one row; measured once per head.

        It is None if nodes need no rows of their own, since logits depend only on the depth, and 0 while it cannot be
        measured.
        """
        if self.head.parallel:
            return None
        if self._states.row_share is None and self.depth > 1:
            self._states.row_share = measure_row_share(self)
        return self._states.row_share or 0.0

    @property
    def rows(self) -> int:
        """Number of rows in the draft, which is the index of the next one."""
        return len(self._rows)

    @property
    def unread(self) -> int:
        """Number of committed tokens that the next draft reads first."""
        return len(self._unread)

    def begin(self) -> Tensor:
        """Drop all rows of the draft and read committed tokens; return q [1, V] after the root."""
        [(_, q)] = read_together([self], [NodeReading()])
        return q

    def read(self, tokens: Sequence[int], above: Sequence[int]) -> Answer:
        """Run n nodes below parent rows (-1: the root; new nodes count); return their rows and q [n, V] after them."""
        [answer] = read_together([self], [NodeReading(tokens, above)])
        return answer

    def plan(self, tokens: Sequence[int], above: Sequence[int]) -> list[tuple[list[int], list[int]]]:
        """Assign rows to nodes; return the nodes and their parent rows, level by level."""
        first, grown = len(self._rows), len(self._rows)
        self._rows += [ROOT] * len(tokens)
        planned = list[tuple[list[int], list[int]]]()
        for level in _levels(above, first):
            planned.append((level, [ROOT if above[node] == ROOT else self._rows[above[node]] for node in level]))
            for node in level:
                self._rows[first + node], grown = grown, grown + 1
        return planned

    def observe(self, verified: Verified) -> None:
        """Store committed tokens, and those of the prompt, with the target's states; they are read by the next draft.

        So rounds without a draft cost no pass of the head, and all their tokens are read in one pass.
        """
        hidden, following = verified.hidden, verified.tokens.tolist()
        if hidden is None and self.head.taps:
            self.follow(following)
            return
        if len(self._unread) > _UNREAD and self.head.taps:  # the states of so many take too much memory
            self._drop_state()
        if hidden is not None and len(verified.tree):
            hidden = hidden[[0, *(verified.path + 1).tolist()]] if len(hidden) > 1 else hidden
        if self.state is None:  # for the part of the prompt that was not cached, or after a pause
            first = 0 if hidden is None else len(self.tokens) - (1 if len(verified.tree) else len(hidden))
            self.state = self._states.open(self.tokens[: first + 1], self._cache, self._source)
            following = self.tokens[first + 1 :] + following
        if hidden is None:  # the head reads the text itself
            hidden = torch.empty(len(following), 0, 0)
        self._wait(following, hidden)
        self.tokens += verified.tokens.tolist()

    def follow(self, tokens: Sequence[int]) -> None:
        """Add tokens committed without states; a head that does not read the text starts afresh after them."""
        self.tokens += tokens
        if self.state is not None and not self.head.taps:
            self._wait(tokens, torch.empty(len(tokens), 0, 0))
            return
        self._drop_state()

    def forget(self) -> None:
        """Give up the state, of which a pass without room may have appended a part; the next round opens another."""
        self._drop_state()
        self._failed += 1

    def _drop_state(self) -> None:
        self.state, self._hidden, self._unread, self._rows = None, [], [], []

    def _wait(self, following: Sequence[int], hidden: Tensor) -> None:
        """Let committed tokens wait for the next draft, each with the target's states before it."""
        if self._hidden:  # a part of a batch's tensor would keep all of it for as long as the text waits
            self._hidden[-1] = _own(self._hidden[-1])
        self._hidden.append(hidden)
        self._unread += following
        self._rows = []

    def take_unread(self) -> tuple[Tensor, Tensor] | None:
        """Drop the draft's rows; return states and next tokens for committed tokens without rows, None if all have."""
        self.known_state.drop()
        self._rows, self._drafts = [], True
        if not self._unread:
            return None
        following, held = self._unread, self._hidden
        self._unread, self._hidden = [], []
        hidden = held[0] if len(held) == 1 else torch.cat(held)
        return hidden, torch.tensor(following, device=hidden.device)

    def release(self) -> None:
        """Keep the state, if it can be reused, for a text that continues this one, if the head has drafted for it."""
        if self.state is not None and self._drafts and self._states.lasting:
            with suppress(OutOfMemoryError), _running([self]):
                _catch_up([self])
        if self.state is not None and self._drafts:
            self._states.keep(self.tokens, self.state)
        self.state = None

    def distributions(self, logits: Tensor) -> Tensor:
        """Return distributions [n, V] over the target's vocabulary for logits [n, V']."""
        logits, ids = logits.float(), self.head.ids
        if ids is not None:
            wide = logits.new_full((len(logits), self._target.vocabulary), -torch.inf)
            logits = wide.index_copy_(1, ids, logits)
        return self._warping(logits[:, : self._target.vocabulary])


def _own(part: Tensor) -> Tensor:
    """Return a tensor, copied if it is part of a larger one."""
    return part.clone() if part.untyped_storage().nbytes() > part.nbytes else part


def read_together(texts: Sequence[HeadText], wanted: Sequence[NodeReading]) -> list[Answer]:
    """Return the answers that drafts on several texts of one head wait for; their rows run together."""
    with _running(texts):
        _catch_up([text for text, reading in zip(texts, wanted, strict=True) if not reading.tokens])
        plans = [text.plan(reading.tokens, reading.above) for text, reading in zip(texts, wanted, strict=True)]
        found: list[list[Tensor]] = [[] for _ in texts]
        for level in range(max(map(len, plans))):
            growing = [place for place, plan in enumerate(plans) if level < len(plan)]
            nodes, above = zip(*(plans[place][level] for place in growing), strict=True)
            tokens = [[wanted[place].tokens[node] for node in own] for place, own in zip(growing, nodes, strict=True)]
            logits = texts[0].head.grow_all([texts[place].known_state for place in growing], tokens, above)
            for place, own in zip(growing, logits, strict=True):
                found[place].append(texts[place].distributions(own))
        beginning = [place for place, plan in enumerate(plans) if not plan]
        if beginning:
            roots = texts[0].head.start_all([texts[place].known_state for place in beginning])
            for place, own in zip(beginning, roots, strict=True):
                found[place].append(texts[place].distributions(own))
        answers = list[Answer]()
        for text, plan, distributions in zip(texts, plans, found, strict=True):
            order = [node for level, _ in plan for node in level]
            q = distributions[0] if len(distributions) == 1 else torch.cat(distributions)
            if len(plan) > 1:  # restore the order of the nodes
                q = q[sorted(range(len(order)), key=order.__getitem__)]
            answers.append(([*range(text.rows - len(order), text.rows)], q))
        return answers


def grow_whole(
    texts: Sequence[HeadText], plans: Sequence[GrowthPlan], temperatures: Sequence[float]
) -> list[GrownDraft | None]:
    """Drop all draft rows, read committed tokens, and grow whole drafts, in one call where the head has code for it.

    Args:
        texts: texts of one head.
        plans: growth plans of the drafts.
        temperatures: temperatures of their probabilities.

    Returns:
        The drafts; None for those with NaN or infinite logits, without room, or with `reads_last` and no such code.
    """
    with _running(texts):
        _catch_up(texts)
        head, states = texts[0].head, [text.known_state for text in texts]
        drafts = head.grow_whole_all(states, plans, temperatures)
        # The rows of committed tokens may have taken room that a plan counted on.
        rooms = [min(plan.levels, text.depth) for text, plan in zip(texts, plans, strict=True)]
        rest = [i for i, draft in enumerate(drafts) if draft is None and rooms[i] > 0 and not plans[i].reads_last]
        if rest:
            fitting = [replace(plans[i], levels=rooms[i]) for i in rest]
            asked = [states[i] for i in rest], fitting, [temperatures[i] for i in rest]
            for i, draft in zip(rest, grow_drafts(head, *asked, vocabulary=texts[0].vocabulary), strict=True):
                drafts[i] = draft
        return drafts


def measure_row_share(text: HeadText) -> float | None:
    """Return the time of a further row in a level, relative to a level of one row; None if logits are NaN.

    It is about 0.1 if reading the head's weights takes most of the time, and 1 if computing does. Levels of one and of
    three rows are timed, each as the fastest of a few drafts.
    """

    def seconds(levels: int, expanded: int) -> float | None:
        rows = _TIMED_ROWS
        nodes, ratios = levels * rows * rows, [1.0] * levels
        plan = GrowthPlan(levels=levels, top_k=rows, expanded=expanded, nodes=nodes, ratios=ratios)
        times = list[float]()
        for _ in range(_TIMED_DRAFTS):
            began = time.perf_counter()
            if grow_whole([text], [plan], [1.0]) == [None]:
                return None
            times.append(time.perf_counter() - began)
        return min(times)

    levels = min(_TIMED_LEVELS, text.depth)
    root, narrow, wide = seconds(1, 1), seconds(levels, 1), seconds(levels, _TIMED_ROWS)
    if root is None or narrow is None or wide is None:
        return None
    level = narrow - root
    return min(1.0, max(0.0, (wide - narrow) / (_TIMED_ROWS - 1) / level)) if level > 0 else 0.0


@contextmanager
def _running(texts: Sequence[HeadText]) -> Iterator[None]:
    """Run passes of the head on these texts, which lose their states if there is no room for one.

    Raises:
        OutOfMemoryError: there was no room for a pass.
    """
    try:
        with torch.inference_mode():
            yield
    except Exception as error:
        if not (isinstance(error, OutOfMemoryError) or is_out_of_memory(error)):
            raise
        for text in texts:
            text.forget()
        raise OutOfMemoryError(_NO_ROOM) from error


def _catch_up(texts: Sequence[HeadText]) -> None:
    """Drop the rows of drafts, and append rows of committed tokens."""
    unread = [(text.known_state, *own) for text in texts if (own := text.take_unread()) is not None]
    if unread:
        states, hidden, following = zip(*unread, strict=True)
        texts[0].head.extend_all(states, hidden, following)


def _levels(above: Sequence[int], first: int) -> list[list[int]]:
    """Group nodes by their depth among each other, given their parent rows; their own rows begin at `first`."""
    levels, depths = list[list[int]](), list[int]()
    for node, row in enumerate(above):
        depth = 0 if row < first else depths[row - first] + 1
        depths.append(depth)
        if depth == len(levels):
            levels.append([])
        levels[depth].append(node)
    return levels
