"""The cache of a sequence whose layers keep a row for each token: trees are verified with one sequence per leaf."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculant.core.branches import count_fixed_branches
from speculant.core.engine import check_path
from speculant.core.tree import DraftTree, Int32
from speculant.engines.llamacpp.batch import Rows
from speculant.engines.llamacpp.branches import Branches
from speculant.engines.llamacpp.target_cache import LlamaTargetCache
from speculant.engines.llamacpp.texts import LlamaText


class LlamaTreeCache(LlamaTargetCache):
    """See `target_cache`."""

    _branches: Branches | None = None  # None if all rows are committed

    @property
    def uncommitted(self) -> int:
        return 0 if self._branches is None else len(self._branches)

    def check(self, draft: DraftTree) -> None:
        super().check(draft)
        if (branches := count_fixed_branches(draft)) >= self._context.sequences:
            raise ValueError(
                f"the draft has {branches} branches, but llama.cpp has room for {self._context.sequences}."
            )

    def keep(self, rows: Sequence[int]) -> None:
        branches, kept, context = self._branches, list(rows), self._context
        check_path(kept, () if branches is None else branches.parents)
        if branches is None:
            return
        end = self._length + len(kept)
        source = branches.own[kept[-1]] if kept else branches.text
        if source != branches.text:
            context.remove(branches.text, self._length)
            context.adopt(source, branches.text, self._length, end)
        else:
            context.remove(branches.text, end)
        self.text.tokens += [self._drafted[row] for row in kept]
        self._length = end
        self._close()

    def rollback(self) -> None:
        if self._branches is not None:
            self._context.cut(self.text, self._length)
            self._close()

    def plan(self, tokens: Int32, parents: Int32, keep: Sequence[LlamaText]) -> Rows:
        self._check_text()
        context = self._context
        branches = self._branches
        if branches is None:
            branches = Branches(context.admit(self.text, keep), self._length)
        self.text.open_rows = True
        context.begin_round()
        self._branches = branches
        grown = branches.grown(parents, lambda count: context.take(count, [self.text, *keep]))
        self._branches = grown.branches
        self._drafted += tokens.tolist()
        context.share(grown.shares)
        return Rows(tokens.astype(np.int32), grown.positions, grown.sequences, [True] * len(tokens))

    def _mark(self) -> Branches | None:
        return self._branches

    def _undo(self, before: Branches | None) -> None:
        now = self._branches
        if before is None or now is None:
            self.rollback()
            return
        fresh = now.taken[len(before.taken) :]
        for row in range(len(now) - 1, len(before) - 1, -1):
            if now.own[row] not in fresh:
                self._context.remove(now.own[row], self._length + now.depths[row] - 1)
        self._context.give_back(fresh)
        self._branches = before
        del self._drafted[len(before) :]

    def _close(self) -> None:
        assert self._branches is not None
        self._context.give_back(self._branches.taken)
        self._branches = None
        super()._close()
