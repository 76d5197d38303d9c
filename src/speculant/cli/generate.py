"""`speculant generate`: continues one prompt or many, and says how fast that went."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from speculant.cli.baselines import Baselines
from speculant.cli.env import environment
from speculant.cli.options import (
    Subparsers,
    add_drafting_options,
    add_model_options,
    add_sampling_options,
    build_speculator,
    text_options,
    whole,
)
from speculant.cli.output import LEGEND, check_writable, say, write_json, write_stream
from speculant.cli.prompts import given_prompt, read_prompts
from speculant.cli.report import Outcome, totals
from speculant.core.errors import PromptError, SpeculantError, UsageError

if TYPE_CHECKING:
    from speculant.api.batch import Batch
    from speculant.api.requests import Message
    from speculant.api.result import Generation
    from speculant.api.speculator import Speculator

DESCRIPTION = """\
Continue a prompt. The text goes to standard output as it comes, what there is to say about it to standard
error. Ctrl-C ends the text early; what was learned is saved all the same."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser("generate", help="continue a prompt", description=DESCRIPTION)
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("prompt", nargs="?", metavar="PROMPT", help="the text to continue; - reads standard input")
    prompts.add_argument(
        "--prompts",
        metavar="FILE",
        help='many prompts: a .json list or .jsonl rows of strings or {"prompt": ...}; else a prompt per line',
    )
    parser.add_argument(
        "--batch", metavar="N", type=whole(1), default=1, help="with --prompts: decode up to N of them at a time"
    )
    parser.add_argument("--chat", action="store_true", help="send the prompt as a user's message, in the chat template")
    parser.add_argument("--compare", action="store_true", help="decode without drafts too: speed-up, and same tokens?")
    parser.add_argument("--color", action="store_true", help="show by colour where each token came from")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - to print it in place of the text")
    add_sampling_options(parser)
    add_drafting_options(parser)
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Decode every prompt; report, record and remember what was done however it ends."""
    if args.batch > 1 and (args.prompts is None or args.compare or args.color):
        raise UsageError("--batch is for --prompts, without --compare and --color; `speculant bench --batch` compares.")
    if args.memory is not None:
        check_writable(args.memory)
    if args.json not in (None, "-"):
        check_writable(args.json)
    prompts = [given_prompt(args.prompt)] if args.prompts is None else read_prompts(args.prompts)
    if args.compare and args.temperature > 0 and args.seed is None:
        args.seed = 0
        say("note: to compare, every run must draw the same random numbers; --seed 0 is used.")
    generation = Generation(build_speculator(args), args)
    with ExitStack() as ending:  # called from the last to the first, each of them even if another fails
        if args.memory is not None:
            ending.callback(generation.remember)
        if args.json is not None:
            ending.callback(generation.record)
        ending.callback(generation.report)
        if args.batch > 1:
            generation.decode_together(prompts, args.batch)
        else:
            generation.decode(prompts)
    return 0


class Generation:
    """The prompts of one command, on one speculator whose memory lasts over all of them."""

    def __init__(self, speculator: Speculator, args: argparse.Namespace) -> None:
        self._speculator, self._args = speculator, args
        self._options = text_options(args)
        self._many = args.prompts is not None
        self._outcomes: list[Outcome] = []
        self._batch: Batch | None = None

    def decode(self, prompts: list[str]) -> None:
        """Decode one prompt after the other."""
        baselines = Baselines(self._speculator, self._options) if self._args.compare else None
        if baselines is not None:
            baselines.warm_up(self._args.memory)
        for number, prompt in enumerate(prompts, start=1):
            if self._many:
                say(f"--- {number} of {len(prompts)}: {shortened(prompt)}")
            try:
                self._decode(prompt, baselines)
            except PromptError as error:
                raise PromptError(f"prompt {number}: {error}") if self._many else error from None
            if self._many:
                say(f"    {self._outcomes[-1].line()}")

    def decode_together(self, prompts: list[str], size: int) -> None:
        """Decode up to `size` prompts at a time; print each text when it and those before it are complete.

        Raises:
            PromptError: a prompt cannot be decoded; none was.
            SpeculantError: some failed; what there is of their texts and all others are printed.
        """
        options = dict(self._options)
        seed = options.pop("seed")
        self._batch = batch = self._speculator.batch(size)
        tickets = []
        for place, text in enumerate(prompts):
            try:
                ticket = batch.add(self._asked(text), seed=None if seed is None else seed + place, **options)
            except PromptError as error:
                raise PromptError(f"prompt {place + 1}: {error}") from None
            tickets.append(ticket)
            self._outcomes.append(Outcome(text, ticket.result))
        left = deque(range(len(tickets)))
        try:
            for _ in batch:
                while left and tickets[left[0]].done:
                    self._show(left.popleft(), tickets)
        finally:
            batch.close()
            for place in left:
                if tickets[place].result.ids:
                    self._show(place, tickets)
        failed = {place + 1: ticket.error for place, ticket in enumerate(tickets) if ticket.error is not None}
        if failed:
            place, cause = next(iter(failed.items()))
            raise SpeculantError(
                f"{len(failed)} of {len(tickets)} prompts failed: {', '.join(map(str, failed))}. "
                f"The cause for prompt {place} is {type(cause).__name__}: {cause}"
            ) from cause

    def _show(self, place: int, tickets: Sequence[Generation]) -> None:
        say(f"--- {place + 1} of {len(tickets)}: {shortened(self._outcomes[place].prompt)}")
        if self._args.json != "-":
            print(tickets[place].result.text, flush=True)
        say(f"    {self._outcomes[place].line()}")

    def _asked(self, text: str) -> str | list[Message]:
        return [{"role": "user", "content": text}] if self._args.chat and text else text

    def _decode(self, text: str, baselines: Baselines | None) -> None:
        prompt = self._asked(text)
        plain = None if baselines is None else baselines.plain(prompt)
        stream = self._speculator.stream(prompt, **self._options)
        outcome = Outcome(text, stream.result, plain)
        self._outcomes.append(outcome)
        if self._args.json == "-":
            for _ in stream:
                pass
        else:
            write_stream(stream, color=self._args.color)
        if baselines is not None:
            outcome.reference = baselines.reference(prompt)

    def report(self) -> None:
        """Print the end-of-run block."""
        if not self._outcomes:
            return
        if self._batch is not None:
            stats = self._batch.stats
            say("\n" + totals(self._outcomes, stats.seconds))
            say(f"batch       {stats.sequences / max(1, stats.rounds):.1f} prompts a pass, {stats.rounds} passes")
            for note in stats.notes:
                say(f"note        {note}")
        else:
            say("\n" + (totals(self._outcomes) if self._many else self._outcomes[0].block()))
        if self._args.color:
            say(LEGEND)

    def record(self) -> None:
        """Write the JSON."""
        machine = environment(self._speculator.model)
        records: list[dict[str, Any]] = [outcome.to_json(machine) for outcome in self._outcomes]
        if self._many or records:
            write_json(self._args.json, records if self._many else records[0])

    def remember(self) -> None:
        """Save what was learned."""
        self._speculator.save(self._args.memory)


def shortened(text: str, width: int = 60) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(text[: 4 * width].split())
    return line if len(line) <= width and len(text) <= 4 * width else line[: width - 3] + "..."
