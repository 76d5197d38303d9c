"""`speculant replay`: what drafting would bring on recorded answers, without running a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.cli.corpus import Rejected, file_size
from speculant.cli.env import environment, usable_cores
from speculant.cli.options import Subparsers, quieten, whole
from speculant.cli.output import check_writable, say, write_json
from speculant.core.errors import FileError, UsageError

if TYPE_CHECKING:
    from speculant.bench.replay.corpora import Corpus
    from speculant.bench.replay.player import Played
    from speculant.bench.replay.runs import Run
    from speculant.bench.replay.traces import Recording
    from speculant.sizing.step_cost import StepCost

DESCRIPTION = """\
Play recorded answers as if the model were giving them now, and say what each method would have got accepted.
Memory is empty at the start of each file and method. Rows hold token ids, {"prompt_ids", "output_ids"}, or text for
--tokenizer: {"messages": [...]}, whose last answer is the output, or {"prompt", "output"}. No model is run."""

NODES = 64


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser("replay", help="measure methods on recorded answers", description=DESCRIPTION)
    parser.add_argument("traces", nargs="+", metavar="FILE", help=".jsonl files with a row per line, or .json lists")
    parser.add_argument("--tokenizer", metavar="PATH|ID", help="the model's tokenizer, for rows of text")
    group = parser.add_argument_group("drafting")
    group.add_argument(
        "--method", metavar="NAME,...", default="mix",
        help="see `speculant methods`; peer:draftretriever and peer:arctic, if installed; default: mix",
    )  # fmt: skip
    group.add_argument("--nodes", metavar="N", type=whole(0), default=NODES, help=f"most per draft; default: {NODES}")
    group.add_argument(
        "--keep-memory", action=argparse.BooleanOptionalAction, default=True,
        help="over the requests of a file; the default",
    )  # fmt: skip
    group.add_argument(
        "--memory-limit", metavar="MB", type=whole(1), default=256, help="most the memory may take; default: 256"
    )
    group.add_argument(
        "--corpus", metavar="FILE", action="append", default=[],
        help="begin with this table, where a method takes its kind; may be repeated",
    )  # fmt: skip
    group = parser.add_argument_group("requests")
    group.add_argument("--order", choices=["file", "shuffled"], default="file", help="default: file")
    group.add_argument("--seed", metavar="N", type=whole(0), default=0, help="of the shuffled order; default: 0")
    group.add_argument("--limit", metavar="N", type=whole(1), help="only the first N requests of each file")
    group = parser.add_argument_group("output")
    group.add_argument(
        "--step-cost",
        metavar="FILE",
        help='what a target pass costs, {"nodes", "seconds"}: adds the speed-up to expect',
    )
    group.add_argument("--by-category", action="store_true", help="show the categories of each file too")
    group.add_argument(
        "--json", metavar="FILE", help="write the figures as JSON; - to print them in place of the table"
    )
    group.add_argument("--html", metavar="FILE", help="write a page with charts")
    parser.add_argument("--jobs", metavar="N", type=whole(1), help="processes; default: as many as there are cores")
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class Trace:
    """A file's recordings, in the order of play, under the name that the results give it."""

    name: str
    recordings: Sequence[Recording]


def run(args: argparse.Namespace) -> int:
    """Read, play, and show what came of it."""
    from speculant.bench.replay.corpora import assign, read_corpus
    from speculant.bench.replay.runs import check_method
    from speculant.bench.report.extra import check_extra
    from speculant.sizing.step_cost import read_step_cost

    if args.html is not None:
        check_extra()
    for path in (args.json, args.html):
        if path not in (None, "-"):
            check_writable(path)
    methods = list(dict.fromkeys(name.strip() for name in args.method.split(",") if name.strip()))
    if not methods:
        raise UsageError("no method was named. `speculant methods` lists them.")
    for method in methods:
        check_method(method)
    cost = None if args.step_cost is None else read_step_cost(Path(args.step_cost))
    if cost is not None:
        cost.check(args.nodes)
    tokenizer = named_tokenizer(args.tokenizer)
    corpora = assign(methods, [read_corpus(Path(path), tokenizer) for path in args.corpus])
    if args.corpus and (empty := [name for name in methods if name not in corpora]):
        say(f"beginning without a corpus, since they take none of this kind: {', '.join(empty)}.")
    rejected = Rejected()
    traces = read_traces(args, tokenizer, rejected)
    runs = plan(args, methods, traces, corpora, tokenizer)
    jobs = min(args.jobs or usable_cores(), len(runs))
    results = Results(traces, runs, play(runs, jobs), cost)
    show(args, results, told(args, jobs, rejected.count), tokenizer)
    return 0


def named_tokenizer(source: str | None) -> Any:
    """Return the tokenizer of that name; None for none."""
    if source is None:
        return None
    quieten()
    from speculant.api.loading import load_tokenizer

    return load_tokenizer(source)


