"""One call of `speculant replay`: reads traces, replays them, shows the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.cli.rejected import Rejected
from speculant.cli.replay_settings import Order, Replay
from speculant.cli.settings import build_settings_by_method, settings_json, settings_sentences
from speculant.cli.terminal import progress, say
from speculant.core.errors import FileError, UsageError

if TYPE_CHECKING:
    from speculant.bench.replay.corpora import Corpus
    from speculant.bench.replay.player import ReplayResult
    from speculant.bench.replay.runs import Run
    from speculant.bench.replay.traces import Recording
    from speculant.sizing.step_cost import StepCost


@dataclass(frozen=True, slots=True)
class Trace:
    """A file's recordings, in the order of replay, under the name that the results give it."""

    name: str
    recordings: Sequence[Recording]


def run(asked: Replay) -> int:
    """Check, read, replay, show.

    Raises:
        UsageError, FileError: something cannot be replayed, read or written.
    """
    from speculant.bench.replay.corpora import assign, assign_bases, read_corpus
    from speculant.bench.replay.runs import check_method
    from speculant.cli.env import usable_cores
    from speculant.cli.files import JSON, PAGE, check_result
    from speculant.sizing.step_cost import read_step_cost

    inputs = [*asked.traces, *asked.corpora, *asked.bases, asked.step_cost]
    check_result("--json", asked.json, JSON, inputs)
    check_result("--html", asked.html, PAGE, [*inputs, asked.json])
    methods = asked.methods
    if not methods:
        raise UsageError("no method was named. `speculant methods` lists them.")
    for method in methods:
        check_method(method)
    chosen = build_settings_by_method(methods, asked.settings)
    cost = None if asked.step_cost is None else read_step_cost(Path(asked.step_cost))
    if cost is not None:
        cost.check(asked.nodes)
    tokenizer = named_tokenizer(asked.tokenizer)
    corpora = assign(methods, [read_corpus(Path(path), tokenizer) for path in asked.corpora])
    if asked.corpora and (empty := [name for name in methods if name not in corpora]):
        say(f"beginning without a corpus, since they take none of this kind: {', '.join(empty)}.")
    bases = assign_bases(methods, [Path(path) for path in asked.bases], tokenizer)
    rejected = Rejected()
    traces = read_traces(asked, tokenizer, rejected)
    runs = plan(asked, traces, corpora, bases, chosen, tokenizer)
    jobs = min(asked.jobs or usable_cores(), len(runs))
    results = Results(traces, runs, play(runs, jobs), cost)
    show(asked, results, conditions(asked, chosen, jobs, rejected.count), tokenizer)
    return 0


def named_tokenizer(source: str | None) -> Any:
    """Return the tokenizer of that name; None for none."""
    if source is None:
        return None
    from speculant.cli.loading import quieten

    quieten()
    from speculant.api.loading import load_tokenizer

    return load_tokenizer(source)


def read_traces(asked: Replay, tokenizer: Any, rejected: Rejected) -> list[Trace]:
    """Read every file.

    Raises:
        FileError: one cannot be read, or holds no row that can be replayed.
    """
    from speculant.bench.replay.runs import in_order
    from speculant.bench.replay.traces import read_recordings
    from speculant.cli.files import file_size

    paths = [Path(path) for path in dict.fromkeys(asked.traces)]
    names = [path.stem for path in paths]
    traces = []
    with progress("reading", sum(map(file_size, paths)), "bytes") as advance:
        for path, name in zip(paths, names, strict=True):
            found = list(read_recordings(path, tokenizer=tokenizer, reject=rejected, advance=advance))
            if not found:
                raise FileError(f"{path} holds no row that can be replayed.")
            ordered = in_order(found, shuffled=asked.order is Order.SHUFFLED, seed=asked.seed, limit=asked.limit)
            traces.append(Trace(name if names.count(name) == 1 else str(path), ordered))
    return traces


def plan(
    asked: Replay,
    traces: Sequence[Trace],
    corpora: Mapping[str, Corpus],
    bases: Mapping[str, tuple[Path, ...]],
    chosen: Mapping[str, Any],
    tokenizer: Any,
) -> list[Run]:
    """Return the runs: every method on every file."""
    from speculant.bench.replay.runs import Run, vocabulary_of

    known = 0 if tokenizer is None else len(tokenizer)
    return [
        Run(
            file=trace.name,
            method=method,
            recordings=trace.recordings,
            nodes=asked.nodes,
            keep_memory=asked.keep_memory,
            vocabulary=max(known, vocabulary_of(trace.recordings)),
            memory_limit=asked.memory_limit << 20,
            corpus=corpora.get(method),
            settings=chosen.get(method),
            bases=bases.get(method, ()),
        )
        for trace in traces
        for method in asked.methods
    ]


