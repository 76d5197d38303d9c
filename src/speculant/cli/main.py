"""`speculant`: parses the command, runs it, and turns expected faults into one line and an exit code.

Nothing heavy is imported before a command runs, so that `--help` answers at once. Exit codes: 0 done,
1 something failed, 2 the request itself is wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from speculant import __version__
from speculant.cli import bench, chat, check, compare, corpus, env, generate, memory, methods, replay, tune
from speculant.core.errors import SpeculantError

COMMANDS = (generate, chat, methods, bench, compare, check, corpus, memory, replay, tune, env)
INTERRUPTED = 130
PIPE_CLOSED = 141
_NO_MEMORY = ("can't allocate memory", "not enough memory")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: the arguments; None for the process's own.

    Raises:
        SystemExit: the arguments do not parse (2), or only --help or --version was asked for (0).
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 must not end a generation
    args = build_parser().parse_args(argv)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except SpeculantError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # What is still buffered has nowhere to go; without this the interpreter complains while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(phrase in str(error) for phrase in _NO_MEMORY):
            raise
        return _fail("this machine ran out of memory. Use a smaller model or dtype, a shorter prompt or fewer nodes.")
    return code


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="speculant", description="Faster decoding of large language models, without changing what they say."
    )
    parser.add_argument("--version", action="version", version=f"speculant {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def _fail(message: str, code: int = 1) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
