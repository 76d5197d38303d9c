"""States of texts on heads of EAGLE's family.

After a round, the draft's rows are dropped and those of accepted tokens are recomputed (heads that kept drafted rows
would have 8 to 15 % lower acceptance, vLLM issue 14649).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.feature_head import FeatureHead
from speculant.drafters.heads.feature_rows import NewFeatureRows, run_rows
from speculant.drafters.heads.head import HeadState, TargetParts
from speculant.drafters.heads.layers import join_tensors
from speculant.drafters.heads.step import DraftRoot, GrownDraft, StepCode
from speculant.drafters.models.shapes import GrowthPlan

_ROOM = 64  # draft rows that the initial buffer has room for


class FeatureState(HeadState):
    """State of one text on such a head.

    Attributes:
        head, target: the head and its target.
        cache: keys and values of the text's rows.
    """

    def __init__(self, head: FeatureHead, target: TargetParts, first: int) -> None:
        """Start a text whose tokens before position `first` have no rows."""
        self.head, self.target = head, target
        self._code = target.step_code(head.step_parts())
        self.cache = HeadCache(len(head.layers), first=first)
        # [room, D], features that rows pass on: first the last committed row, then the rows of the draft.
        self._passed: Tensor | None = None
        self._root: Tensor | None = None  # [1, V'], logits after the last committed row

    @property
    def length(self) -> int:
        return self.cache.length

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        extend_states([self], [hidden], [following])

    def start(self) -> Tensor:
        assert self._root is not None
        return self._root

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        [logits] = grow_states([self], [tokens], [above])
        return logits

    def drop(self) -> None:
        self.cache.drop()

    def crop(self, length: int) -> None:
        self.cache.crop(length)
        self._passed = self._root = None

    def commit(self, features: Tensor) -> NewFeatureRows:
        """Append rows of committed tokens that read features [n, D]; only the last one passes features on."""
        positions, seen = self.cache.commit(len(features), features.device)
        return NewFeatureRows(self.cache, features, None, positions, seen, self._make_room(0, 1, features))

    def branch(self, above: Sequence[int], features: Tensor | None = None) -> NewFeatureRows:
        """Append rows of a draft.

        Args:
            above: parent row of each, -1 for the root.
            features: [1, D], features that all of them read; None for those that the parent rows pass on.
        """
        assert self._passed is not None
        device, first, read = self._passed.device, self.cache.drafted + 1, [row + 1 for row in above]
        positions, seen = self.cache.branch(above, device)
        passed = self._make_room(first, len(above), self._passed)
        places = torch.tensor(read if features is None else [0] * len(read), device=device)
        return NewFeatureRows(
            self.cache, self._passed if features is None else features, places, positions, seen, passed
        )

    def run(self, embeddings: Tensor, rows: Sequence[NewFeatureRows]) -> list[Tensor]:
        """Run rows of one or several texts of the head; see `run_rows`."""
        return run_rows(self.head, self.target, self._code, embeddings, rows)

    def draft_root(self, plan: GrowthPlan) -> DraftRoot | None:
        """Return the root below which a whole draft grows; None if nothing was committed."""
        if self._root is None or self._passed is None:
            return None
        cache, shape, like = self.cache, self.head.layer(0).self_attn.shape, self._passed
        rows = plan.levels * plan.expanded
        each = (shape.kv_heads, shape.head_dim)
        return DraftRoot(
            passed=like,
            logits=self._root,
            held=tuple(cache.spare(index, rows, each, like) for index in range(len(self.head.layers))),
            length=cache.committed,
            position=cache.length,
        )

    @property
    def code(self) -> StepCode | None:
        """The target's fast code for the head's steps."""
        return self._code

    def take_root(self, logits: Tensor) -> None:
        """Set the logits [1, V'] after the last committed row."""
        self._root = logits

    def _make_room(self, first: int, count: int, like: Tensor) -> Tensor:
        """Return the slots [count, D], starting at `first`, for the features that rows pass on."""
        end, held = first + count, self._passed
        if held is None or len(held) < end:
            self._passed = like.new_empty(2 * end + _ROOM, like.shape[-1])
            if held is not None:
                self._passed[:first] = held[:first]
        assert self._passed is not None
        return self._passed[first:end]


class JointHead(FeatureHead, Protocol):
    """A head whose texts run together."""

    def open(self, first: int, target: TargetParts) -> HeadState:
        return FeatureState(self, target, first)

    def extend_all(self, states: Sequence[HeadState], hidden: Sequence[Tensor], following: Sequence[Tensor]) -> None:
        extend_states([each for each in states if isinstance(each, FeatureState)], hidden, following)

    def grow_all(
        self, states: Sequence[HeadState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        return grow_states([each for each in states if isinstance(each, FeatureState)], tokens, above)

    def grow_whole_all(
        self, states: Sequence[HeadState], plans: Sequence[GrowthPlan], temperatures: Sequence[float]
    ) -> list[GrownDraft | None]:
        own = [each for each in states if isinstance(each, FeatureState)]
        roots = [state.draft_root(plan) for state, plan in zip(own, plans, strict=True)]
        code, known = own[0].code, [root for root in roots if root is not None]
        found = None
        if code is not None and len(known) == len(roots):
            found = code.draft(known, plans, vocabulary=own[0].target.vocabulary, temperatures=temperatures)
        return [None if each is None else GrownDraft(*each) for each in found or [None] * len(roots)]


def extend_states(states: Sequence[FeatureState], hidden: Sequence[Tensor], following: Sequence[Tensor]) -> None:
    """Append rows of committed tokens to texts of one head; takes the arguments of `extend` for each text."""
    first = states[0]
    features = torch.split(first.head.features(join_tensors(hidden), first.target), [len(each) for each in hidden])
    rows = [state.commit(own) for state, own in zip(states, features, strict=True)]
    embeddings = first.head.embed(join_tensors(following), first.target)
    for state, logits in zip(states, first.run(embeddings, rows), strict=True):
        state.take_root(logits)


def grow_states(
    states: Sequence[FeatureState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Append draft rows to texts of one head; takes the arguments of `grow` for each text."""
    first = states[0]
    rows = [state.branch(own) for state, own in zip(states, above, strict=True)]
    ids = torch.tensor([token for own in tokens for token in own], device=rows[0].features.device)
    return first.run(first.head.embed(ids, first.target), rows)
