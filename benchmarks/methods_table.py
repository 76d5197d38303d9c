"""Compare every method with plain decoding on held-out stories, for the table in benchmarks/methods.md.

Each method alternates with plain decoding on each prompt, greedy, in one process; a method's memory is initially empty
and kept over its prompts. All registered methods are measured; those that cannot run are listed with the reason.
Results are added to a file after each method, so an interrupted run continues with the same command; methods that are
in the file are skipped unless `--again` is given.

    python benchmarks/methods_table.py --target bundled -o benchmarks/results/methods-bundled.json
    python benchmarks/methods_table.py --target inflated --requests 10 -o benchmarks/results/methods-inflated.json
    python benchmarks/methods_table.py --markdown benchmarks/results/methods-bundled.json

`--nodes METHOD=N` and `--set METHOD.NAME=VALUE` apply to one method and are recorded with its results.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from methods_report import methods_table
from speculant.api.draft_caches import open_draft_caches
from speculant.api.speculator import Speculator
from speculant.bench.report.summary import summary
from speculant.bench.suite.rows import PLAIN, RowFile
from speculant.bench.suite.runner import Runner
from speculant.bench.suite.tasks import Task, TaskRequest, TaskSampling
from speculant.bench.systems.selection import build_systems
from speculant.cli.env import environment
from speculant.cli.settings import build_settings_by_method, settings_json
from speculant.cli.threads import set_threads
from speculant.core.byte_size import MEMORY_LIMIT
from speculant.core.errors import SpeculantError
from speculant.core.tree import Int32
from speculant.registry import METHODS
from targets import TARGETS, Pair, load_pair, story_prompts

FIGURES = (
    "tokens", "rounds", "mat", "speedup", "decode_speedup", "request_speedup_quartiles", "tokens_per_second", "seconds",
    "time_share", "drafted", "accepted", "acceptance_by_depth", "memory_bytes", "compared", "identical", "divergences",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, help="results file, which is extended")
    parser.add_argument("--target", choices=TARGETS, default="bundled")
    parser.add_argument("--draft-model", metavar="DIR", help="default: for the bundled model, the bundled one")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, help="default: by the model's size, or OMP_NUM_THREADS")
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96, help="new tokens per request")
    parser.add_argument("--methods", metavar="NAME,...", help="default: all registered methods")
    parser.add_argument("--nodes", metavar="[METHOD=]N|auto", action="append", default=[], help="default: auto")
    parser.add_argument("--set", metavar="[METHOD.]NAME=VALUE", action="append", default=[])
    parser.add_argument("--again", action="store_true", help="measure again the methods that are in the file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", nargs="+", help="print a table of these results")
    args = parser.parse_args()
    if args.markdown:
        print(methods_table([json.loads(path.read_text("utf-8")) for path in args.markdown]))
        return
    if args.out is None:
        parser.error("name a file for the results by -o")
    names = [name for name in (args.methods or ",".join(METHODS)).split(",") if name != PLAIN]
    if unknown := [name for name in names if name not in METHODS]:
        parser.error(f"there is no method {', '.join(unknown)}; there are {', '.join(METHODS)}")
    try:
        settings = build_settings_by_method(names, args.set)
    except SpeculantError as error:
        parser.error(str(error))
    plans = {name: Plan(nodes_of(name, args.nodes), settings.get(name)) for name in names}
    pair = load_pair(args.target, dtype=args.dtype, draft_model=args.draft_model)
    set_threads(pair.model, args.threads)
    prompts = story_prompts(pair.tokenizer, count=args.requests, tokens=args.prompt_tokens)
    bench = MethodsBench(args.target, pair, prompts, args.tokens)
    results = Results(args.out, bench.conditions(), environment(pair.model), pair.draft_name, again=args.again)
    for name in results.missing(plans):
        results.add(name, plans[name], bench.measure(name, plans[name]))


@dataclass(frozen=True, slots=True)
class Plan:
    """How a method is run: maximum nodes per draft ("auto" by default), and its drafter's settings or None."""

    nodes: int | str
    settings: Any

    def to_json(self, name: str) -> dict[str, Any]:
        """Return the recorded form of the plan."""
        return {"nodes": self.nodes, "settings": settings_json({} if self.settings is None else {name: self.settings})}


@dataclass(frozen=True, slots=True, eq=False)
class Story:
    """A prompt as a benchmark item."""

    prompt: Int32
    tokens: int
    category = "stories"
    turns = 1

    def request(self, answers: Sequence[Sequence[int]]) -> TaskRequest | None:
        """Return its only request."""
        return None if answers else TaskRequest(self.prompt, self.tokens)


