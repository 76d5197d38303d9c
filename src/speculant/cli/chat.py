"""`speculant chat`: a conversation whose cache is kept from turn to turn."""

from __future__ import annotations

import contextlib
import io
import sys
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from speculant.cli.binding import bind
from speculant.cli.commands import Command
from speculant.cli.painting import write_stream
from speculant.cli.signals import Terminated
from speculant.cli.terminal import say
from speculant.core.errors import FileError, PromptError, SpeculantError, TokenizerError, UnsupportedError
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions
from speculant.options.sampling import SamplingOptions

if TYPE_CHECKING:
    from speculant.api.requests import Message
    from speculant.api.speculator import Speculator

HELP = """\
Chat with a model, one line per turn, from the terminal or a pipe.

/help lists further commands."""

EXAMPLES = """
speculant chat --model your/model --memory chat.speculant
speculant chat --temperature 0.8 --seed 1
printf 'Hello\\nAnd then?\\n' | speculant chat
"""

COMMANDS = """\
/image FILE, /audio FILE
        put a picture or a recording before the next question
/reset  forget the conversation and begin a new one
/stats  show how the last answer was decoded
/help   list these commands
/exit   end; so do /quit and Ctrl-D
Ctrl-C ends an answer early, or the chat if none is being given."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("chat", cls=Command, help=HELP, epilog=EXAMPLES)(bind(chat))


def chat(*, sampling: SamplingOptions, drafting: DraftingOptions, model: ModelOptions) -> int:
    """Chat until the input ends; save the memory in any case."""
    from speculant.cli.loading import load_speculator, model_title
    from speculant.cli.loading_checks import check_memory

    check_memory(drafting)
    loaded, title = load_speculator(model, drafting), model_title(model.model)
    check_template(loaded.speculator, title)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    with ExitStack() as ending:
        ending.callback(loaded.speculator.close)
        if loaded.memory is not None:
            ending.callback(loaded.speculator.save, loaded.memory)
        talk(Conversation(loaded.speculator, sampling.keywords()), title=title, method=loaded.speculator.method)
    return 0


def check_template(speculator: Speculator, title: str) -> None:
    """Check that the model can chat, before the first question.

    Raises:
        TokenizerError: it has no tokenizer or no chat template.
    """
    if getattr(speculator.processor, "chat_template", None):
        return
    try:
        speculator.encode_chat([{"role": "user", "content": "Hello"}])
    except TokenizerError:
        raise TokenizerError(
            f"{title} has no chat template, so it cannot chat. Name a model that was tuned to chat "
            "(often called -Instruct or -Chat) by --model, or continue a text: speculant generate PROMPT."
        ) from None


def talk(conversation: Conversation, *, title: str, method: str) -> None:
    """Read lines and answer them, until the input ends or /exit.

    Args:
        conversation: the conversation to continue.
        title, method: names of model and method, for the banner on a terminal.
    """
    marker = ""
    if sys.stdin.isatty() and sys.stdout.isatty():
        marker = "> "
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives input() line editing and a history)
        say(f"Chat with {title}, drafted by {method}. /help lists the commands, /exit ends.")
    while True:
        try:
            line = input(marker).strip()
        except EOFError:
            return
        if line in ("/exit", "/quit"):
            return
        if line == "/reset":
            conversation.reset()
            say("a new conversation begins.")
        elif line == "/stats":
            say(conversation.stats())
        elif line == "/help":
            say(COMMANDS)
        elif line.startswith(("/image ", "/audio ")):
            kind, _, name = line[1:].partition(" ")
            try:
                say(conversation.attach(kind, name.strip()))
            except SpeculantError as error:
                say(str(error))
        elif line.startswith("/"):
            say(f"there is no command {line.split()[0]}. /help lists them.")
        elif line:
            try:
                conversation.ask(line)
            except PromptError as error:
                say(f"the conversation is too long: {error} /reset begins a new one.")
            except FileError as error:
                say(str(error))
            except Terminated:
                raise
            except KeyboardInterrupt:
                if not marker:
                    raise


class Conversation:
    """The messages so far, and the cache of the tokens that the next prompt starts with."""

    def __init__(self, speculator: Speculator, options: dict[str, Any]) -> None:
        self._speculator, self._options = speculator, options
        self.reset()

    def reset(self) -> None:
        """Clear the messages; the drafter's memory stays."""
        self._messages: list[Message] = []
        self._attached: list[dict[str, str]] = []  # attachments of the next question
        self._cache: Any = None
        self._held: list[int] = []  # the cached tokens

    def attach(self, kind: str, path: str) -> str:
        """Attach a file to the next question, and return a message about it.

        Raises:
            UnsupportedError: the model does not support files of this kind.
            FileError: there is no such file.
        """
        from speculant.api.media_prompts import media_kinds

        kinds = media_kinds(self._speculator.processor)
        if kind not in kinds:
            taken = " and ".join(["text", *kinds])
            raise UnsupportedError(f"this model takes {taken}, no {kind}. Name one that does by --model.")
        if not Path(path).is_file():
            raise FileError(f"there is no file {path}.")
        self._attached.append({"type": kind, kind: path})
        return f"{Path(path).name} goes before the next question."

    def ask(self, question: str) -> None:
        """Print the answer while it is generated; an interrupted one stays in the conversation as it is.

        Raises:
            PromptError: the conversation is too long for the model; it is restored to its state before the question.
            FileError: an attached file cannot be read; it is removed.
        """
        from speculant.api.media_prompts import has_media

        content: Any = [*self._attached, {"type": "text", "text": question}] if self._attached else question
        self._attached = []
        messages = [*self._messages, {"role": "user", "content": content}]
        ids = list[int]()
        if has_media(messages) or not getattr(self._speculator.tokenizer, "chat_template", None):
            stream = self._speculator.stream(messages, **self._options)  # reads all messages again, including files
        else:
            ids = self._speculator.encode_chat(messages)
            stream = self._speculator.stream(ids, cache=self._shared_cache(ids), **self._options)
        result = stream.result
        self._cache, self._held = None, []  # invalid until the answer is complete
        try:
            write_stream(stream)
            if ids:
                self._cache, self._held = result.cache, ids + result.ids[:-1]
        finally:
            self._messages = [*messages, {"role": "assistant", "content": result.text}]

    def stats(self) -> str:
        """Return the report of the last answer."""
        stats = self._speculator.last_stats
        return "nothing was generated yet." if stats is None else stats.report()

    def _shared_cache(self, ids: list[int]) -> Any:
        """Return the cache, cut to the prefix shared with the new prompt, excluding its last token; None if empty.

        Templates may render earlier turns differently, and text may be tokenised differently, so the tokens are
        compared.
        """
        pairs = zip(self._held, ids[:-1], strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if not shared or self._cache is None:
            return None
        shared = self._speculator.engine.crop(self._cache, shared)
        self._held = self._held[:shared]
        return self._cache if shared else None
