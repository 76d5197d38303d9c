"""Runs `speculant replay`: checks the options, reads traces, and replays them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.api.loading import find_tokenizer, load_tokenizer
from speculant.bench.report.extra import check_extra
from speculant.cli.compiling import compilation_announced
from speculant.cli.loading import silence_loading
from speculant.cli.loading_checks import find_drafter
from speculant.cli.replay_results import Results, conditions, show
from speculant.cli.replay_settings import SHUFFLED, ReplayOptions, Trace
from speculant.cli.settings import build_settings_by_method
from speculant.cli.terminal import importing, progress, say, waiting
from speculant.core.errors import FileError, UsageError
from speculant.corpus.rejected import Rejected
from speculant.memory.bases import find_base
from speculant.registry import METHODS, find_method

if TYPE_CHECKING:
    from speculant.bench.replay.corpora import CorpusFile
    from speculant.bench.replay.player import ReplayResult
    from speculant.bench.replay.runs import Run
    from speculant.sizing.step_cost import StepCost

PEER = "peer:"  # prefix of other projects' drafters; see bench/systems/peers.py


def run(asked: ReplayOptions) -> int:
    """Check, read, replay and show.

    Raises:
        UsageError, FileError: something cannot be replayed, read or written.
    """
    from speculant.cli.files import JSON, PAGE, check_result, file_size

    for path in [*asked.files, *asked.corpora]:
        file_size(Path(path))  # fails early if it cannot be read
    base_files = [find_base(name) for name in asked.drafting.base]
    if asked.tokenizer is not None:
        find_tokenizer(asked.tokenizer)
    if asked.html is not None:
        check_extra()
    inputs = [*asked.files, *asked.corpora, *asked.drafting.base, asked.step_cost]
    check_result("--json", asked.json, JSON, inputs)
    check_result("--html", asked.html, PAGE, [*inputs, asked.json])
    methods = asked.methods
    if asked.drafting.drafter is not None:
        find_drafter(asked.drafting.drafter)  # makes modules in this folder importable
    if not methods:
        raise UsageError("no method was named. `speculant methods` lists them.")
    for method in methods:
        if not method.startswith(PEER):
            find_method(method)
    head = parse_united_head(asked)
    cost = None if asked.step_cost is None else step_cost(asked)
    if asked.tokenizer is None:
        check_rows(asked)
    tokenizer = load_named_tokenizer(asked.tokenizer)
    with waiting("loading the drafters"):
        from speculant.bench.replay.corpora import assign, assign_bases, read_corpus
        from speculant.bench.replay.runs import check_method
        from speculant.cli.env import usable_cores
    for method in methods:
        check_method(method)
    chosen = build_settings_by_method(methods, asked.drafting.settings or ())
    corpora = assign(methods, [read_corpus(Path(path), tokenizer) for path in asked.corpora])
    if asked.corpora and (empty := [name for name in methods if name not in corpora]):
        say(f"starting without a corpus, since they do not read this kind: {', '.join(empty)}.")
    bases = assign_bases(methods, base_files, tokenizer)
    rejected = Rejected(say)
    traces = read_traces(asked, tokenizer, rejected)
    if head:
        check_recorded(head, traces)
    runs = plan(asked, traces, corpora, bases, chosen, tokenizer, cost)
    jobs = min(asked.jobs or usable_cores(), len(runs))
    results = Results(traces, runs, play(runs, jobs), cost)
    show(asked, results, conditions(asked, chosen, jobs, rejected.count), tokenizer)
    return 0


def step_cost(asked: ReplayOptions) -> StepCost:
    """Return the cost of passes, covering the requested number of nodes.

    Raises:
        FileError: the file has no curve.
        UsageError: the curve is too short.
    """
    from speculant.sizing.step_cost import read_step_cost

    found = read_step_cost(Path(str(asked.step_cost)))
    found.check(max(asked.sizes, default=0))
    return found


def parse_united_head(asked: ReplayOptions) -> str:
    """Return the name of the recorded head to unite methods with; "" for none.

    Raises:
        UsageError: it does not have the form recorded:NAME, or no method can be united with a head.
    """
    from speculant.bench.replay.traces import RECORDED

    if not asked.unite:
        return ""
    if not asked.unite.startswith(RECORDED) or asked.unite == RECORDED:
        raise UsageError(f"--unite takes {RECORDED}NAME, with the name of a head in the files, not '{asked.unite}'.")
    if not any(map(unitable, asked.methods)):
        raise UsageError(
            f"--unite takes mix or suffix, whose drafts have probabilities; not {', '.join(asked.methods)}."
        )
    return asked.unite.removeprefix(RECORDED)


def unitable(method: str) -> bool:
    """Return whether a method's memory can be united with a head."""
    return f"{method}-head" in METHODS


