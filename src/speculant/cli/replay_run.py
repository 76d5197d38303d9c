"""One call of `speculant replay`: reads traces, replays them, shows the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.api.loading import find_tokenizer, load_tokenizer
from speculant.bench.report.extra import check_extra
from speculant.cli.compiling import compilation_announced
from speculant.cli.loading import quieten
from speculant.cli.rejected import Rejected
from speculant.cli.replay_settings import Order, Replay
from speculant.cli.settings import build_settings_by_method, settings_json, settings_sentences
from speculant.cli.terminal import importing, progress, say, waiting
from speculant.core.errors import FileError, UsageError
from speculant.memory.bases import find_base
from speculant.registry import find_method

if TYPE_CHECKING:
    from speculant.bench.replay.corpora import Corpus
    from speculant.bench.replay.player import ReplayResult
    from speculant.bench.replay.runs import Run
    from speculant.bench.replay.traces import Recording
    from speculant.sizing.step_cost import StepCost

PEER = "peer:"  # of other projects; see bench/systems/peers.py


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
    from speculant.cli.files import JSON, PAGE, check_result, file_size

    for path in [*asked.traces, *asked.corpora]:
        file_size(Path(path))  # fails here, before anything is loaded, if it cannot be read
    base_files = [find_base(name) for name in asked.bases]
    if asked.tokenizer is not None:
        find_tokenizer(asked.tokenizer)
    if asked.html is not None:
        check_extra()
    inputs = [*asked.traces, *asked.corpora, *asked.bases, asked.step_cost]
    check_result("--json", asked.json, JSON, inputs)
    check_result("--html", asked.html, PAGE, [*inputs, asked.json])
    methods = asked.methods
    if not methods:
        raise UsageError("no method was named. `speculant methods` lists them.")
    for method in methods:
        if not method.startswith(PEER):
            find_method(method)
    cost = None if asked.step_cost is None else step_cost(asked)
    tokenizer = named_tokenizer(asked.tokenizer)
    with waiting("loading the drafters"):
        from speculant.bench.replay.corpora import assign, assign_bases, read_corpus
        from speculant.bench.replay.runs import check_method
        from speculant.cli.env import usable_cores
    for method in methods:
        check_method(method)
    chosen = build_settings_by_method(methods, asked.settings)
    corpora = assign(methods, [read_corpus(Path(path), tokenizer) for path in asked.corpora])
    if asked.corpora and (empty := [name for name in methods if name not in corpora]):
        say(f"beginning without a corpus, since they take none of this kind: {', '.join(empty)}.")
    bases = assign_bases(methods, base_files, tokenizer)
    rejected = Rejected()
    traces = read_traces(asked, tokenizer, rejected)
    runs = plan(asked, traces, corpora, bases, chosen, tokenizer)
    jobs = min(asked.jobs or usable_cores(), len(runs))
    results = Results(traces, runs, play(runs, jobs), cost)
    show(asked, results, conditions(asked, chosen, jobs, rejected.count), tokenizer)
    return 0


def step_cost(asked: Replay) -> StepCost:
    """Return what a pass costs, for drafts of as many nodes as are asked for.

    Raises:
        FileError: the file holds no curve.
        UsageError: the curve ends before.
    """
    from speculant.sizing.step_cost import read_step_cost

    found = read_step_cost(Path(str(asked.step_cost)))
    found.check(max(asked.nodes))
    return found


def named_tokenizer(source: str | None) -> Any:
    """Return the tokenizer of that name; None for none."""
    if source is None:
        return None
    if not Path(find_tokenizer(source)).is_file():
        with importing("transformers"):
            quieten()
    with waiting(f"loading the tokenizer {source}"):
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
    """Return the runs: every method on every file, with drafts of every shape and size."""
    from speculant.bench.replay.runs import Run, vocabulary_of

    known = 0 if tokenizer is None else len(tokenizer)
    return [
        Run(
            file=trace.name,
            method=method,
            recordings=trace.recordings,
            nodes=nodes,
            chain=shape == "chain",
            keep_memory=asked.keep_memory,
            vocabulary=max(known, vocabulary_of(trace.recordings)),
            memory_limit=asked.memory_limit << 20,
            corpus=corpora.get(method),
            settings=chosen.get(method),
            bases=bases.get(method, ()),
        )
        for trace in traces
        for method in asked.methods
        for shape in asked.shapes
        for nodes in asked.nodes
    ]


def play(runs: Sequence[Run], jobs: int) -> list[ReplayResult]:
    """Replay the runs with a progress bar."""
    from speculant.bench.replay.workers import replay_runs

    with compilation_announced():
        for run in {run.method: run for run in runs}.values():
            run.build()  # here, so that processes side by side do not compile the same kernels, and silently
    with progress("replaying", sum(run.tokens for run in runs), "tokens") as advance:
        return replay_runs(runs, jobs=jobs, advance=advance)


class Results:
    """The results of the runs, with the acceptance that the traces recorded of other drafters."""

    def __init__(
        self, traces: Sequence[Trace], runs: Sequence[Run], results: Sequence[ReplayResult], cost: StepCost | None
    ) -> None:
        from speculant.bench.replay.metrics import run_metrics
        from speculant.bench.replay.recorded import recorded_lengths, recorded_names, replay_recorded

        self.traces = traces
        self.rows: list[dict[str, Any]] = []
        self.results: list[ReplayResult | None] = []  # of each row; None for what was recorded
        lengths = recorded_lengths([run.nodes for run in runs if run.chain])
        for trace in traces:
            for run, each in zip(runs, results, strict=True):
                if run.file == trace.name:
                    self.rows.append(run_metrics(run.file, run.method, run.nodes, each, cost, chain=run.chain))
                    self.results.append(each)
            for name in recorded_names(trace.recordings):
                for length in lengths:
                    recorded = replay_recorded(name, trace.recordings, drafts=length)
                    self.rows.append(run_metrics(trace.name, f"recorded:{name}", length, recorded, chain=True))
                    self.results.append(None)

    @property
    def notes(self) -> list[str]:
        """What must be known to compare recorded acceptance with the rest, a sentence each."""
        recorded = list(
            dict.fromkeys(row["method"] for row, each in zip(self.rows, self.results, strict=True) if each is None)
        )
        if not recorded:
            return []
        found = [f"{' and '.join(recorded)}: chains that were recorded with the traces, elsewhere."]
        if not any(
            row["shape"] == "chain" for row, each in zip(self.rows, self.results, strict=True) if each is not None
        ):
            found.append("The other drafts are trees; --chain --nodes 20 compares chains with chains.")
        return found

    def page(self, notes: Sequence[str], tokenizer: Any) -> str:
        """Return the page, with an excerpt of each file's last request."""
        from speculant.bench.report.excerpts import last_excerpt
        from speculant.bench.report.replay_page import replay_page
        from speculant.bench.report.replay_table import told_apart

        recordings = {trace.name: trace.recordings for trace in self.traces}
        excerpts = {
            (row["file"], row["method"]): last_excerpt(each, recordings[row["file"]], tokenizer)
            for row, each in zip(told_apart(self.rows), self.results, strict=True)
            if each is not None
        }
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
        "shapes": list(asked.shapes),
        "nodes": list(asked.nodes),
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
    *most, last = map(str, settings["nodes"])
    sizes = f"{', '.join(most)} or {last}" if most else last
    drafts = f"{' and '.join(f'{shape}s' for shape in settings['shapes'])} of up to {sizes} tokens"
    found = [f"Drafts are {drafts}, memory {kept}, requests {order}."]
    if settings["limit"] is not None:
        found.append(f"Only the first {settings['limit']} requests of each file.")
    found += settings_sentences(settings["method_settings"])
    if settings["corpora"]:
        found.append(f"Methods that can began with {' and '.join(settings['corpora'])}.")
    if settings["bases"]:
        found.append(f"Frozen base of the methods that take any: {' and '.join(settings['bases'])}.")
    if settings["jobs"] > 1:
        found.append(f"Times were taken in {settings['jobs']} processes side by side.")
    if settings["left_out"]:
        found.append(f"Rows left out, since they could not be used: {settings['left_out']}.")
    return found


def show(asked: Replay, results: Results, settings: dict[str, Any], tokenizer: Any) -> None:
    """Print the table and write what was asked for."""
    from speculant.bench.report.replay_table import LEGEND, NAME_COLUMNS, replay_table
    from speculant.cli.env import environment
    from speculant.cli.files import write_json, write_text
    from speculant.cli.terminal import print_table

    notes = [*sentences(settings), *results.notes]
    if asked.json == "-":
        say("\n".join(notes))
    else:
        print_table(replay_table(results.rows, categories=asked.by_category), names=NAME_COLUMNS)
        print("\n".join([LEGEND, *notes]), flush=True)
    if asked.json is not None:
        write_json(asked.json, {"rows": results.rows, "settings": settings, "environment": environment()})
    if asked.html is not None:
        with waiting("drawing the charts"):
            page = results.page(notes, tokenizer)
        write_text(asked.html, page)
