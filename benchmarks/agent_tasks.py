"""The tasks that `serving_agents.py` gives to coding agents: to rename some names in a file; and how they are run."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MODEL = "scripted"
RENAMED = {"tree": "draft_tree", "walk": "path", "row": "place", "sampler": "chooser"}
CONTEXT = 2  # unchanged lines around changed ones in an edit
SECONDS = 600


@dataclass(frozen=True, slots=True)
class CodingAgent:
    """A coding agent, installed in an environment of its own.

    Attributes:
        replies: returns the model's answer to each of its requests for a file, in order.
        run: lets it edit a file, given its environment and the server's address; returns the answers it received.
    """

    replies: Callable[[Path], list[str]]
    run: Callable[[Path, str, Path], list[str]]


def changed(file: Path) -> str:
    """Return the text that a file should have afterwards."""
    text = file.read_text()
    for name, other in RENAMED.items():
        text = re.sub(rf"\b{name}\b", other, text)
    return text


def task(file: Path) -> str:
    """Return what the agent is told to do."""
    return f"In {file.name}, rename " + ", ".join(f"{name} to {other}" for name, other in RENAMED.items()) + "."


def hunks(before: str, after: str, *, context: int = CONTEXT) -> Iterator[tuple[str, str]]:
    """Yield the changed parts of a text with some lines around them."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(context):
        (_, i, _, k, _), (_, _, j, _, m) = group[0], group[-1]
        yield "".join(old[i:j]), "".join(new[k:m])


def run_command(command: Sequence[str], folder: Path, **settings: str) -> str:
    """Return the output of a command whose home is the folder where it runs.

    Args:
        command: what is run.
        folder: where.
        settings: further environment variables.

    Raises:
        RuntimeError: it failed; with the end of its output.
    """
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"HOME": str(folder), "PYTHONPATH": ""} | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed:\n{done.stdout[-2000:]}")
    return done.stdout