def play(runs: Sequence[Run], jobs: int) -> list[ReplayResult]:
    """Replay the runs with a progress bar."""
    from speculant.bench.replay.workers import replay_runs

    with progress("replaying", sum(run.tokens for run in runs), "tokens") as advance:
        return replay_runs(runs, jobs=jobs, advance=advance)


class Results:
    """The results of the runs, with the acceptance that the traces recorded of other drafters."""

    def __init__(
        self, traces: Sequence[Trace], runs: Sequence[Run], results: Sequence[ReplayResult], cost: StepCost | None
    ) -> None:
        from speculant.bench.replay.metrics import run_metrics
        from speculant.bench.replay.recorded import DRAFTS, recorded_names, replay_recorded

        self.traces = traces
        self.results = {(run.file, run.method): each for run, each in zip(runs, results, strict=True)}
        self.rows: list[dict[str, Any]] = []
        for trace in traces:
            for run in runs:
                if run.file == trace.name:
                    each = self.results[run.file, run.method]
                    self.rows.append(run_metrics(run.file, run.method, run.nodes, each, cost))
            for name in recorded_names(trace.recordings):
                recorded = replay_recorded(name, trace.recordings)
                self.rows.append(run_metrics(trace.name, f"recorded:{name}", DRAFTS, recorded))

    def page(self, notes: Sequence[str], tokenizer: Any) -> str:
        """Return the page, with an excerpt of each file's last request."""
        from speculant.bench.report.excerpts import last_excerpt
        from speculant.bench.report.replay_page import replay_page

        recordings = {trace.name: trace.recordings for trace in self.traces}
        excerpts = {key: last_excerpt(each, recordings[key[0]], tokenizer) for key, each in self.results.items()}
        return replay_page(self.rows, excerpts, notes, token_ids=tokenizer is None)


def conditions(asked: Replay, chosen: Mapping[str, Any], jobs: int, left_out: int) -> dict[str, Any]:
    """Return how the replay was run.

    Args:
        asked: the options.
        chosen: the settings of drafters, by method.
        jobs: processes.
        left_out: rows that could not be used.
    """
    return {
        "method_settings": settings_json(chosen),
        "nodes": asked.nodes,
        "keep_memory": asked.keep_memory,
        "memory_limit_mb": asked.memory_limit,
        "bases": [Path(path).name for path in asked.bases],
        "corpora": [Path(path).name for path in asked.corpora],
        "order": asked.order.value,
        "seed": asked.seed if asked.order is Order.SHUFFLED else None,
        "limit": asked.limit,
        "jobs": jobs,
        "left_out": left_out,
    }


def sentences(settings: dict[str, Any]) -> list[str]:
    """Return the same for people."""
    kept = "kept over the requests of a file" if settings["keep_memory"] else "empty for every request"
    order = "in the file's order" if settings["seed"] is None else f"shuffled by seed {settings['seed']}"
    found = [f"Drafts of up to {settings['nodes']} nodes, memory {kept}, requests {order}."]
    if settings["limit"] is not None:
        found.append(f"Only the first {settings['limit']} requests of each file.")
    found += settings_sentences(settings["method_settings"])
    if settings["corpora"]:
        found.append(f"Methods that can began with {' and '.join(settings['corpora'])}.")
    if settings["jobs"] > 1:
        found.append(f"Times were taken in {settings['jobs']} processes side by side.")
    if settings["left_out"]:
        found.append(f"Rows left out, since they could not be used: {settings['left_out']}.")
    return found


def show(asked: Replay, results: Results, settings: dict[str, Any], tokenizer: Any) -> None:
    """Print the table and write what was asked for."""
    from speculant.bench.report.replay_table import replay_table
    from speculant.cli.env import environment
    from speculant.cli.files import write_json, write_text
    from speculant.cli.terminal import print_table

    notes = sentences(settings)
    if asked.json == "-":
        say("\n".join(notes))
    else:
        print_table(replay_table(results.rows, categories=asked.by_category), names=2)
        print("\n".join(notes), flush=True)
    if asked.html is not None:
        write_text(asked.html, results.page(notes, tokenizer))
    if asked.json is not None:
        write_json(asked.json, {"rows": results.rows, "settings": settings, "environment": environment()})
