"""The coding agents of `serving_agents.py`: how they are run, and what the scripted model answers them.

Both rename some names in a file. smolagents' `CodeAgent` prints the file, writes all of it again with Python code, and
ends; aider, in a git repository, answers with SEARCH/REPLACE blocks of the changed lines and a commit message.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MODEL = "scripted"
RENAMED = {"tree": "draft_tree", "walk": "path", "row": "place", "sampler": "chooser"}
MAX_TOKENS = 6000
CONTEXT = 2  # unchanged lines around a SEARCH block's changes
SECONDS = 600
AIDER_OPTIONS = (
    *("--openai-api-key", "none", "--model", f"openai/{MODEL}", "--weak-model", f"openai/{MODEL}"),
    *("--edit-format", "diff", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--analytics-disable"),
    *("--no-gitignore", "--no-auto-lint", "--no-detect-urls", "--no-pretty"),
)


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


def smolagents_replies(file: Path) -> list[str]:
    """Return one Python program per turn: print, write, end."""
    head = f"from pathlib import Path\nfile = Path({file.name!r})\n"
    codes = [
        f"{head}print(file.read_text())",
        f"{head}file.write_text(r'''{changed(file)}''')",
        'final_answer("Done.")',
    ]
    return [f"Thought: I go on.\n<code>\n{code}\n</code>" for code in codes]


def run_smolagents(environment: Path, address: str, file: Path) -> list[str]:
    """Run smolagents' `CodeAgent` by `smolagents_task.py`, in the environment's Python."""
    script = Path(__file__).parent / "smolagents_task.py"
    asked = [address, MODEL, str(MAX_TOKENS), task(file)]
    output = _run([str(environment / "bin/python"), str(script), *asked], file.parent)
    received: list[str] = json.loads(output.splitlines()[-1])
    return received


def aider_replies(file: Path) -> list[str]:
    """Return the answer with all edits, and the commit message."""
    blocks = "".join(
        f"{file.name}\n```python\n<<<<<<< SEARCH\n{before}=======\n{after}>>>>>>> REPLACE\n```\n\n"
        for before, after in _hunks(file.read_text(), changed(file))
    )
    return [f"I rename them where they are used.\n\n{blocks}", f"refactor: rename names in {file.name}"]


def run_aider(environment: Path, address: str, file: Path) -> list[str]:
    """Run aider in the file's folder, which becomes a git repository; its answers are those of its history."""
    folder, history = file.parent, file.with_suffix(".history")
    if not (folder / ".git").exists():
        for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Files"]):
            _run(["git", "-c", "user.name=agent", "-c", "user.email=agent@localhost", *command], folder)
        _run(["git", "config", "user.name", "agent"], folder)
        _run(["git", "config", "user.email", "agent@localhost"], folder)
    settings = folder / ".aider.model.metadata.json"
    if not settings.exists():
        sizes = {"max_input_tokens": 32768, "max_tokens": MAX_TOKENS, "litellm_provider": "openai", "mode": "chat"}
        settings.write_text(json.dumps({f"openai/{MODEL}": sizes}))
    command = [str(environment / "bin/aider"), "--openai-api-base", f"{address}/v1", *AIDER_OPTIONS]
    _run([*command, "--llm-history-file", str(history), "--message", task(file), file.name], folder)
    message = _run(["git", "log", "-1", "--format=%B"], folder)
    answers = history.read_text().split("LLM RESPONSE")[1:]
    return [*(re.sub(r"^.*\n", "", answer) for answer in answers), message]


def _hunks(before: str, after: str) -> Iterator[tuple[str, str]]:
    """Yield the changed parts of a text with some lines around them."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT):
        (_, i, _, k, _), (_, _, j, _, m) = group[0], group[-1]
        yield "".join(old[i:j]), "".join(new[k:m])


def _run(command: Sequence[str], folder: Path) -> str:
    """Return a command's output.

    Raises:
        RuntimeError: it failed; with the end of its output.
    """
    settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HOME": str(folder), "PYTHONPATH": ""}
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed:\n{done.stdout[-2000:]}")
    return done.stdout


AGENTS = {
    "smolagents": CodingAgent(smolagents_replies, run_smolagents),
    "aider": CodingAgent(aider_replies, run_aider),
}
