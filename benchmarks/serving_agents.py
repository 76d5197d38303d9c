"""Coding agents edit files through the server, with and without drafts: smolagents, aider, Codex, Claude Code.

Each task is one file of this project, in which the agent changes some names (`coding_agents.py`). The model's output is
scripted, since the bundled model cannot program: a logits processor leaves one token per row, which drafters cannot
see, so they draft as for a model with this output. The weights are the bundled model's, with 131,072 positions and
tools in its chat template. The methods take turns at each task, in alternating order, each with its own server and
memory. The first task, which is not counted, puts the agent's instructions into the prefix caches. Time is CPU time of
the decoding thread.

    python benchmarks/serving_agents.py --agent smolagents --environment AGENT -o benchmarks/results/serving-agents.json

AGENT is where the agent is installed: a virtual environment, or npm's prefix for Codex and Claude Code. Results are
added to the file by agent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import LogitsProcessor

from agent_tasks import MODEL, changed
from calling_agents import add_tools
from coding_agents import AGENTS
from speculant import Speculator
from speculant.api.loading import bundled_model, load_model
from speculant.cli.env import environment
from speculant.options.serving import ServingOptions
from speculant.serving.app import create_app
from speculant.serving.exchange import Exchange, Job, Ticket
from speculant.serving.server import bind, make_server, url

SOURCES = Path(__file__).parent.parent / "src" / "speculant" / "verifiers"
FILES = ("speculative_sampling", "block", "k_seq", "contrastive", "sample_then_follow")  # the first is warm-up
POSITIONS = 1 << 17
WAYS = {"drafts": "mix", "none": "none"}


class Scripted(LogitsProcessor):  # type: ignore[misc]
    """Leaves only the next token of a script after a prompt."""

    def __init__(self, prompt: int, script: Sequence[int]) -> None:
        """Store the prompt's length and the tokens that follow it."""
        self._prompt, self._script = prompt, script

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores with all but one token masked."""
        place = min(ids.shape[1] - self._prompt, len(self._script) - 1)
        found = torch.full_like(scores, -torch.inf)
        found[:, self._script[place]] = 0.0
        return found


@dataclass(slots=True)
class Script:
    """What the model says next.

    Attributes:
        tokenizer: encodes the answers.
        answers: the answers still to be given, in order.
        tickets: the texts that were decoded.
    """

    tokenizer: Any
    answers: list[str] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let every text that a server in this process decodes be the next answer, inside the context."""
        before, script = Exchange.submit, self

        def submit(self: Exchange, job: Job) -> Ticket:
            ids = script.tokenizer(script.answers.pop(0), add_special_tokens=False)["input_ids"]
            processor = Scripted(len(job.prompt), [*ids, script.tokenizer.eos_token_id])
            ticket = before(self, replace(job, options={**job.options, "logits_processor": [processor]}))
            script.tickets.append(ticket)
            return ticket

        Exchange.submit = submit  # type: ignore[method-assign]
        try:
            yield
        finally:
            Exchange.submit = before  # type: ignore[method-assign]


@contextmanager
def serve(method: str, folder: str) -> Iterator[tuple[str, int]]:
    """Serve the model; yield the address and the decoding thread's clock."""
    model, tokenizer = load_model(folder)
    speculator = Speculator.from_transformers(model, tokenizer, method=method)
    settings = ServingOptions(port=0, max_body_bytes=8 << 20, max_new_tokens=8192, log_format="json")
    ready, others = threading.Event(), set(threading.enumerate())
    with bind(settings) as bound:
        server = make_server(create_app(speculator, settings, model=MODEL), settings, ready.set)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])))
        thread.start()
        ready.wait()
        engine = next(each for each in set(threading.enumerate()) - others if each.name == "speculant-engine")
        assert engine.ident is not None
        try:
            yield url(bound), time.pthread_getcpuclockid(engine.ident)
        finally:
            server.should_exit = True
            thread.join()