def read_traces(args: argparse.Namespace, tokenizer: Any, rejected: Rejected) -> list[Trace]:
    """Read every file.

    Raises:
        FileError: one cannot be read, or holds no row that can be played.
    """
    from tqdm import tqdm

    from speculant.bench.replay.runs import in_order
    from speculant.bench.replay.traces import read_recordings

    paths = [Path(path) for path in dict.fromkeys(args.traces)]
    names = [path.stem for path in paths]
    traces = []
    with tqdm(total=sum(map(file_size, paths)), unit="B", unit_scale=True, **bar("reading")) as progress:
        for path, name in zip(paths, names, strict=True):
            found = list(read_recordings(path, tokenizer=tokenizer, reject=rejected, advance=progress.update))
            if not found:
                raise FileError(f"{path} holds no row that can be played.")
            ordered = in_order(found, shuffled=args.order == "shuffled", seed=args.seed, limit=args.limit)
            traces.append(Trace(name if names.count(name) == 1 else str(path), ordered))
    return traces


def plan(
    args: argparse.Namespace,
    methods: Sequence[str],
    traces: Sequence[Trace],
    corpora: Mapping[str, Corpus],
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
            nodes=args.nodes,
            keep_memory=args.keep_memory,
            vocabulary=max(known, vocabulary_of(trace.recordings)),
            memory_limit=args.memory_limit << 20,
            corpus=corpora.get(method),
        )
        for trace in traces
        for method in methods
    ]


def play(runs: Sequence[Run], jobs: int) -> list[Played]:
    """Play the runs behind a progress bar."""
    from tqdm import tqdm

    from speculant.bench.replay.workers import replay_runs

    with tqdm(total=sum(run.tokens for run in runs), unit="tokens", unit_scale=True, **bar("playing")) as progress:
        return replay_runs(runs, jobs=jobs, advance=progress.update)


def bar(what: str) -> dict[str, Any]:
    """Return the options of a progress bar: on a terminal, gone when it is done."""
    return {"desc": what, "leave": False, "disable": not sys.stderr.isatty()}


class Results:
    """What was played, with the acceptance that the traces recorded of other drafters."""

    def __init__(
        self, traces: Sequence[Trace], runs: Sequence[Run], played: Sequence[Played], cost: StepCost | None
    ) -> None:
        from speculant.bench.replay.metrics import run_metrics
        from speculant.bench.replay.recorded import DRAFTS, recorded_names, replay_recorded

        self.traces = traces
        self.played = {(run.file, run.method): each for run, each in zip(runs, played, strict=True)}
        self.rows: list[dict[str, Any]] = []
        for trace in traces:
            for run in runs:
                if run.file == trace.name:
                    each = self.played[run.file, run.method]
                    self.rows.append(run_metrics(run.file, run.method, run.nodes, each, cost))
            for name in recorded_names(trace.recordings):
                recorded = replay_recorded(name, trace.recordings)
                self.rows.append(run_metrics(trace.name, f"recorded:{name}", DRAFTS, recorded))

    def page(self, notes: Sequence[str], tokenizer: Any) -> str:
        """Return the page, with an excerpt of each file's last request."""
        from speculant.bench.report.excerpts import last_excerpt
        from speculant.bench.report.replay_page import replay_page

        recordings = {trace.name: trace.recordings for trace in self.traces}
        excerpts = {key: last_excerpt(each, recordings[key[0]], tokenizer) for key, each in self.played.items()}
        return replay_page(self.rows, excerpts, notes, token_ids=tokenizer is None)


def told(args: argparse.Namespace, jobs: int, left_out: int) -> dict[str, Any]:
    """Return how the replay was run."""
    return {
        "nodes": args.nodes,
        "keep_memory": args.keep_memory,
        "memory_limit_mb": args.memory_limit,
        "corpora": [Path(path).name for path in args.corpus],
        "order": args.order,
        "seed": args.seed if args.order == "shuffled" else None,
        "limit": args.limit,
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
    if settings["corpora"]:
        found.append(f"Methods that can began with {' and '.join(settings['corpora'])}.")
    if settings["jobs"] > 1:
        found.append(f"Times were taken in {settings['jobs']} processes side by side.")
    if settings["left_out"]:
        found.append(f"Rows left out, since they could not be used: {settings['left_out']}.")
    return found


def show(args: argparse.Namespace, results: Results, settings: dict[str, Any], tokenizer: Any) -> None:
    """Print the table and write what was asked for."""
    from speculant.bench.report.replay_table import aligned, replay_table

    notes = sentences(settings)
    if args.json == "-":
        say("\n".join(notes))
    else:
        print(aligned(replay_table(results.rows, categories=args.by_category)))
        print("\n".join(notes), flush=True)
    if args.html is not None:
        write_text(args.html, results.page(notes, tokenizer))
    if args.json is not None:
        write_json(args.json, {"rows": results.rows, "settings": settings, "environment": environment()})


def write_text(path: str, text: str) -> None:
    """Write a file.

    Raises:
        FileError: it cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}.") from error
