"""Runs `speculant bench`: loads, decodes, writes the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from speculant.bench.report.extra import can_write_pages, missing_extra
from speculant.cli.bench_checks import task_names
from speculant.cli.bench_progress import show_progress
from speculant.cli.bench_settings import BenchOptions
from speculant.cli.compiling import compilation_announced
from speculant.cli.conditions import conditions, labels, sentences
from speculant.cli.env import environment
from speculant.cli.loading import silence_loading
from speculant.cli.loading_checks import check_device
from speculant.cli.replay_run import load_named_tokenizer
from speculant.cli.terminal import importing, print_table, progress, say, waiting
from speculant.core.errors import FileError
from speculant.core.hub import title
from speculant.corpus.rejected import Rejected
from speculant.options.drafting import DEFAULT_METHOD
from speculant.options.model import BUNDLED

if TYPE_CHECKING:
    from speculant.bench.suite.rows import RowFile
    from speculant.bench.suite.runner import Runner
    from speculant.cli.bench_systems import ComparedMethods
    from speculant.drafters.mix.base import MixBase

WIDTH = 120  # columns of the text printed below the table


def run(asked: BenchOptions) -> int:
    """Load, decode, and write the reports.

    Raises:
        SpeculantError: something cannot be loaded, decoded or written.
    """
    rejected = Rejected(say)
    recorded = load_named_tokenizer(asked.tokenizer)
    given = read_given(asked, rejected, recorded)
    if not (page := can_write_pages()):
        say(f"note: result.json and table.md are written, report.html is not: {missing_extra()}.")
    with importing("PyTorch and transformers"):
        check_device(asked.loading.device)
        silence_loading()
        from speculant.bench.scaling.measure import lengths_of
        from speculant.bench.suite.rows import RowFile
        from speculant.cli.bench_systems import choose_methods, open_comparison, positions_of, target

    compared = choose_methods(asked)
    model, tokenizer = target(asked)
    lengths = lengths_of(positions_of(model)) if asked.growth else []
    comparison = open_comparison(asked, compared, given, model, tokenizer, recorded=recorded)
    settings = conditions(
        asked,
        comparison.runner,
        draft_model=compared.draft_model and Path(asked.drafting.draft_model or BUNDLED).name,
        head=asked.drafting.head and title(asked.drafting.head),
        settings=compared.settings,
        bases=comparison.bases,
    )
    file = RowFile(Path(asked.out), settings, restart=asked.restart)
    decode(comparison.runner, file, out=asked.out)
    scaling = measure_scaling(asked, model, compared, comparison.bases, len(lengths)) if asked.growth else None
    notes = [*sentences(settings, comparison.mapped), *notes_of(comparison.runner)]
    if rejected.count:
        notes.append(f"Rows left out, since they could not be used: {rejected.count}.")
    report(asked, file, model, settings=settings, notes=notes, scaling=scaling, page=page)
    return 0


def decode(runner: Runner, file: RowFile, *, out: str) -> None:
    """Decode what the file of rows lacks; each row is stored when it is complete."""
    if file.rows:
        say(f"continuing the run in {out}.")
    if left := runner.remaining_items(file):
        with compilation_announced(), waiting("warming up"):
            runner.warm_up()
    with show_progress(
        runner.total_items, found=runner.total_items - left, expected=runner.estimate_seconds(file)
    ) as advance:
        runner.run(file, advance)


def notes_of(runner: Runner) -> list[str]:
    """Return the remarks of tasks and systems."""
    from speculant.bench.systems.llamacpp import LLAMACPP

    notes = [note for task in runner.tasks for note in task.notes]
    notes += [f"{note[0].upper()}{note[1:]}" for note in runner.systems[0].notes]
    return notes + [note for each in runner.systems if each.name == LLAMACPP for note in each.notes]


def report(
    asked: BenchOptions,
    file: RowFile,
    model: Any,
    *,
    settings: dict[str, Any],
    notes: Sequence[str],
    scaling: dict[str, Any] | None,
    page: bool,
) -> None:
    """Write the reports, and print the tables.

    Args:
        asked: the options.
        file: the measured rows.
        model: the model.
        settings: conditions of the run.
        notes: remarks below the tables.
        scaling: measurements over text lengths, or None.
        page: whether to write an HTML page.
    """
    from speculant.bench.report.bench_table import bench_table, legend
    from speculant.bench.report.result_files import write_results
    from speculant.bench.report.scaling_table import scaling_findings, scaling_table
    from speculant.bench.report.summary import measurement_warnings, summary

    rows = summary(file.rows)
    write_results(
        Path(asked.out),
        rows,
        labels=labels(settings),
        notes=notes,
        settings=settings,
        environment=environment(model),
        scaling=scaling,
        page=page,
    )
    if rows:
        lines = bench_table(rows)
        print_table(lines, names=2)
        print(fill(legend(lines), WIDTH))
    if scaling is not None:
        print_table(scaling_table(scaling), names=2)
        print("\n".join(scaling_findings(scaling)))
    print("\n".join([*notes, *measurement_warnings(rows)]), flush=True)


def measure_scaling(
    asked: BenchOptions,
    model: Any,
    compared: ComparedMethods,
    bases: Sequence[MixBase],
    lengths: int,
) -> dict[str, Any]:
    """Measure how cost scales, with the first of our own methods that drafts without a model or head, or `mix`."""
    from speculant.api.speculator import Speculator
    from speculant.bench.scaling.measure import measure_scaling
    from speculant.bench.systems.bases import takes_bases
    from speculant.bench.systems.selection import takes_draft_model, takes_head
    from speculant.registry import METHODS

    own = [name for name in compared.names if name in METHODS and name != "none" and not takes_draft_model(name)]
    drafting = next((name for name in own if not takes_head(name)), DEFAULT_METHOD)
    options: dict[str, Any] = {
        "method": drafting,
        "memory_limit": asked.drafting.memory_limit,
        "base": bases if takes_bases(drafting) else None,
        "fast": asked.loading.fast,
        "settings": compared.settings.get(drafting),
    }
    with progress("scaling", lengths, "lengths") as advance:
        return measure_scaling(lambda: Speculator.from_transformers(model, **options), advance=advance)


def read_given(asked: BenchOptions, reject: Rejected, tokenizer: Any) -> Mapping[str, Sequence[Any]]:
    """Read recordings or conversations by task name, before anything is loaded.

    Args:
        asked: the options.
        reject: called with place and reason of each unusable row.
        tokenizer: tokenizer of recordings that are text, or None.

    Raises:
        FileError, UsageError: a file cannot be read, or has no usable row.
    """
    given: dict[str, Sequence[Any]] = {}
    if asked.forced:
        from speculant.bench.replay.traces import read_recordings

        paths = [Path(path) for path in dict.fromkeys(asked.forced)]
        given = {
            path.stem: list(read_recordings(path, tokenizer=tokenizer, reject=reject))[: asked.limit] for path in paths
        }
    elif asked.tasks is not None:
        from speculant.bench.suite.suites import read_suite

        folder = None if asked.data is None else Path(asked.data)
        names = {Path(name).stem if name.endswith(".jsonl") else name: name for name in task_names(asked)}
        given = {title: read_suite(name, folder, reject)[: asked.limit] for title, name in names.items()}
    for name, rows in given.items():
        if not rows:
            raise FileError(f"{name} holds no {'recorded output' if asked.forced else 'prompts'}.")
    return given