def measure(agent: str, place: Path, folder: str, *, files: int, repetitions: int) -> list[dict[str, Any]]:
    """Return the measurements of an agent, one for each repetition, method and file, with what was said and written."""
    script = Script(load_model(folder)[1])
    runs = list[dict[str, Any]]()
    for repetition in range(repetitions):
        with ExitStack() as open_servers, tempfile.TemporaryDirectory() as scratch, script.installed():
            servers = {way: open_servers.enter_context(serve(method, folder)) for way, method in WAYS.items()}
            work = Path(scratch) / "work"  # where both work in turns, since its name may be in prompts and answers
            folders = {way: Path(scratch) / way for way in WAYS}
            for each in folders.values():
                each.mkdir()
                for name in FILES:
                    shutil.copy(SOURCES / f"{name}.py", each)
            for number, name in enumerate(FILES[:files]):
                ways = list(WAYS) if (number + repetition) % 2 else list(reversed(WAYS))
                for way in ways:
                    folders[way].rename(work)
                    task = edit(agent, place, work / f"{name}.py", script, *servers[way])
                    work.rename(folders[way])
                    runs.append({"repetition": repetition, "way": way, "counted": number > 0} | task)
                    print(
                        agent,
                        {key: value for key, value in runs[-1].items() if key not in ("said", "written")},
                        flush=True,
                    )
    return runs


def edit(agent: str, place: Path, file: Path, script: Script, address: str, clock: int) -> dict[str, Any]:
    """Let an agent edit a file and return the measurements."""
    script.answers[:], expected = AGENTS[agent].replies(file), changed(file)
    script.tickets.clear()
    began = time.clock_gettime(clock)
    said = [each.replace(str(file.parent), ".") for each in AGENTS[agent].run(place, address, file)]
    seconds = time.clock_gettime(clock) - began
    if script.answers or file.read_text() != expected:
        raise SystemExit(f"{agent} did not edit {file.name} as it was told:\n" + "\n".join(said))
    stats = [each.stats for each in script.tickets if each.stats is not None]
    return {
        "file": file.name,
        "turns": len(stats),
        "prompt_tokens": sum(each.prompt_tokens for each in stats),
        "cached_tokens": sum(each.reused_tokens for each in stats),
        "prompts": [[each.prompt_tokens, each.reused_tokens] for each in stats],
        "tokens": sum(each.tokens for each in stats),
        "rounds": sum(each.rounds for each in stats),
        "cpu_seconds": round(seconds, 3),
        "said": said,
        "written": file.read_text(),
    }


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return totals of the counted tasks, the gain with its spread over files, and whether all texts were the same."""
    ways = {way: [run for run in runs if run["way"] == way and run["counted"]] for way in WAYS}
    found: dict[str, Any] = {}
    for way, own in ways.items():
        tokens, rounds, answers = (sum(run[name] for run in own) for name in ("tokens", "rounds", "turns"))
        seconds = sum(run["cpu_seconds"] for run in own)
        found[way] = {"mat": round((tokens - answers) / rounds, 3), "tokens_per_cpu_second": round(tokens / seconds, 1)}
    texts: dict[str, list[Any]] = {}
    for run in runs:
        texts.setdefault(run["file"], []).append((run["said"], run["written"]))
    key = lambda run: (run["repetition"], run["file"])  # noqa: E731
    pairs = zip(sorted(ways["drafts"], key=key), sorted(ways["none"], key=key), strict=True)
    gains = [plain["cpu_seconds"] / drafted["cpu_seconds"] for drafted, plain in pairs]
    ratio = found["drafts"]["tokens_per_cpu_second"] / found["none"]["tokens_per_cpu_second"]
    return {
        "ways": found,
        "gain": round(ratio, 2),
        "gains_by_task": {"least": round(min(gains), 2), "most": round(max(gains), 2)},
        "same_texts": all(each == own[0] for own in texts.values() for each in own),
    }


def main() -> None:
    """Run the measurements of one agent and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--agent", choices=AGENTS, required=True)
    parser.add_argument("--environment", type=Path, required=True, help="where the agent is installed")
    parser.add_argument("--files", type=int, default=len(FILES), help="how many, the warm-up's included")
    parser.add_argument("--repetitions", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = json.loads(options.output.read_text()) if options.output.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(bundled_model(), folder, dirs_exist_ok=True)
        config, template = Path(folder) / "config.json", Path(folder) / "chat_template.jinja"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": POSITIONS}))
        template.write_text(add_tools(template.read_text()))
        runs = measure(
            options.agent,
            options.environment.absolute(),
            folder,
            files=options.files,
            repetitions=options.repetitions,
        )
    summary = summarise(runs)
    for run in runs:
        del run["said"], run["written"]
    agents = found.get("agents", {}) | {options.agent: {"summary": summary, "runs": runs}}
    options.output.write_text(json.dumps({"environment": environment(), "agents": agents}, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
