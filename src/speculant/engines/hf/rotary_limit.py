"""The effect on one sequence of a rotary limit: the length from which a model uses other rotary factors."""

from __future__ import annotations

from speculant.core.tree import UNLIMITED
from speculant.engines.hf.forward_pass import ModelRunner
from speculant.engines.hf.prompt import Prompt


class RotaryLimit:
    """The rotary limit of a model, relative to one prompt; no effect on models without one."""

    def __init__(self, runner: ModelRunner, prompt: Prompt) -> None:
        self._runner, self._prompt = runner, prompt

    def holds(self, length: int) -> bool:
        """Return whether a text of this many cached tokens is rotated by the factors for short texts."""
        limit = self._runner.capabilities.rope_limit
        return limit is None or length <= limit

    def depth(self, position: int) -> int:
        """Return the maximum depth of a draft whose root has this position.

        A node beyond the limit would rotate the root's own row by other factors than in plain decoding.
        """
        capabilities, limit = self._runner.capabilities, self._runner.capabilities.rope_limit
        if limit is not None and (position < limit or capabilities.rope_follows or self.rereads(position)):
            return limit - 1 - position
        return UNLIMITED

    def rereads(self, position: int) -> bool:
        """Return whether the text will be reread at the limit, or is being reread, as `generate` does."""
        capabilities, limit = self._runner.capabilities, self._runner.capabilities.rope_limit
        return capabilities.rope_rereads and not self._prompt.shift and limit is not None and position <= limit

    def is_reached(self, position: int) -> bool:
        """Return whether the next pass rereads the whole text."""
        return self.rereads(position) and position == self._runner.capabilities.rope_limit

    @property
    def reads_at_once(self) -> bool:
        """Whether the prompt must be read in a single pass, since several would use other factors."""
        return not self.holds(len(self._prompt) - self._prompt.shift)
