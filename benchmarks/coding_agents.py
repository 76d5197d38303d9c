"""The coding agents of `serving_agents.py`: how they are run, and what the scripted model answers them.

All rename some names in a file. smolagents' `CodeAgent` prints the file, writes all of it again with Python code, and
ends; aider, in a git repository, answers with SEARCH/REPLACE blocks of the changed lines and a commit message. Codex
and Claude Code are in `calling_agents.py`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from agent_tasks import MODEL, CodingAgent, changed, hunks, run_command, task
from calling_agents import CALLING_AGENTS

MAX_TOKENS = 6000
AIDER_OPTIONS = (
    *("--openai-api-key", "none", "--model", f"openai/{MODEL}", "--weak-model", f"openai/{MODEL}"),
    *("--edit-format", "diff", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--analytics-disable"),
    *("--no-gitignore", "--no-auto-lint", "--no-detect-urls", "--no-pretty"),
)


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
    output = run_command([str(environment / "bin/python"), str(script), *asked], file.parent)
    received: list[str] = json.loads(output.splitlines()[-1])
    return received


def aider_replies(file: Path) -> list[str]:
    """Return the answer with all edits, and the commit message."""
    blocks = "".join(
        f"{file.name}\n```python\n<<<<<<< SEARCH\n{before}=======\n{after}>>>>>>> REPLACE\n```\n\n"
        for before, after in hunks(file.read_text(), changed(file))
    )
    return [f"I rename them where they are used.\n\n{blocks}", f"refactor: rename names in {file.name}"]


def run_aider(environment: Path, address: str, file: Path) -> list[str]:
    """Run aider in the file's folder, which becomes a git repository; its answers are those of its history."""
    folder, history = file.parent, file.with_suffix(".history")
    if not (folder / ".git").exists():
        for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Files"]):
            run_command(["git", "-c", "user.name=agent", "-c", "user.email=agent@localhost", *command], folder)
        run_command(["git", "config", "user.name", "agent"], folder)
        run_command(["git", "config", "user.email", "agent@localhost"], folder)
    settings = folder / ".aider.model.metadata.json"
    if not settings.exists():
        sizes = {"max_input_tokens": 32768, "max_tokens": MAX_TOKENS, "litellm_provider": "openai", "mode": "chat"}
        settings.write_text(json.dumps({f"openai/{MODEL}": sizes}))
    command = [str(environment / "bin/aider"), "--openai-api-base", f"{address}/v1", *AIDER_OPTIONS]
    asked = ["--llm-history-file", str(history), "--message", task(file), file.name]
    run_command([*command, *asked], folder, LITELLM_LOCAL_MODEL_COST_MAP="True")
    message = run_command(["git", "log", "-1", "--format=%B"], folder)
    answers = history.read_text().split("LLM RESPONSE")[1:]
    return [*(re.sub(r"^.*\n", "", answer) for answer in answers), message]


AGENTS = {
    "smolagents": CodingAgent(smolagents_replies, run_smolagents),
    "aider": CodingAgent(aider_replies, run_aider),
} | CALLING_AGENTS
