"""The cache of a sequence with recurrent states: chains are verified, and accepted tokens are read again.

llama.cpp has one state for each sequence and cannot remove tokens from it (`llama_memory_recurrent::seq_rm`), so a
draft runs on a copy of the sequence. If all of its rows are kept, the copy replaces the sequence; otherwise the copy is
dropped, and the kept tokens are prepended to the next pass, as in `engines.hf.caches.replay_cache`. llama.cpp's own
server restores a checkpoint and reads the kept tokens in a separate pass. A pass over one row, as in plain decoding,
needs no copy: its row is always kept except after failures, when the text is reread.
"""

from __future__ import annotations

from collections.abc import Sequence

from speculant.core.engine import check_path
from speculant.core.errors import UnsupportedError
from speculant.core.tree import Int32
from speculant.engines.llamacpp.batch import Rows
from speculant.engines.llamacpp.target_cache import LlamaTargetCache
from speculant.engines.llamacpp.texts import LlamaText

MAX_PENDING = 16  # maximum kept tokens to read again with a draft; more get a pass of their own


class LlamaReplayCache(LlamaTargetCache):
    """See `target_cache`."""

    _copy: int | None = None  # the sequence that the rows run on, if it is not the text's own

    @property
    def trees(self) -> bool:
        return False

    @property
    def uncommitted(self) -> int:
        return len(self._drafted)

    @property
    def pending(self) -> int:
        behind = len(self.text.tokens) if self.text.sequence is None else self.text.behind
        return behind if behind <= MAX_PENDING and not self._drafted else 0

    def plan(self, tokens: Int32, parents: Int32, keep: Sequence[LlamaText]) -> Rows:
        self._check_text()
        before, context, text = len(self._drafted), self._context, self.text
        if parents.tolist() != list(range(before - 1, before + len(parents) - 1)):
            raise UnsupportedError("this model verifies chains only; set the budget's `trees` to False.")
        own = context.admit(text, keep, behind=MAX_PENDING)
        if not before and len(tokens) > 1:
            [self._copy] = context.take(1, [text, *keep])
            context.copy(own, self._copy)
        read = [] if before else text.tokens[self._length - text.behind :]
        self._drafted += tokens.tolist()
        text.open_rows = True
        context.begin_round()
        sequence = own if self._copy is None else self._copy
        start = self._length + before - len(read)
        return Rows.plain([*read, *tokens.tolist()], start, sequence, wanted=len(tokens))

    def keep(self, rows: Sequence[int]) -> None:
        kept, drafted, text, context = list(rows), self._drafted, self.text, self._context
        check_path(kept, range(-1, len(drafted) - 1))
        if not kept:
            self.rollback()
            return
        if len(kept) < len(drafted):
            if self._copy is None:
                context.cut(text, self._length)
            text.behind += len(kept)
        else:
            if self._copy is not None:
                assert text.sequence is not None
                context.copy(self._copy, text.sequence)
            text.behind = 0
        text.tokens += drafted[: len(kept)]
        self._length += len(kept)
        self._close()

    def rollback(self) -> None:
        if self._copy is None and self._drafted:
            self._context.cut(self.text, self._length)
        if self._copy is not None or self._drafted:
            self._close()

    def _mark(self) -> None:
        """Return nothing: llama.cpp may have failed midway through a pass, and what a copy has read then is unknown."""

    def _undo(self, before: None) -> None:
        self.rollback()

    def _close(self) -> None:
        if self._copy is not None:
            self._context.give_back([self._copy])
            self._copy = None
        super()._close()
