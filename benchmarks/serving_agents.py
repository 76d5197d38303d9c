"""A coding agent edits files through the server, with and without drafts: smolagents' CodeAgent, unchanged.

Each task is one file of this project: the agent prints it, writes it again with some names changed, and ends. The
model's output is scripted, since the bundled model cannot program: a logits processor leaves one token per row, which
drafters cannot see, so they draft as for a model with this output. The weights are the bundled model's, with 32,768
positions. A first task, which is not counted, puts the agent's instructions into the prefix cache. The methods
alternate, each with its own server and memory; time is CPU time of the decoding thread.

    python benchmarks/serving_agents.py -o benchmarks/results/serving-agents.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from smolagents import CodeAgent, OpenAIModel
from transformers import LogitsProcessor

from speculant import Speculator
from speculant.api.loading import bundled_model, load_model
from speculant.cli.env import environment
from speculant.options.serving import ServingOptions
from speculant.serving.answers import Service
from speculant.serving.app import create_app
from speculant.serving.exchange import Exchange, Job
from speculant.serving.server import bind, make_server, url

SOURCES = Path(__file__).parent.parent / "src" / "speculant" / "verifiers"
FILES = ("speculative_sampling", "block", "k_seq", "contrastive", "sample_then_follow")  # the first is warm-up
RENAMED = {"tree": "draft_tree", "walk": "path", "row": "place", "sampler": "chooser"}
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


def replies(file: Path) -> list[str]:
    """Return the scripted output of the model for each of the agent's turns on a file."""
    changed = file.read_text()
    for name, other in RENAMED.items():
        changed = re.sub(rf"\b{name}\b", other, changed)
    head = f"from pathlib import Path\nfile = Path({file.name!r})\n"
    codes = [f"{head}print(file.read_text())", f"{head}file.write_text(r'''{changed}''')", 'final_answer("Done.")']
    return [f"Thought: I go on.\n<code>\n{code}\n</code>" for code in codes]


@contextmanager
def serve(method: str, folder: str, script: list[str]) -> Iterator[tuple[str, int]]:
    """Serve the model with answers from the script in order; yield the address and the decoding thread's clock."""
    model, tokenizer = load_model(folder)
    speculator = Speculator.from_transformers(model, tokenizer, method=method)
    before = Service.options

    def options(self: Service, request: Any, prompt: int, *, choice: int = 0) -> dict[str, Any]:
        ids = tokenizer(script.pop(0), add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        return before(self, request, prompt, choice=choice) | {"logits_processor": [Scripted(prompt, ids)]}

    settings = ServingOptions(port=0, max_body_bytes=8 << 20, max_new_tokens=8192, log_format="json")
    ready = threading.Event()
    Service.options = options  # type: ignore[method-assign]
    try:
        with bind(settings) as bound:
            server = make_server(create_app(speculator, settings, model="scripted"), settings, ready.set)
            thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])))
            thread.start()
            ready.wait()
            engine = next(each for each in threading.enumerate() if each.name == "speculant-engine")
            assert engine.ident is not None
            try:
                yield url(bound), time.pthread_getcpuclockid(engine.ident)
            finally:
                server.should_exit = True
                thread.join()
    finally:
        Service.options = before  # type: ignore[method-assign]


def edit(address: str, file: Path) -> list[str]:
    """Let an agent edit a file; return the answers that it received."""
    model = OpenAIModel(
        "scripted",
        api_base=f"{address}/v1",
        api_key="none",
        temperature=0,
        max_tokens=6000,
        flatten_messages_as_text=True,
    )
    agent = CodeAgent([], model, additional_authorized_imports=["pathlib"], verbosity_level=0)
    assert agent.run(f"In {file.name}, rename {', '.join(RENAMED)}.") == "Done."
    return [step.model_output for step in agent.memory.steps if getattr(step, "model_output", None)]


def measure(way: str, folder: str) -> dict[str, Any]:
    """Return the measurements of one method, by task."""
    tasks = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)  # so that prompts do not depend on the location
        files = [Path(shutil.copy(SOURCES / f"{name}.py", place)) for name in FILES]
        script = [text for file in files for text in replies(file)]
        with serve(WAYS[way], folder, script) as (address, clock), watch_tickets() as ended:
            for file in files:
                ended.clear()
                begin = time.clock_gettime(clock)
                said = edit(address, file)
                seconds = time.clock_gettime(clock) - begin
                stats = [each.stats for each in ended]
                tasks.append(
                    {
                        "file": file.name,
                        "turns": len(said),
                        "prompt_tokens": sum(each.prompt_tokens for each in stats),
                        "cached_tokens": sum(each.reused_tokens for each in stats),
                        "tokens": sum(each.tokens for each in stats),
                        "rounds": sum(each.rounds for each in stats),
                        "cpu_seconds": round(seconds, 3),
                        "said": said,
                        "written": file.read_text(),
                    }
                )
                print(way, {name: tasks[-1][name] for name in ("file", "tokens", "rounds", "cpu_seconds")}, flush=True)
    return {"way": way, "tasks": tasks}


@contextmanager
def watch_tickets() -> Iterator[list[Any]]:
    """Yield the list of texts that are submitted inside the context."""
    found, before = list[Any](), Exchange.submit

    def submit(self: Exchange, job: Job) -> Any:
        found.append(before(self, job))
        return found[-1]

    Exchange.submit = submit  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Exchange.submit = before  # type: ignore[method-assign]


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return totals over all tasks except the first, and whether the methods gave the same results."""
    texts = [[(task["said"], task["written"]) for task in run["tasks"]] for run in runs]
    found: dict[str, Any] = {}
    for way in WAYS:
        tasks = [task for run in runs if run["way"] == way for task in run["tasks"][1:]]
        tokens, rounds = sum(task["tokens"] for task in tasks), sum(task["rounds"] for task in tasks)
        answers, seconds = sum(task["turns"] for task in tasks), sum(task["cpu_seconds"] for task in tasks)
        found[way] = {"mat": round((tokens - answers) / rounds, 3), "tokens_per_cpu_second": round(tokens / seconds, 1)}
    ratio = found["drafts"]["tokens_per_cpu_second"] / found["none"]["tokens_per_cpu_second"]
    return {"ways": found, "gain": round(ratio, 2), "same_texts": all(each == texts[0] for each in texts)}


def main() -> None:
    """Run the measurements and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=1)
    options = parser.parse_args()
    output = options.output.resolve()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(bundled_model(), folder, dirs_exist_ok=True)
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 32768}))
        runs = [measure(way, folder) for _ in range(options.repetitions) for way in WAYS]
    result = {"environment": environment(), "summary": summarise(runs)}
    for run in runs:
        for task in run["tasks"]:
            del task["said"], task["written"]
    output.write_text(json.dumps(result | {"runs": runs}, indent=1) + "\n")
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    main()
