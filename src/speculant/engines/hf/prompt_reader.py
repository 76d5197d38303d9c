"""The passes that read the prompt of one sequence, whole or in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.engine import NO_OUTPUTS, Pass, RequestedOutputs
from speculant.engines.hf.cache import begin_own_pass, keep_read, state_layers
from speculant.engines.hf.draft_rows import DraftRows
from speculant.engines.hf.forward_pass import ModelRunner, PassInput, PassOutput, check_queries, finish_pass
from speculant.engines.hf.prompt import Prompt, PromptPart, join_states
from speculant.engines.hf.rotary_limit import RotaryLimit
from speculant.engines.hf.states.recorder import RecordedRows, StateRecorder

RECORDED_AT_ONCE = 128  # maximum prompt tokens per recorded pass, whose records take memory


class PromptReader:
    """Plans and runs such passes; its sequence keeps the progress and the cache.

    Attributes:
        watcher: called with the index of a part's first row and the part's logits [n, V]; None if not needed.
    """

    def __init__(self, runner: ModelRunner, prompt: Prompt, limit: RotaryLimit) -> None:
        self._runner, self._prompt, self._limit = runner, prompt, limit
        self._hidden: list[Tensor] = []  # hidden states of the parts read so far
        self.watcher: Callable[[int, Tensor], None] | None = None

    def plan(self, start: int, maximum: int | None, needs: RequestedOutputs) -> PromptPart:
        """Return the part that the next pass will read; nothing is run.

        Args:
            start: number of tokens already read.
            maximum: maximum tokens; None for no limit.
            needs: requested outputs of the whole prompt, or of its last token.

        Raises:
            UnsupportedError: the model cannot provide what the drafter needs.
        """
        check_queries(needs, self._runner.capabilities)
        left = len(self._prompt) - start
        # If factors, windows or masks depend on the pass, a prompt in several passes would be another prompt.
        capabilities = self._runner.capabilities
        by_pass = capabilities.window_by_cache or capabilities.both_ways
        at_once = self._prompt.whole or self._limit.reads_at_once or by_pass
        end = start + (left if maximum is None or at_once else min(maximum, left))
        # Of a prompt read in parts, only the last part's last row is needed unless all rows are requested.
        wanted = needs if needs.prompt or end == len(self._prompt) else NO_OUTPUTS
        return PromptPart(start, end, wanted, self._hidden)

    def rows(self, part: PromptPart) -> PassInput:
        """Return the input for reading a part together with other rows; the mask is None for causal rows."""
        capabilities, given = self._runner.capabilities, self._prompt.part(part.start, part.end)
        if part.start == 0 and capabilities.window is None and not capabilities.additive:
            return given
        seen = self._prompt.seen
        before = None if seen is None else seen[: part.start]
        mask = self._runner.mask(_chain(len(part)), 0, part.start, seen=before, hidden=0)
        return PassInput(given.ids, given.positions, mask)

    def read(self, part: PromptPart, cache: DynamicCache) -> PassOutput:
        """Run the passes over a part; return the logits [1, V] of its last row, and hidden states.

        The model's own passes, or recorded ones if those would lose the state.

        Raises:
            OutOfMemoryError: the device is full.
        """
        mixers = self._runner.capabilities.mixers
        if part.start and len(part) > 1 and mixers is not None and not mixers.resumes:
            output = self._read_recorded(part, cache)
        else:
            begin_own_pass(cache, len(part), mixers)
            given = self._prompt.part(part.start, part.end)
            output = self._runner.run(
                given, cache, needs=part.needs, wanted=self._choose_rows(part), total=part.end
            )  # fmt: skip
            self._prompt.note_output(output.returned)
        if self.watcher is not None:
            self.watcher(part.start, output.logits)
        return PassOutput(output.logits[-1:], output.hidden)

    def _read_recorded(self, part: PromptPart, cache: DynamicCache) -> PassOutput:
        """Read a part in recorded passes over few rows each, folding their records in turn."""
        layers, outputs = state_layers(cache), list[PassOutput]()
        before = [layer.snapshot() for layer in layers]
        try:
            for begin in range(part.start, part.end, RECORDED_AT_ONCE):
                piece = PromptPart(begin, min(begin + RECORDED_AT_ONCE, part.end), part.needs, [])
                keep_read(cache)
                rows = RecordedRows(cache, _chain(len(piece)), len(piece))
                outputs.append(
                    self._runner.run(
                        self.rows(piece),
                        cache,
                        needs=part.needs,
                        wanted=self._choose_rows(piece),
                        recorder=StateRecorder([rows], self._runner.model.device),
                        total=piece.end,
                    )
                )
        except BaseException:
            for layer, snapshot in zip(layers, before, strict=True):
                layer.restore(snapshot)
            raise
        hidden = [output.hidden for output in outputs if output.hidden is not None]
        logits = torch.cat([output.logits for output in outputs])
        return PassOutput(logits, torch.cat(hidden) if hidden else None)

    def _choose_rows(self, part: PromptPart) -> list[int] | None:
        return [len(part) - 1] if self.watcher is None else None

    def take(self, part: PromptPart, output: PassOutput, needs: RequestedOutputs) -> Pass | None:
        """Process the output of `read`; return the last token's Pass, or None if more of the prompt must be read."""
        hidden = part.with_states(output.hidden)
        if part.end < len(self._prompt):
            self._hidden = hidden
            return None
        finished = finish_pass(PassOutput(output.logits, join_states(hidden, needs)), needs)
        self._hidden = []
        return finished

    def read_anew(self, behind: Sequence[int], needs: RequestedOutputs) -> tuple[PassOutput, DynamicCache]:
        """Run one pass over the prompt and the tokens after it.

        Returns:
            Logits [1, V] and hidden states of the last token, and the cache of that pass.

        Raises:
            OutOfMemoryError: the device is full.
        """
        device, cache = self._prompt.ids.device, self._runner.empty_cache()
        ids = torch.cat([self._prompt.ids, torch.tensor([[*behind]], device=device)], dim=1)
        count = ids.shape[1]
        given = PassInput(ids, torch.arange(count, device=device)[None], None)
        output = self._runner.run(given, cache, needs=needs, wanted=[count - 1], total=2 * count)
        return PassOutput(output.logits, None if output.hidden is None else output.hidden[-1:]), cache

    def undo(self, part: PromptPart) -> None:
        """Drop the states of a part and those after it."""
        self._hidden = part.hidden

    def restart(self) -> None:
        """Start over."""
        self._hidden = []


def _chain(count: int) -> DraftRows:
    return DraftRows().grown(np.arange(-1, count - 1))
