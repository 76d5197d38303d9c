"""Codex and Claude Code among the agents of `serving_agents.py`: they edit files by tool calls.

Codex prints the file in its shell, applies a patch there, and ends; Claude Code reads the file, makes several edits in
one answer, and ends.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_tasks import CONTEXT, MODEL, CodingAgent, changed, hunks, run_command, task

TEMPLATE = """{% if tools %}User: Tools: {% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call one by <tool_call>{"name": ..., "arguments": ...}</tool_call>{{ eos_token }}{% endif %}"""
CALLS = """{% for call in message['tool_calls'] or [] %}{{ '\\n' if message['content'] or not loop.first }}<tool_call>
{{ call['function'] | tojson }}
</tool_call>{% endfor %}"""
CODEX = f"""model = "{MODEL}"
model_provider = "own"

[model_providers.own]
name = "Speculant"
base_url = "ADDRESS/v1"
wire_api = "responses"
"""


def add_tools(template: str) -> str:
    """Return the bundled model's chat template with tools and their calls, as Qwen's models have them."""
    begin, said = "{{ bos_token }}", "Story: {{ message['content'] | trim }}"
    assert begin in template
    assert said in template
    return template.replace(begin, begin + TEMPLATE).replace(said, said + CALLS)


def codex_replies(file: Path) -> list[str]:
    """Return the calls of its shell, and the end."""
    before, after = (text.splitlines(keepends=True) for text in (file.read_text(), changed(file)))
    lines = list(difflib.unified_diff(before, after, n=CONTEXT))[2:]
    diff = "".join("@@\n" if line.startswith("@@") else line for line in lines)
    patch = f"*** Begin Patch\n*** Update File: {file.name}\n{diff}*** End Patch\n"
    applied = call("exec_command", cmd=f"apply_patch <<'EOF'\n{patch}EOF")
    return [call("exec_command", cmd=f"cat {file.name}"), applied, "Done."]


def run_codex(environment: Path, address: str, file: Path) -> list[str]:
    """Run `codex exec` in the file's folder; return what it made of the answers."""
    settings = file.parent / ".codex"
    settings.mkdir(exist_ok=True)
    (settings / "config.toml").write_text(CODEX.replace("ADDRESS", address))
    command = [str(environment / "node_modules/.bin/codex"), "exec", "--json", "--skip-git-repo-check"]
    output = run_command([*command, "--dangerously-bypass-approvals-and-sandbox", task(file)], file.parent)
    kinds = ("agent_message", "command_execution", "file_change")
    items = [event["item"] for event in _events(output) if event["type"] == "item.completed"]
    own = ("id", "path")
    return [json.dumps({k: v for k, v in item.items() if k not in own}) for item in items if item["type"] in kinds]


def claude_replies(file: Path) -> list[str]:
    """Return a call that reads, calls that edit, and the end."""
    edits = [call("Edit", file_path=str(file), old_string=old, new_string=new) for old, new in _unique_hunks(file)]
    return [call("Read", file_path=str(file)), "I rename them.\n" + "\n".join(edits), "Done."]


def run_claude(environment: Path, address: str, file: Path) -> list[str]:
    """Run `claude -p` in the file's folder; return the blocks of the answers that it received."""
    own = {"ANTHROPIC_BASE_URL": address, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": MODEL}
    own |= {"ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    command = [str(environment / "node_modules/.bin/claude"), "-p", task(file), "--permission-mode", "acceptEdits"]
    output = run_command([*command, "--output-format", "stream-json", "--verbose"], file.parent, **own)
    messages = [event["message"]["content"] for event in _events(output) if event["type"] == "assistant"]
    return [json.dumps({k: v for k, v in block.items() if k != "id"}) for each in messages for block in each]


def call(name: str, **arguments: Any) -> str:
    """Return a tool call as a model writes it."""
    function = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{function}\n</tool_call>"


def _unique_hunks(file: Path) -> list[tuple[str, str]]:
    """Return the changed parts of a file with so many lines around them that each is found once when its turn comes."""
    before, after = file.read_text(), changed(file)
    for context in range(CONTEXT, 100):
        text, found = before, list(hunks(before, after, context=context))
        for old, new in found:
            if text.count(old) != 1:
                break
            text = text.replace(old, new)
        if text == after:
            return found
    raise ValueError(f"{file.name} has no changes that can be told apart")


def _events(output: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among lines of output."""
    for line in output.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


CALLING_AGENTS = {
    "codex": CodingAgent(codex_replies, run_codex),
    "claude": CodingAgent(claude_replies, run_claude),
}
