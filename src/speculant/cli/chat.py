"""`speculant chat`: a conversation of several turns, whose cache is kept from turn to turn."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from contextlib import ExitStack
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from speculant.cli.options import (
    Subparsers,
    add_drafting_options,
    add_model_options,
    add_sampling_options,
    build_speculator,
    text_options,
)
from speculant.cli.output import check_writable, say, write_stream
from speculant.core.errors import PromptError

if TYPE_CHECKING:
    from speculant.api.requests import Message
    from speculant.api.speculator import Speculator

HELP = """\
/reset  forget the conversation and begin a new one
/stats  say how the last answer was decoded
/help   list these commands
/quit   end; so does Ctrl-D
Ctrl-C ends an answer early, or the chat if none is being given."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "chat",
        help="talk with a model in several turns",
        description="Talk with a model, one line a turn, from the terminal or a pipe. /help lists what else there is.",
    )
    add_sampling_options(parser)
    add_drafting_options(parser)
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Talk until the input ends; save the memory however it ends."""
    if args.memory is not None:
        check_writable(args.memory)
    speculator = build_speculator(args)
    # A model without a chat template should say so before the first question.
    speculator.encode_chat([{"role": "user", "content": "Hello"}])
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    with ExitStack() as ending:
        if args.memory is not None:
            ending.callback(speculator.save, args.memory)
        talk(Conversation(speculator, text_options(args)))
    return 0


def talk(conversation: Conversation) -> None:
    """Read lines and answer them, until the input ends or /quit."""
    marker = ""
    if sys.stdin.isatty() and sys.stdout.isatty():
        marker = "> "
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives input() line editing and a history)
        say("/help lists the commands, /quit ends.")
    while True:
        try:
            line = input(marker).strip()
        except EOFError:
            return
        if line == "/quit":
            return
        if line == "/reset":
            conversation.reset()
            say("a new conversation begins.")
        elif line == "/stats":
            say(conversation.stats())
        elif line == "/help":
            say(HELP)
        elif line.startswith("/"):
            say(f"there is no command {line.split()[0]}. /help lists them.")
        elif line:
            try:
                conversation.ask(line)
            except PromptError as error:
                say(f"this no longer fits: {error} /reset begins a new conversation.")
            except KeyboardInterrupt:
                if not marker:
                    raise


class Conversation:
    """The messages so far, and the cache of those tokens that the next prompt begins with."""

    def __init__(self, speculator: Speculator, options: dict[str, Any]) -> None:
        self._speculator, self._options = speculator, options
        self.reset()

    def reset(self) -> None:
        """Forget what was said; the drafter's memory stays."""
        self._messages: list[Message] = []
        self._cache: Any = None
        self._held: list[int] = []  # the tokens that the cache holds

    def ask(self, question: str) -> None:
        """Print the answer as it comes; what there was of it counts as said even if it is interrupted.

        Raises:
            PromptError: the conversation does not fit the model; it stands as it was before the question.
        """
        messages = [*self._messages, {"role": "user", "content": question}]
        ids = self._speculator.encode_chat(messages)
        stream = self._speculator.stream(ids, cache=self._shared_cache(ids), **self._options)
        result = stream.result
        self._cache, self._held = None, []  # not to be trusted until the answer is complete
        try:
            write_stream(stream)
            self._cache, self._held = result.cache, ids + result.ids[:-1]
        finally:
            self._messages = [*messages, {"role": "assistant", "content": result.text}]

    def stats(self) -> str:
        """Return the report of the last answer."""
        stats = self._speculator.last_stats
        return "nothing was decoded yet." if stats is None else stats.report()

    def _shared_cache(self, ids: list[int]) -> Any:
        """Return the cache, cut to what it shares with the new prompt but its last token; None if that is nothing.

        Templates render earlier turns in their own ways and text tokenises anew, so nothing is taken for granted.
        """
        from speculant.engines.hf.cache import crop_cache

        pairs = zip(self._held, ids[:-1], strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if not shared:
            return None
        crop_cache(self._cache, shared)
        self._held = self._held[:shared]
        return self._cache