class Results:
    """The results file: shared conditions, and figures by method."""

    def __init__(
        self,
        path: Path,
        conditions: dict[str, Any],
        environment: dict[str, Any],
        draft_model: str | None,
        *,
        again: bool,
    ) -> None:
        """Create a file, or continue one with the same conditions."""
        self._path, self._draft_model, self._again = path, draft_model, again
        self._content: dict[str, Any] = {"conditions": conditions, "environment": environment, "methods": {}}
        if path.exists():
            found = json.loads(path.read_text("utf-8"))
            if changed := [key for key in conditions if found.get("conditions", {}).get(key) != conditions[key]]:
                raise SystemExit(f"{path} was measured under other conditions ({', '.join(changed)}); name another -o")
            self._content = found

    def missing(self, plans: Mapping[str, Plan]) -> list[str]:
        """Return the methods to measure, including those that were skipped before."""
        done = {name: each for name, each in self._content["methods"].items() if "skipped" not in each}
        for name, plan in plans.items():
            if name in done and not self._again and any(done[name][key] != v for key, v in plan.to_json(name).items()):
                raise SystemExit(f"{self._path} holds {name} with other nodes or settings; add --again to replace it")
        return [name for name in plans if self._again or name not in done]

    def add(self, name: str, plan: Plan, figures: dict[str, Any]) -> None:
        """Add a method, in the order of the registry, and write the file."""
        drafting = {"draft_model": self._draft_model} if METHODS[name].takes_draft_model else {}
        methods = self._content["methods"]
        methods[name] = {**plan.to_json(name), **drafting, **figures}
        ordered = sorted(methods, key=list(METHODS).index)
        self._content["methods"] = {each: methods[each] for each in ordered}
        self._path.write_text(json.dumps(self._content, indent=1) + "\n", "utf-8")


class MethodsBench:
    """Measures methods on one target, which is loaded once."""

    def __init__(self, target: str, pair: Pair, prompts: Sequence[Int32], tokens: int) -> None:
        self._target, self._pair, self._prompts, self._tokens = target, pair, prompts, tokens
        self._fast = Speculator.from_transformers(pair.model, method=PLAIN).fast
        self._judge = Speculator.from_transformers(pair.model, method=PLAIN, fast=False)
        vocabulary = pair.model.config.vocab_size
        self._caches = None
        if pair.draft_model is not None:
            self._caches = open_draft_caches(
                pair.draft_model, vocabulary, tokenizer=pair.tokenizer, draft_tokenizer=pair.draft_tokenizer
            )

    def conditions(self) -> dict[str, Any]:
        """Return the conditions that must be the same for all methods in a file."""
        model = self._pair.model
        return {
            "target": self._target,
            "parameters": model.num_parameters(),
            "dtype": str(model.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "requests": len(self._prompts),
            "prompt_tokens": len(self._prompts[0]),
            "max_new_tokens": self._tokens,
        }

    def measure(self, name: str, plan: Plan) -> dict[str, Any]:
        """Return a method's figures, or the reason why it cannot run."""
        print(f"=== {name}", flush=True)
        try:
            METHODS[name].check_draft_model(given=METHODS[name].takes_draft_model and self._caches is not None)
            figures = self.figures(name, plan.nodes, plan.settings)
        except SpeculantError as error:
            print(f"skipped: {error}")
            return {"skipped": str(error)}
        print({key: figures[key] for key in ("mat", "speedup", "identical", "compared")}, flush=True)
        return figures

    def figures(self, name: str, nodes: int | str, settings: Any, *, head: Any = None) -> dict[str, Any]:
        """Return a method's figures.

        Args:
            name: name of the method.
            nodes: maximum nodes per draft, or "auto".
            settings: settings of its drafter; None for the defaults.
            head: head for methods that draft with one; None for the bundled one.

        Raises:
            SpeculantError: if the method cannot run.
        """
        systems = build_systems(
            [PLAIN, name],
            self._pair.model,
            draft_model=self._caches,
            head=head,
            nodes=nodes,
            memory_limit=MEMORY_LIMIT,
            fast=self._fast,
            settings={} if settings is None else {name: settings},
        )
        task = Task("stories", [Story(prompt, self._tokens) for prompt in self._prompts])
        runner = Runner(tasks=[task], systems=systems, plain=self._judge, samplings=[TaskSampling()], trials=1)
        with tempfile.TemporaryDirectory() as folder:
            file = RowFile(Path(folder), {})
            runner.warm_up()
            runner.run(file)
            rows = file.rows
        plain, own = summary(rows)
        spent = {"decode_seconds": own["seconds"] - own["prefill_seconds"]}
        return {key: own[key] for key in FIGURES} | spent | {"plain_tokens_per_second": plain["tokens_per_second"]}


def nodes_of(name: str, given: Sequence[str]) -> int | str:
    """Return the maximum nodes per draft of a method, from options "N", "auto" and "METHOD=N"."""
    found = "auto"
    for each in given:
        method, mark, value = each.rpartition("=")
        if not mark or method == name:
            found = value
    return found if found == "auto" else int(found)


if __name__ == "__main__":
    main()
