"""The common part of GGUF sequence caches: the text, its prompt, and passes that append rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from speculant.core.engine import NO_OUTPUTS, EngineArray, Pass, RequestedOutputs, TargetCache
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sublayers import Sublayers
from speculant.core.tree import DraftTree, Int32
from speculant.drafters.top_tokens import top_on_host
from speculant.engines.llamacpp.batch import Rows
from speculant.engines.llamacpp.context import PASS_ROWS, LlamaContext
from speculant.engines.llamacpp.texts import LlamaText


class LlamaTargetCache(TargetCache):
    """One sequence on a GGUF model; see `core.engine.TargetCache`. Not thread-safe.

    How rows are kept and dropped depends on the kind of cache: `tree_cache` or `replay_cache`.

    Attributes:
        text: the committed text; a later turn may continue it.
    """

    def __init__(self, context: LlamaContext, prompt: Sequence[int], *, text: LlamaText | None = None) -> None:
        """Prepare a sequence.

        Args:
            context: context of the model.
            prompt: all its tokens.
            text: text of an earlier turn that is a prefix of the prompt; None for a new one.

        Raises:
            UsageError: the prompt does not continue the text, or the text is being decoded.
            UnsupportedError: the text belongs to another model.
        """
        self._context, self._prompt = context, list(prompt)
        self.text = LlamaText(context) if text is None else text
        self._length = self._given = len(self.text.tokens)
        if self.text.owner is not context:
            raise UnsupportedError("this cache belongs to another model; leave out `cache`, or use that model.")
        if self.text.open_rows:
            raise UsageError("this cache's text is being decoded; wait for its end, or leave out `cache`.")
        if self.text.tokens != self._prompt[: self._length]:
            raise UsageError("the prompt does not begin with the tokens in `cache`; crop the cache, or leave it out.")
        self._drafted: list[int] = []  # tokens of uncommitted rows
        self._watcher: Callable[[int, Tensor], None] | None = None  # receives the logits of the prompt

    @property
    def cache(self) -> LlamaText:
        """The text that a later turn may continue."""
        return self.text

    @property
    def length(self) -> int:
        return self._length

    @property
    def unread(self) -> int:
        return max(0, len(self._prompt) - self._length)

    @property
    def pending(self) -> int:
        """The number of committed tokens that the next pass rereads before its own rows."""
        return 0

    @property
    @abstractmethod
    def uncommitted(self) -> int:
        """The number of rows appended since the last `keep` or `rollback`."""

    @property
    def depth(self) -> int:
        return max(0, self._context.positions - 1 - self._length - self.unread)

    @property
    def shares_prefixes(self) -> bool:
        """Whether the rows of its first tokens equal those of any other text with the same first tokens."""
        return not self._context.model.states

    @property
    def media(self) -> None:
        """None: it only takes text."""

    @property
    def joins(self) -> bool:
        """Whether its prompt may share a pass with others; with recurrent states it is not read in parts."""
        return self.shares_prefixes and self._watcher is None

    def begin_with(self, text: LlamaText) -> None:
        """Start with a text of the prompt's first tokens instead of an empty one.

        Raises:
            UsageError: the prompt is being read, or does not continue the text.
        """
        if self._length or text.tokens != self._prompt[: len(text.tokens)] or len(text.tokens) >= len(self._prompt):
            raise UsageError("a prompt can begin with cached rows only before it is read, and must be longer.")
        self.text, self._length, self._given = text, len(text.tokens), len(text.tokens)

    def watch_prompt(self, take: Callable[[int, Tensor], None]) -> None:
        self._watcher = take

    def prefill(self, maximum: int | None = None, *, needs: RequestedOutputs = NO_OUTPUTS) -> Pass | None:
        start, text, watcher = self._length, self.text, self._watcher
        left = self.unread if maximum is None else min(maximum, self.unread)
        try:
            while True:
                part = self.plan_prompt(min(left, PASS_ROWS), needs, [text])
                logits = self._context.decode(part, [text])
                if watcher is not None:
                    watcher(self._length, logits)
                last = self._length + len(part) == len(self._prompt)
                found = self.take_prompt(part, logits[-1:].clone() if last else None, needs)
                left -= len(part)
                if not left:
                    return found
        except BaseException:
            self._context.cut(text, start)
            text.tokens, self._length = self._prompt[:start], start
            raise

    def plan_prompt(self, maximum: int | None, needs: RequestedOutputs, keep: Sequence[LlamaText]) -> Rows:
        """Return the rows of a pass over further prompt tokens; `restart` undoes it.

        Args:
            maximum: maximum tokens; None for all.
            needs: requested outputs besides the logits.
            keep: the texts of the same pass.

        Raises:
            OutOfMemoryError: the text was evicted and does not fit.
            UsageError: the prompt was already read, or the text was used elsewhere meanwhile.
            UnsupportedError: hidden states are requested.
        """
        self._check_text()
        check_needs(needs, trees=self.trees)
        if not self.unread:
            raise UsageError("the prompt of this sequence has already been read.")
        start = self._length
        end = start + (self.unread if maximum is None else min(maximum, self.unread))
        sequence = self._context.admit(self.text, keep)
        wanted = int(end == len(self._prompt)) if self._watcher is None else end - start
        return Rows.plain(self._prompt[start:end], start, sequence, wanted=wanted)

    def take_prompt(self, rows: Rows, logits: Tensor | None, needs: RequestedOutputs) -> Pass | None:
        """Record that a pass has read prompt rows; return the last token's Pass, given its logits [1, V]."""
        self._length += len(rows)
        self.text.tokens = self._prompt[: self._length]
        return None if logits is None else finish_pass(logits, needs)

    def forward(
        self,
        tokens: Int32,
        parents: Int32,
        *,
        needs: RequestedOutputs = NO_OUTPUTS,
        layers: Sequence[int] | Sublayers | None = None,
        embeddings: EngineArray = None,
    ) -> Pass:
        if layers is not None or embeddings is not None:
            raise UnsupportedError(
                "llama.cpp runs all layers of a model or none, so a part of them cannot draft. Use a method that runs "
                "all layers, such as 'mix', or the model in transformers' format."
            )
        check_needs(needs, trees=self.trees)
        self.check_tokens(tokens)
        return finish_pass(self.run(tokens, parents, [self.text]), needs)

    def check(self, draft: DraftTree) -> None:
        self._check_text()
        self.check_tokens(draft.tokens)
        self.check_tokens(draft.queries.tokens)
        if len(draft.queries) and draft.queries.depths().max() > self.depth:
            raise ValueError(
                f"the drafter's queries are deeper than the {self.depth} levels that the model has room for."
            )

    def restart(self) -> None:
        self.rollback()
        given = min(self._given, self._length)
        self._context.cut(self.text, given)
        del self.text.tokens[given:]
        self._length = given

    def detach(self) -> LlamaText:
        """Return the text of the committed tokens for reuse; this cache cannot continue."""
        self.rollback()
        text, self.text = self.text, LlamaText(self._context)
        self._length, self._given, self._prompt = 0, 0, []
        return text

    def release(self) -> None:
        self._context.drop(self.detach())

    @abstractmethod
    def plan(self, tokens: Int32, parents: Int32, keep: Sequence[LlamaText]) -> Rows:
        """Prepare the cache for a pass and return its rows; `rollback` undoes both.

        Args:
            tokens: Int32[n].
            parents: Int32[n], as in `forward`.
            keep: the texts of the same pass.

        Raises:
            ValueError: a parent does not precede its child.
            UnsupportedError: the rows need more branches than the cache has sequences.
            OutOfMemoryError: the text was evicted and does not fit.
            UsageError: the text was used elsewhere meanwhile.
        """

    @abstractmethod
    def _mark(self) -> Any:
        """Return the state of appended rows for `_undo`."""

    @abstractmethod
    def _undo(self, before: Any) -> None:
        """Remove what a failed pass has appended since `_mark`."""

    def run(self, tokens: Int32, parents: Int32, keep: Sequence[LlamaText]) -> Tensor:
        """Append rows in as few passes as possible; return their logits [n, V]. The parameters are those of `plan`."""
        before, parts, maximum = self._mark(), list[Tensor](), PASS_ROWS - self.pending
        try:
            for begin in range(0, len(tokens), maximum):
                end = begin + maximum
                logits = self._context.decode(self.plan(tokens[begin:end], parents[begin:end], keep), keep)
                parts.append(logits if end >= len(tokens) else logits.clone())
        except BaseException:
            self._undo(before)
            raise
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def check_tokens(self, tokens: Int32) -> None:
        """Refuse tokens outside the model's vocabulary.

        Raises:
            UsageError: there is such a token.
        """
        vocabulary = self._context.model.vocabulary
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocabulary:
            wrong = next(token for token in tokens.tolist() if not 0 <= token < vocabulary)
            raise UsageError(f"the drafter proposed token {wrong}; the model has {vocabulary}, counted from 0.")

    def _close(self) -> None:
        """Record that all rows are kept or dropped."""
        self._drafted, self.text.open_rows = [], False
        self._context.end_round()

    def _check_text(self) -> None:
        if len(self.text.tokens) != self._length:
            raise UsageError("this request's cache was used elsewhere meanwhile; give each request a cache of its own.")


def finish_pass(logits: Tensor, needs: RequestedOutputs) -> Pass:
    """Return the Pass for a drafter and verifier, given these logits [R, V]."""
    ids, values = top_on_host(logits, needs.top_k) if needs.top_k else (None, None)
    return Pass(logits=logits, top_ids=ids, top_logits=values)


def check_needs(needs: RequestedOutputs, *, trees: bool) -> None:
    """Refuse outputs that llama.cpp does not provide.

    Raises:
        UnsupportedError: hidden states are requested, or further rows where only chains can be verified.
    """
    if needs.queries and not trees:
        raise UnsupportedError(
            "this method needs rows in addition to the draft, and this model verifies chains only. Use another method."
        )
    if needs.hidden_layers:
        raise UnsupportedError(
            "llama.cpp returns no hidden states of decoder layers, which this method drafts from. Use a method "
            "without a trained head, such as 'mix', or the model in transformers' format."
        )
