"""Runs `speculant bench`: loads, decodes, writes the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from speculant.api.loading import bundled_draft_model, find_draft_model, load_model
from speculant.bench.report.extra import can_write_pages, missing_extra
from speculant.cli.bench_checks import inflation, task_names
from speculant.cli.bench_progress import show_progress
from speculant.cli.bench_settings import FORCED_TRIALS, NEW_TOKENS, TRIALS, BenchOptions
from speculant.cli.compiling import compilation_announced
from speculant.cli.conditions import conditions, labels, sentences
from speculant.cli.env import environment
from speculant.cli.head_file import head_title, read_head
from speculant.cli.loading import has_own_head, load, model_source, set_threads_for, silence_loading
from speculant.cli.loading_checks import check_device, find_drafter
from speculant.cli.replay_run import load_named_tokenizer
from speculant.cli.settings import build_settings_by_method
from speculant.cli.terminal import importing, print_table, progress, say, waiting
from speculant.core.errors import FileError, UsageError
from speculant.corpus.rejected import Rejected
from speculant.memory.bases import find_base
from speculant.options.drafting import DEFAULT_METHOD
from speculant.options.model import BUNDLED
from speculant.registry import default_method

if TYPE_CHECKING:
    from speculant.bench.suite.tasks import Task
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
        from speculant.api.speculator import Speculator
        from speculant.bench.report.bench_table import bench_table, legend
        from speculant.bench.report.result_files import write_results
        from speculant.bench.report.scaling_table import scaling_findings, scaling_table
        from speculant.bench.report.summary import measurement_warnings, summary
        from speculant.bench.scaling.measure import lengths_of
        from speculant.bench.suite.rows import PLAIN, RowFile
        from speculant.bench.suite.runner import Runner
        from speculant.bench.suite.tasks import TaskSampling
        from speculant.bench.systems.bases import check_bases, open_target_bases
        from speculant.bench.systems.llamacpp import LLAMACPP
        from speculant.bench.systems.selection import build_systems, parse_methods, takes_draft_model, takes_head

    head_file = None if asked.drafting.head is None else read_head(asked.drafting.head)
    united = [] if head_file is None else [default_method(head_file.format.method)]
    named = asked.methods or ",".join(["none", DEFAULT_METHOD, *united])
    source = model_source(asked.loading.model)
    heads = any(takes_head(name.strip()) for name in named.split(","))  # the model may have one of its own
    own = source is None or (heads and head_file is None and asked.config is None and has_own_head(source))
    methods = parse_methods(
        named if asked.drafting.drafter is None else f"{named},{find_drafter(asked.drafting.drafter).name}",
        forced=bool(asked.forced),
        draft_model=(draft_source := draft_model_of(asked)) is not None,
        head=None if head_file is None else head_file.format.kind,
        bundled=asked.config is None and own,
        sampled=any(asked.temperature),
    )
    drafting = any(map(takes_draft_model, methods))
    if asked.drafting.draft_model is not None and not drafting:
        raise UsageError("--draft-model would be ignored: none of --methods drafts with a model.")
    if asked.drafting.head is not None and not any(map(takes_head, methods)):
        raise UsageError("--head would be ignored: none of --methods drafts with a head.")
    if asked.drafting.base:
        check_bases(methods, tokenizer=asked.config is None or asked.tokenizer is not None)  # before a model is loaded
    chosen = build_settings_by_method(methods, asked.drafting.settings or ())
    recorded = load_named_tokenizer(asked.tokenizer)
    model, tokenizer = target(asked)
    lengths = lengths_of(positions_of(model)) if asked.growth else []
    draft_model = draft_tokenizer = None
    if drafting:
        draft_model, draft_tokenizer = load_model(draft_source, **placement(asked))
    tasks, mapped = tasks_of(asked, given, model, tokenizer)
    paths = [find_base(name) for name in asked.drafting.base]
    bases = open_target_bases(paths, methods, model, tokenizer if recorded is None else recorded, mapped=mapped)
    options: dict[str, Any] = {
        "nodes": asked.drafting.nodes,
        "memory_limit": asked.drafting.memory_limit,
        "fast": asked.loading.fast,
        "settings": chosen,
        "tokenizer": tokenizer,
        "draft_tokenizer": draft_tokenizer,
        "head": None if head_file is None else head_file.open(model),
        "bases": bases,
    }
    with compilation_announced():
        systems = build_systems(methods, model, draft_model=draft_model, **options)
    runner = Runner(
        tasks=tasks,
        systems=systems,
        plain=Speculator.from_transformers(model, method=PLAIN, fast=False),
        samplings=[TaskSampling(temperature, asked.seed or 0) for temperature in asked.temperature],
        trials=asked.trials or (FORCED_TRIALS if asked.forced else TRIALS),
        batches=asked.batch,
    )
    drafter = Path(asked.drafting.draft_model or BUNDLED).name if drafting else None
    settings = conditions(
        asked,
        runner,
        draft_model=drafter,
        head=asked.drafting.head and head_title(asked.drafting.head),
        settings=chosen,
        bases=bases,
    )
    file = RowFile(Path(asked.out), settings, restart=asked.restart)
    if file.rows:
        say(f"continuing the run in {asked.out}.")
    if left := runner.remaining_items(file):
        with compilation_announced(), waiting("warming up"):
            runner.warm_up()
    with show_progress(
        runner.total_items, found=runner.total_items - left, expected=runner.estimate_seconds(file)
    ) as advance:
        runner.run(file, advance)
    scaling = measure_scaling(asked, model, methods, chosen, bases, len(lengths)) if asked.growth else None
    rows = summary(file.rows)
    notes = sentences(settings, mapped)
    notes += [note for task in tasks for note in task.notes]
    notes += [f"{note[0].upper()}{note[1:]}" for note in runner.systems[0].notes]
    notes += [note for each in runner.systems if each.name == LLAMACPP for note in each.notes]
    if rejected.count:
        notes.append(f"Rows left out, since they could not be used: {rejected.count}.")
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
    return 0


def measure_scaling(
    asked: BenchOptions,
    model: Any,
    methods: Sequence[str],
    chosen: Mapping[str, Any],
    bases: Sequence[MixBase],
    lengths: int,
) -> dict[str, Any]:
    """Measure how cost scales, with the first of our own methods that drafts without a model or head, or `mix`."""
    from speculant.api.speculator import Speculator
    from speculant.bench.scaling.measure import measure_scaling
    from speculant.bench.systems.bases import takes_bases
    from speculant.bench.systems.selection import takes_draft_model, takes_head
    from speculant.registry import METHODS

    own = [name for name in methods if name in METHODS and name != "none" and not takes_draft_model(name)]
    drafting = next((name for name in own if not takes_head(name)), DEFAULT_METHOD)
    options: dict[str, Any] = {
        "method": drafting,
        "memory_limit": asked.drafting.memory_limit,
        "base": bases if takes_bases(drafting) else None,
        "fast": asked.loading.fast,
        "settings": chosen.get(drafting),
    }
    with progress("scaling", lengths, "lengths") as advance:
        return measure_scaling(lambda: Speculator.from_transformers(model, **options), advance=advance)


def draft_model_of(asked: BenchOptions) -> str | None:
    """Return the requested draft model, or the bundled one for the bundled model; None for none."""
    if asked.drafting.draft_model is not None:
        return find_draft_model(asked.drafting.draft_model)
    if asked.config is not None or model_source(asked.loading.model) is not None:
        return None
    return str(bundled_draft_model())


def placement(asked: BenchOptions) -> dict[str, Any]:
    """Return the options for loading models."""
    loading = asked.loading
    return {"dtype": loading.dtype, "device": loading.device, "attention": loading.attention}


def target(asked: BenchOptions) -> tuple[Any, Any]:
    """Load or create the requested model, with its tokenizer or None; set the number of threads to suit it."""
    from speculant.bench.systems.inflate import inflate
    from speculant.bench.systems.random_weights import random_model

    if asked.config is not None:
        model, tokenizer = random_model(Path(asked.config), **placement(asked)), None
    else:
        model, tokenizer, _ = load(asked.loading)
    if asked.inflate is not None:
        layers, mlp = inflation(asked.inflate)
        model = inflate(model, layers=layers, mlp=mlp)
    set_threads_for(model, asked.loading.threads)
    return model, tokenizer


def positions_of(model: Any) -> int | None:
    """Return the number of positions of a model."""
    found: int | None = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return found


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


def tasks_of(
    asked: BenchOptions, given: Mapping[str, Sequence[Any]], model: Any, tokenizer: Any
) -> tuple[list[Task], bool]:
    """Return the tasks that suit the model, and whether the ids of recordings were mapped into its vocabulary."""
    from speculant.bench.suite.tasks import make_recorded_task, prompt_task

    positions = positions_of(model)
    if not asked.forced:
        maximum = asked.max_new_tokens or NEW_TOKENS
        found = [
            prompt_task(name, rows, tokenizer, positions=positions, max_new_tokens=maximum)
            for name, rows in given.items()
        ]
        return found, False
    from speculant.bench.systems.forced import fit_vocabulary

    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    fitted, mapped = fit_vocabulary([each for rows in given.values() for each in rows], vocabulary)
    rest = iter(fitted)
    return [make_recorded_task(name, list(islice(rest, len(rows))), positions) for name, rows in given.items()], mapped
