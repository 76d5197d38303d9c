"""The prompts of one `generate` command, decoded by one speculator with a common memory."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from speculant.cli.baselines import Baselines
from speculant.cli.comparison import time_result
from speculant.cli.env import environment
from speculant.cli.files import write_json
from speculant.cli.painting import can_paint, legend, write_stream
from speculant.cli.report import PromptOutcome, totals
from speculant.cli.terminal import say, waiting
from speculant.core.errors import PromptError, SpeculantError

if TYPE_CHECKING:
    from speculant.api.batch import Batch
    from speculant.api.result import Generation as Request
    from speculant.cli.generate_settings import GenerateOptions
    from speculant.cli.loading import Loaded
    from speculant.cli.prompts import Message, Prompt


class PromptRun:
    """Decodes prompts and stores the outcome of each."""

    def __init__(
        self,
        loaded: Loaded,
        keywords: dict[str, Any],
        options: GenerateOptions,
        *,
        media: tuple[dict[str, str], ...] = (),
    ) -> None:
        """Prepare.

        Args:
            loaded: the speculator.
            keywords: keywords of `Speculator.stream`.
            options: options of the command.
            media: parts of a chat message that are placed before the prompt.
        """
        self._loaded, self._keywords, self._options, self._media = loaded, keywords, options, media
        self._color = can_paint(options.color)
        self._speculator = loaded.speculator
        self._outcomes: list[PromptOutcome] = []
        self._batch: Batch | None = None
        self._notes: list[str] = []

    def decode(self, prompts: Sequence[Prompt]) -> None:
        """Decode the prompts in order."""
        for number in range(1, 1 + len(prompts)):
            self._generate_numbered(number, prompts, None)

    def compare(self, prompts: Sequence[Prompt], *, memory_limit: int) -> None:
        """Decode each prompt alternately with and without drafts.

        Args:
            prompts: prompts to decode.
            memory_limit: maximum bytes of the drafter's memory.
        """
        baselines = Baselines(self._loaded, self._keywords, memory_limit=memory_limit, prompts=len(prompts))
        with closing(baselines):
            with waiting("warming up"):
                self._notes += baselines.warm_up()
            for number in range(1, 1 + len(prompts)):
                self._generate_numbered(number, prompts, baselines)

    def decode_batch(self, prompts: Sequence[str | list[Message]], size: int) -> None:
        """Decode up to `size` prompts at a time; print each text when it and all previous ones are complete.

        Raises:
            PromptError: a prompt cannot be decoded; nothing was decoded.
            SpeculantError: some failed; their partial texts and all others are printed.
        """
        options = dict(self._keywords)
        seed = options.pop("seed")
        self._batch = batch = self._speculator.batch(size)
        requests = []
        for place, prompt in enumerate(prompts):
            try:
                request = batch.add(self._ask(prompt), seed=None if seed is None else seed + place, **options)
            except PromptError as error:
                raise PromptError(f"prompt {place + 1}: {error}") from None
            requests.append(request)
            self._outcomes.append(PromptOutcome(prompt, request.result))
        left = deque(range(len(requests)))
        try:
            for _ in batch:
                while left and requests[left[0]].done:
                    self._show(left.popleft(), requests)
        finally:
            batch.close()
            for place in left:
                if requests[place].result.ids:
                    self._show(place, requests)
        failed = {place + 1: request.error for place, request in enumerate(requests) if request.error is not None}
        if failed:
            place, cause = next(iter(failed.items()))
            raise SpeculantError(
                f"{len(failed)} of {len(requests)} prompts failed: {', '.join(map(str, failed))}. "
                f"The cause for prompt {place} is {type(cause).__name__}: {cause}"
            ) from cause

    def report(self) -> None:
        """Print the report."""
        if not self._outcomes:
            return
        if self._batch is not None:
            stats = self._batch.stats
            say("\n" + totals(self._outcomes, stats.seconds))
            say(f"batch       {stats.sequences / max(1, stats.rounds):.1f} prompts per pass, {stats.rounds} passes")
            self._notes += stats.notes
        elif self._options.many:
            say("\n" + totals(self._outcomes))
        else:
            say("\n" + self._outcomes[0].block(verbose=self._options.verbose))
        if self._options.verbose:
            say(f"threads     {self._loaded.threads}")
        for note in self._notes:
            say(f"note        {note}")
        if self._color:
            say(legend())

    def record(self) -> None:
        """Write the JSON."""
        machine = environment(self._speculator.model)
        records = [outcome.to_json(machine) for outcome in self._outcomes]
        if self._options.many or records:
            write_json(str(self._options.json), records if self._options.many else records[0])

    def remember(self) -> None:
        """Save what was learned to the memory file."""
        self._speculator.save(str(self._loaded.memory))

    def _generate_numbered(self, number: int, prompts: Sequence[Prompt], baselines: Baselines | None) -> None:
        prompt, many, answers = prompts[number - 1], self._options.many, list[str]()
        for turn in range(len(prompt) if isinstance(prompt, tuple) else 1):
            asked = self._turn(prompt[: turn + 1], answers) if isinstance(prompt, tuple) else prompt
            if many:
                say(f"--- {number} of {len(prompts)}: {shorten_prompt(asked)}")
            try:
                self._decode(asked, baselines)
            except PromptError as error:
                raise PromptError(f"prompt {number}: {error}") if many else error from None
            answers.append(self._outcomes[-1].result.text)
            if many:
                say(f"    {self._outcomes[-1].line()}")

    def _turn(self, turns: Sequence[str], answers: Sequence[str]) -> str | list[Message]:
        """Return the last turn with the previous ones: as a chat, or as text without a chat template."""
        if getattr(self._speculator.tokenizer, "chat_template", None):
            parts = [part for pair in zip(turns, answers, strict=False) for part in pair] + [turns[-1]]
            return [{"role": ("user", "assistant")[i % 2], "content": part} for i, part in enumerate(parts)]
        text = turns[0]
        for answer, turn in zip(answers, turns[1:], strict=True):
            text += f"{answer}\n\n{turn}\n\n"
        return text

    def _decode(self, asked: str | list[Message], baselines: Baselines | None) -> None:
        prompt = self._ask(asked)
        comparison = None
        if baselines is not None:
            with waiting("decoding without drafts"):
                comparison = baselines.before(prompt)
        stream = self._speculator.stream(prompt, **self._keywords)
        outcome = PromptOutcome(asked, stream.result, comparison)
        self._outcomes.append(outcome)
        try:
            if self._options.json == "-" or self._as_lines:
                for _ in stream:
                    pass
            else:
                write_stream(stream, color=self._color)
        finally:
            if self._options.json != "-" and self._as_lines:
                self._print_line(outcome)
        if baselines is not None and comparison is not None:
            comparison.drafted.append(time_result(outcome.result))
            with waiting("repeating both in turns"):
                baselines.after(prompt, comparison)

    def _show(self, place: int, requests: Sequence[Request]) -> None:
        outcome = self._outcomes[place]
        say(f"--- {place + 1} of {len(requests)}: {shorten_prompt(outcome.prompt)}")
        if self._options.json != "-":
            if self._as_lines:
                self._print_line(outcome)
            else:
                print(requests[place].result.text, flush=True)
        say(f"    {outcome.line()}")

    @property
    def _as_lines(self) -> bool:
        """Return whether to print texts as JSON lines, because newlines in them would hide where each ends."""
        return self._options.many and not sys.stdout.isatty()

    def _print_line(self, outcome: PromptOutcome) -> None:
        result = outcome.result
        row = {"prompt": outcome.prompt, "text": result.text, "finish_reason": result.finish_reason}
        print(json.dumps(row, ensure_ascii=False), flush=True)

    def _ask(self, prompt: str | list[Message]) -> str | list[Message]:
        if self._media:
            return [{"role": "user", "content": [*self._media, {"type": "text", "text": prompt}]}]
        return (
            [{"role": "user", "content": prompt}]
            if self._options.chat and isinstance(prompt, str) and prompt
            else prompt
        )


def shorten_prompt(prompt: str | list[Message], width: int = 60) -> str:
    """Return the start of a prompt on one line; for messages, of the last one."""
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    line = " ".join(text[: 4 * width].split())
    return line if len(line) <= width and len(text) <= 4 * width else line[: width - 3] + "..."