def check_recorded(head: str, traces: Sequence[Trace]) -> None:
    """Check that a trace has a head's recorded acceptance.

    Raises:
        UsageError: none does.
    """
    from speculant.bench.replay.recorded import list_recorded_names

    known = sorted({name for trace in traces for name in list_recorded_names(trace.recordings)})
    if head not in known:
        there = f"They recorded that of {', '.join(known)}." if known else "They recorded that of no drafter."
        raise UsageError(f"no file recorded the acceptance of '{head}'. {there}")


def check_rows(asked: ReplayOptions) -> None:
    """Check that the first rows are token ids if no tokenizer is named, before drafters are loaded.

    Raises:
        FileError: a file cannot be read.
        UsageError: they are text.
    """
    from speculant.bench.replay.traces import read_recordings

    for path in asked.files:
        next(read_recordings(Path(path), reject=lambda _: None), None)


def load_named_tokenizer(source: str | None) -> Any:
    """Load the tokenizer of that name; None for none."""
    if source is None:
        return None
    if not Path(find_tokenizer(source)).is_file():
        with importing("transformers"):
            silence_loading()
    with waiting(f"loading the tokenizer {source}"):
        return load_tokenizer(source)


def read_traces(asked: ReplayOptions, tokenizer: Any, rejected: Rejected) -> list[Trace]:
    """Read every file.

    Raises:
        FileError: one cannot be read, or has no usable row.
    """
    from speculant.bench.replay.runs import in_order
    from speculant.bench.replay.traces import read_recordings
    from speculant.cli.files import file_size

    paths = [Path(path) for path in dict.fromkeys(asked.files)]
    names = [path.stem for path in paths]
    traces = []
    with progress("reading", sum(map(file_size, paths)), "bytes") as advance:
        for path, name in zip(paths, names, strict=True):
            found = list(read_recordings(path, tokenizer=tokenizer, reject=rejected, advance=advance))
            if not found:
                raise FileError(f"{path} has no row that can be replayed.")
            ordered = in_order(found, shuffled=asked.order == SHUFFLED, seed=asked.seed or 0, limit=asked.limit)
            traces.append(Trace(name if names.count(name) == 1 else str(path), ordered))
    return traces


def plan(
    asked: ReplayOptions,
    traces: Sequence[Trace],
    corpora: Mapping[str, CorpusFile],
    bases: Mapping[str, tuple[Path, ...]],
    chosen: Mapping[str, Any],
    tokenizer: Any,
    cost: StepCost | None,
) -> list[Run]:
    """Return the runs: every method on every file, with drafts of every shape and size."""
    from speculant.bench.replay.runs import Run, vocabulary_of
    from speculant.bench.replay.united import select_recorded

    known = 0 if tokenizer is None else len(tokenizer)
    head = parse_united_head(asked)
    heads = {trace.name: ["", head] if head and select_recorded(head, trace.recordings) else [""] for trace in traces}
    return [
        Run(
            file=trace.name,
            method=method,
            unite=unite,
            recordings=select_recorded(unite, trace.recordings) if unite else trace.recordings,
            nodes=nodes,
            chain=shape == "chain",
            keep_memory=asked.keep_memory,
            vocabulary=max(known, vocabulary_of(trace.recordings)),
            memory_limit=asked.drafting.memory_limit,
            corpus=corpora.get(method),
            settings=chosen.get(method),
            bases=bases.get(method, ()),
            cost=cost,
            max_depth=asked.drafting.max_depth,
        )
        for trace in traces
        for method in asked.methods
        for unite in (heads[trace.name] if unitable(method) else [""])
        for shape in asked.shapes
        for nodes in asked.nodes
    ]


def play(runs: Sequence[Run], jobs: int) -> list[ReplayResult]:
    """Replay the runs with a progress bar."""
    from speculant.bench.replay.workers import replay_runs

    with compilation_announced():
        for run in {run.method: run for run in runs}.values():
            run.build()  # in this process, so that workers do not all silently compile the same kernels
    with progress("replaying", sum(run.tokens for run in runs), "tokens") as advance:
        return replay_runs(runs, jobs=jobs, advance=advance)
