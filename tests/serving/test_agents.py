"""Real agents editing a file through the server, with drafts and without: each protocol's, unchanged.

What the model says is scripted: a grammar forces it, turn by turn, so it is decoded, drafted and parsed as any text.
Codex and Claude Code run where their commands are installed (`npm install -g @openai/codex @anthropic-ai/claude-code`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from models import tiny_model
from servers import MODEL, make_app, make_speculator, on_port
from speculant.api.constraints import Constraint
from speculant.options.serving import ServingOptions
from speculant.serving.answers import Service
from speculant.serving.formats import AnswerFormat
from speculant.serving.schemas import ChatRequest

pytestmark = pytest.mark.clients
BEFORE, AFTER = "the dog ran\n", "the bird ran\n"
Agent = Callable[[str, Path], str]


@pytest.fixture(scope="module")
def long_model(tokenizer: Any) -> Any:
    """Return a random model with room for the prompts of agents."""
    found = tiny_model("llama", vocab_size=4096, max_position_embeddings=1 << 17)
    found.generation_config.eos_token_id = tokenizer.eos_token_id
    return found


def call(name: str, **arguments: Any) -> str:
    """Return a tool call as a model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def edit(
    agent: Agent, replies: Callable[[Path], Sequence[str]], served: tuple[Any, Any], folder: Path, **options: Any
) -> tuple[str, list[int]]:
    """Let an agent edit a file; return what it said at last, and the tokens of each answer.

    Args:
        agent: runs one at a server's address, in a folder.
        replies: to its turns, for a file.
        served: the model and its tokenizer.
        folder: where it works.
        options: of the speculator.
    """
    file = folder / "a.txt"
    file.write_text(BEFORE)
    texts, asked = list(replies(file)), list[int]()

    async def scripted(self: Service, request: ChatRequest, _wanted: AnswerFormat | None) -> Any:
        turn = sum(each.role == "assistant" for each in request.messages)
        asked.append(turn)
        return await self.grammars.compile(AnswerFormat(Constraint.regex(re.escape(texts[turn])), "script"), None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Service, "compile_constraint", scripted)
        app = make_app(make_speculator(*served, **options), port=0, max_body_bytes=8 << 20)
        with on_port(app, ServingOptions(port=0, max_body_bytes=8 << 20)) as (_, address):
            said = agent(address, folder)
    assert file.read_text() == AFTER
    return said, asked


def check(agent: Agent, replies: Callable[[Path], Sequence[str]], served: tuple[Any, Any], folder: Path) -> None:
    """Check that an agent edits its file and ends, and that drafts change nothing of what it hears."""
    found = [edit(agent, replies, served, folder, method=method) for method in ("mix", "none")]
    assert found[0] == found[1]
    assert "Done." in found[0][0]


def test_smolagents(long_model: Any, calling: Any, tmp_path: Path) -> None:
    """Guards smolagents, whose agent writes code: over chat completions."""
    smolagents = pytest.importorskip("smolagents")

    def agent(address: str, _folder: Path) -> str:
        own = {"api_base": f"{address}/v1", "api_key": "none", "temperature": 0, "max_tokens": 300}
        model = smolagents.OpenAIModel(MODEL, flatten_messages_as_text=True, **own)
        coder = smolagents.CodeAgent([], model, additional_authorized_imports=["pathlib"], verbosity_level=0)
        said = coder.run("Replace the dog by a bird.")
        return "\n".join([said, *(step.model_output for step in coder.memory.steps[1:] if step.model_output)])

    def replies(file: Path) -> list[str]:
        code = ["import pathlib", f"file = pathlib.Path({str(file)!r})"]
        code += [f"file.write_text({AFTER!r})", "print(file.read_text())"]
        first = "Thought: I edit it.\n<code>\n" + "\n".join(code) + "\n</code>"
        return [first, 'Thought: It is edited.\n<code>\nfinal_answer("Done.")\n</code>']

    check(agent, replies, (long_model, calling), tmp_path)


@pytest.mark.skipif(shutil.which("codex") is None, reason="needs Codex")
def test_codex(long_model: Any, calling: Any, tmp_path: Path) -> None:
    """Guards Codex's command line: over responses, with a call of its shell."""

    def agent(address: str, folder: Path) -> str:
        home = folder / "home"
        (home / ".codex").mkdir(parents=True, exist_ok=True)
        provider = f'name = "Speculant"\nbase_url = "{address}/v1"\nwire_api = "responses"\n'
        config = f'model = "{MODEL}"\nmodel_provider = "own"\n\n[model_providers.own]\n{provider}'
        (home / ".codex" / "config.toml").write_text(config)
        command = ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return run([*command, "Replace the dog by a bird."], folder, HOME=str(home))

    def replies(file: Path) -> list[str]:
        return [call("exec_command", cmd=f"sed -i s/dog/bird/ {file}"), "Done."]

    check(agent, replies, (long_model, calling), tmp_path)


@pytest.mark.skipif(shutil.which("claude") is None, reason="needs Claude Code")
def test_claude_code(long_model: Any, calling: Any, tmp_path: Path) -> None:
    """Guards Claude Code: over messages, with calls of its tools to read and to edit."""

    def agent(address: str, folder: Path) -> str:
        (folder / "home").mkdir(exist_ok=True)
        own = {"ANTHROPIC_BASE_URL": address, "ANTHROPIC_AUTH_TOKEN": "none", "HOME": str(folder / "home")}
        models = dict.fromkeys(("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"), MODEL)
        command = ["claude", "-p", "Replace the dog by a bird.", "--permission-mode", "acceptEdits"]
        return run(command, folder, **own, **models, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1")

    def replies(file: Path) -> list[str]:
        change = {"old_string": "dog", "new_string": "bird", "replace_all": False}
        return [call("Read", file_path=str(file)), call("Edit", file_path=str(file), **change), "Done."]

    check(agent, replies, (long_model, calling), tmp_path)


def run(command: list[str], folder: Path, **environment: str) -> str:
    """Run a command in a folder; return what it printed."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=folder, env=os.environ | environment,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
