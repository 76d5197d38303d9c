"""A sequence's cache on a transformers model, and the reading of its prompt: whole, in parts, or with other prompts.

The keys and values are in transformers' own DynamicCache, written in place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.engine import NO_OUTPUTS, Pass, RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.model_engine import MediaPrefix
from speculant.core.tree import UNLIMITED, Bool
from speculant.engines.hf.cache import cached_length, keep_read, state_layers
from speculant.engines.hf.forward_pass import ModelRunner, PassInput, PassOutput
from speculant.engines.hf.prompt import Prompt, PromptPart
from speculant.engines.hf.prompt_reader import PromptReader
from speculant.engines.hf.rotary_limit import RotaryLimit


class PromptedCache(ABC):
    """What a model has read of one sequence; `HFTargetCache` adds the passes after its prompt."""

    def __init__(self, runner: ModelRunner, prompt: Prompt, cache: DynamicCache | None) -> None:
        """Prepare a sequence.

        Args:
            runner: runner of the model.
            prompt: the whole prompt, including its cached part.
            cache: cache of its first tokens; None for nothing.

        Raises:
            UnsupportedError: this kind of cache cannot be rolled back.
        """
        self._runner, self._prompt = runner, prompt
        self._limit = RotaryLimit(runner, self._prompt)
        self._reader = PromptReader(runner, self._prompt, self._limit)
        self.cache = runner.empty_cache(cache)
        self._length = self._given = cached_length(self.cache)
        self._start = [layer.snapshot() for layer in state_layers(self.cache)]  # after the given rows

    @property
    def length(self) -> int:
        return self._length

    @property
    def unread(self) -> int:
        return max(0, len(self._prompt) - self._length)

    @property
    def trees(self) -> bool:
        return self._runner.capabilities.trees

    @property
    def rereads(self) -> bool:
        """Whether committed tokens can be read again: states cannot be rolled back."""
        return not (self._runner.capabilities.states or self._prompt.whole)

    @property
    def whole_cache(self) -> Any:
        """The cache in the model's own form: the text's rows together with those of a source."""
        return self._prompt.whole_cache(self.cache)

    @property
    def position(self) -> int:
        """The position of the token that follows the last committed one."""
        return self._length - self._prompt.shift

    @property
    def seen(self) -> Bool | None:
        """Bool[T], False at the prompt's padding; None without padding."""
        return self._prompt.seen

    @property
    def depth(self) -> int:
        capabilities, depth = self._runner.capabilities, UNLIMITED
        if not capabilities.drafts:
            return 0
        position = self.position + self.unread
        if capabilities.positions is not None:
            taken = self._length + self.unread if capabilities.by_slot else position  # padding takes slots too
            depth = capabilities.positions - 1 - taken
        return max(0, min(depth, self._limit.depth(position)))

    @property
    def room(self) -> int:
        slots = self._runner.capabilities.slots
        return UNLIMITED if slots is None else max(0, slots - 1 - self._length - self.unread)

    @property
    def shares_prefixes(self) -> bool:
        """Whether the rows of its first tokens equal those of any other text with the same first tokens.

        They do not if positions are specific to the request, if factors, windows or masks depend on the pass that reads
        a prompt, or if such a text was read with other factors. Prompts with media share with those that have the same,
        see `media`.
        """
        within = self._limit.holds(max(len(self._prompt), self._length))
        alike = self._prompt.plain or self._prompt.media is not None
        capabilities = self._runner.capabilities
        return alike and within and not (capabilities.window_by_cache or capabilities.both_ways)

    @property
    def media(self) -> MediaPrefix | None:
        return self._prompt.media

    def begin_with(self, cache: DynamicCache) -> None:
        """Start with rows of the prompt's first tokens in place of an empty cache.

        Raises:
            UsageError: the prompt is being read, or the cache has all of it.
        """
        length = cached_length(cache)
        if self._length or length >= len(self._prompt):
            raise UsageError("a prompt can begin with cached rows only before it is read, and must be longer.")
        self.cache, self._length, self._given = self._runner.empty_cache(cache), length, length
        self._start = [layer.snapshot() for layer in state_layers(self.cache)]

    def watch_prompt(self, take: Callable[[int, Tensor], None]) -> None:
        self._reader.watcher = take

    def prefill(self, maximum: int | None = None, *, needs: RequestedOutputs = NO_OUTPUTS) -> Pass | None:
        self._runner.acceleration.check_weights()
        end = len(self._prompt) if maximum is None else self._length + maximum
        first = part = self.plan_prompt(self._limit_rows(end - self._length), needs)
        try:
            while True:
                finished = self.take_prompt(part, self._reader.read(part, self.cache), needs)
                if finished is not None or part.end >= end:
                    return finished
                part = self.plan_prompt(self._limit_rows(end - self._length), needs)
        except BaseException:
            self.undo_prompt(first)
            raise

    def _limit_rows(self, count: int) -> int:
        """Return how many of `count` prompt tokens the next pass should read."""
        rows = self._runner.acceleration.prompt_rows
        return count if rows is None or self._runner.capabilities.states else min(rows, count)

    @property
    def joins_rounds(self) -> bool:
        """Whether its rows after the prompt may share a pass with those of other sequences."""
        return self._prompt.joins

    @property
    def joins(self) -> bool:
        """Whether its prompt may share a pass with those of other sequences."""
        capabilities = self._runner.capabilities
        alike = self._prompt.plain and self.shares_prefixes and self._reader.watcher is None
        return alike and capabilities.trees and not (capabilities.states or capabilities.placing)

    def plan_prompt(self, maximum: int | None, needs: RequestedOutputs) -> PromptPart:
        """Return the part of the prompt that the next pass will read, see `PromptReader.plan`; nothing is run.

        Raises:
            UsageError: the prompt was already read, or the cache was used elsewhere meanwhile.
            UnsupportedError: the model cannot provide what the drafter needs.
        """
        self._check_cache()
        if not self.unread:
            raise UsageError("the prompt of this sequence has already been read.")
        self._drop_other_factors()
        return self._reader.plan(self._length, maximum, needs)

    def prompt_rows(self, part: PromptPart) -> PassInput:
        """Return the input for reading a part of the prompt with other sequences; the mask is None for causal rows."""
        return self._reader.rows(part)

    def take_prompt(self, part: PromptPart, output: PassOutput, needs: RequestedOutputs) -> Pass | None:
        """Process a pass's output for a part of the prompt: logits [1, V] of its last row, and hidden states.

        Returns:
            The last token's Pass; None if more of the prompt must be read.
        """
        finished = self._reader.take(part, output, needs)
        keep_read(self.cache)
        self._length = part.end
        if finished is not None:
            for layer in state_layers(self.cache):
                layer.mark()
        return finished

    def undo_prompt(self, part: PromptPart) -> None:
        """Drop what a failed pass has read."""
        self._length = part.start
        self._reader.undo(part)
        self.rollback()

    @property
    def at_limit(self) -> bool:
        """Whether the next pass rereads the whole text, as `generate` does when rotary factors change."""
        return self._limit.is_reached(self.position)

    def _drop_other_factors(self) -> None:
        """Drop rows of an earlier turn that `generate` would recompute with the factors of a longer text."""
        if self._given and self._limit.rereads(self.position) and not self._limit.holds(len(self._prompt)):
            self._length = self._given = 0
            self.rollback()

    @abstractmethod
    def rollback(self) -> None:
        """Drop uncommitted rows."""

    @abstractmethod
    def _check_cache(self) -> None:
        """Raise a UsageError if the cache was used elsewhere meanwhile."""
