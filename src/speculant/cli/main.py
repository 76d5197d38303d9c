"""`speculant`: parses the command, runs it, and turns expected errors into one line and an exit code.

Nothing large is imported before a command runs, so that `--help` responds at once. Exit codes: 0 done, 1 something
failed, 2 the request itself is wrong, 130 interrupted, 141 the reader of the output closed it, 143 ended by SIGTERM
(`serve`, once drained, with 0).
"""

from __future__ import annotations

import difflib
import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from speculant import __version__
from speculant.cli.commands import Group
from speculant.cli.signals import Terminated, terminable
from speculant.core.errors import SpeculantError

NAME = "speculant"
USAGE, INTERRUPTED, PIPE_CLOSED, TERMINATED = 2, 130, 141, 143
COMMANDS = {  # each registered by the module of this name
    "demo": "show what drafting does, on the bundled model",
    "generate": "continue a prompt",
    "chat": "chat with a model",
    "rag": "answer from documents that are searched every few tokens",
    "transcribe": "turn speech into text with a Whisper model",
    "methods": "list the drafting methods and their settings",
    "bench": "time methods on a model",
    "compare": "compare two benchmark results",
    "check": "verify that drafts do not change the output",
    "replay": "evaluate methods on recorded answers, without a model",
    "gguf": "write a model as a GGUF file",
    "quantize": "write a model with 8-bit or 4-bit weights",
    "tune": "measure the cost of target passes on this machine",
    "tune-layers": "find the layers that layer-skip should skip",
    "train": "train a head or draft model",
    "corpus": "build a memory or base from texts",
    "base": "make, list, add and remove frozen bases",
    "memory": "inspect, merge and clear memory files",
    "env": "describe this machine and the versions in use",
    "serve": "serve a model over OpenAI's and Anthropic's HTTP APIs",
}
OUTPUT_FAULTS = (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT)
EXAMPLES = """
speculant generate "Once upon a time" --compare   # is drafting faster here?
speculant chat --model your/model
speculant COMMAND --help                          # options and examples
"""
_NO_MEMORY = ("can't allocate memory", "not enough memory")
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Root(Group):
    """All commands; a command's module is imported when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None if there is none with that name."""
        if cmd_name not in COMMANDS:
            return None
        app = typer.Typer(rich_markup_mode=None)
        import_module(f"speculant.cli.{cmd_name.replace('-', '_')}").register(app)
        return typer.main.get_group(app).get_command(ctx, cmd_name)

    def summaries(self, ctx: Any) -> dict[str, str]:
        """Return a one-line summary of each command."""
        return COMMANDS


def build_app() -> typer.Typer:
    """Return the application with all commands."""
    app = typer.Typer(
        name=NAME,
        cls=Root,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        epilog=EXAMPLES,
        help="Faster decoding of large language models, without changing their output.",
    )
    app.callback()(_options)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: the arguments; None for those of the process.
    """
    if not _prepare_streams():
        return _fail("standard output is closed. Redirect it to a file, or to /dev/null if it is not wanted.")
    command: Any = typer.main.get_command(build_app())
    if f"_{NAME.upper()}_COMPLETE" in os.environ:  # a shell requests completions
        command.main(prog_name=NAME)
    try:
        with terminable():
            arguments = sys.argv[1:] if argv is None else list(argv)
            with command.make_context(NAME, arguments) as context:
                code: int = command.invoke(context)
            sys.stdout.flush()
    except typer.Exit as done:  # --help, --version
        return _exit_flushed(done.exit_code)
    except _UsageError as error:
        return _fail(word_usage_error(error), USAGE)
    except SpeculantError as error:
        return _fail(str(error), error.exit_code)
    except Terminated:
        return TERMINATED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except OSError as error:
        return _output_fault(error)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(phrase in str(error) for phrase in _NO_MEMORY):
            raise
        return _fail("this machine ran out of memory. Use a smaller model or dtype, a shorter prompt or fewer nodes.")
    finally:
        gc.unfreeze()  # imports are garbage now; bindings report uncollected objects as leaks
    return code


def word_usage_error(error: Any) -> str:
    """Return the message for a parser's usage error, with the option's name first and a pointer to the help."""
    param, context = getattr(error, "param", None), getattr(error, "ctx", None)
    if type(error) is typer.BadParameter and param is not None:
        dashed = [name for name in param.opts if name.startswith("-")]
        reason = error.message.removeprefix("Value error, ")  # from pydantic, wrapped by typer
        message = f"{max(dashed, key=len) if dashed else param.metavar or param.name} {reason}"
        given, mark, choices = reason.partition(" is not one of ")
        known = [choice.strip("'. ") for choice in choices.split(",")]
        if mark and (near := difflib.get_close_matches(given.strip("'"), known, n=1)):
            message = f"{message.rstrip('.')}. Did you mean {near[0]}?"
    elif type(error).__name__ == "NoSuchOption":
        near = difflib.get_close_matches(error.option_name, error.possibilities or [], n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        if context is not None and error.option_name == "--model" and takes_model(context.command):
            hint = f" The model is named without one: `{context.command_path} MODEL`."
        message = f"there is no option {error.option_name}.{hint}"
    elif context is not None and isinstance(context.command, Group) and "Missing command" in error.format_message():
        message = f"name a command: {', '.join(context.command.list_commands(context))}."
    else:
        message = str(error.format_message())
    message = message if message.endswith((".", "?", "!")) else f"{message}."
    return f"{message} See `{context.command_path if context is not None else NAME} --help`."


def takes_model(command: Any) -> bool:
    """Return whether a command takes the model as an argument."""
    return any(param.metavar == "MODEL" for param in command.params)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"{NAME} {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    del version  # handled by its callback


def _prepare_streams() -> bool:
    """Make the standard streams usable; return whether there is a standard output."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  (the process's own, open until it ends)
    if sys.stderr is None:  # otherwise messages would mix with the results
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        return False
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 must not abort a generation
    return True


def _exit_flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except OSError as error:
        return _output_fault(error)
    return code


def _output_fault(error: OSError) -> int:
    """Return the exit code for an error of standard output.

    Raises:
        OSError: it is another kind of error.
    """
    closed = isinstance(error, BrokenPipeError)
    if not closed and (error.filename is not None or error.errno not in OUTPUT_FAULTS):
        raise error
    # Buffered output can no longer be written; without this the interpreter complains at exit.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    return PIPE_CLOSED if closed else _fail(f"cannot write to standard output: {error.strerror}.")


def _fail(message: str, code: int = 1) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
