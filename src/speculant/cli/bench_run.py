"""One call of `speculant bench`: loads, decodes, writes the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.cli.bench_checks import batches, task_names, temperatures
from speculant.cli.bench_progress import shown
from speculant.cli.bench_settings import FORCED_TRIALS, NEW_TOKENS, TRIALS, Bench
from speculant.cli.conditions import conditions, labels, sentences
from speculant.cli.env import environment
from speculant.cli.head_file import head_title, read_head
from speculant.cli.loading import check_device, load, model_source, quieten, set_threads_for
from speculant.cli.options import BUNDLED, DEFAULT_METHOD
from speculant.cli.settings import build_settings_by_method
from speculant.cli.terminal import print_table, progress, quick_imports, say, waiting
from speculant.core.errors import FileError, UsageError

if TYPE_CHECKING:
    from speculant.bench.suite.tasks import Task
    from speculant.drafters.mix.base import MixBase


def run(asked: Bench) -> int:
    """Load, decode, write.

    Raises:
        SpeculantError: something cannot be loaded, decoded or written.
    """
    with waiting("loading PyTorch and transformers"), quick_imports():
        check_device(asked.loading.device)
        quieten()
        from speculant.api.loading import load_model
    from speculant.api.speculator import Speculator
    from speculant.bench.report.bench_table import bench_table
    from speculant.bench.report.result_files import write_results
    from speculant.bench.report.scaling_table import scaling_findings, scaling_table
    from speculant.bench.report.summary import measurement_warnings, summary
    from speculant.bench.scaling.measure import lengths_of
    from speculant.bench.suite.rows import RowFile
    from speculant.bench.suite.runner import Runner
    from speculant.bench.suite.tasks import Sampling
    from speculant.bench.systems.bases import check_bases, open_target_bases
    from speculant.bench.systems.llamacpp import LLAMACPP
    from speculant.bench.systems.selection import build_systems, parse_methods, takes_draft_model, takes_head
    from speculant.bench.systems.system import PLAIN

    head_file = None if asked.head is None else read_head(asked.head)
    methods = parse_methods(
        asked.methods or ",".join(["none", DEFAULT_METHOD, *([head_file.format.method] if head_file else [])]),
        forced=bool(asked.forced),
        draft_model=(draft_source := find_draft_model(asked)) is not None,
        head=None if head_file is None else head_file.format.kind,
        bundled=asked.config is None and model_source(asked.loading.model) is None,
        sampled=any(temperatures(asked.temperature)),
    )
    drafting = any(map(takes_draft_model, methods))
    if asked.draft_model is not None and not drafting:
        raise UsageError("--draft-model would be ignored: none of --methods drafts with a model.")
    if asked.head is not None and not any(map(takes_head, methods)):
        raise UsageError("--head would be ignored: none of --methods drafts with a head.")
    if asked.bases:
        check_bases(methods, tokenizer=asked.config is None)  # before a model is loaded
    chosen = build_settings_by_method(methods, asked.settings)
    model, tokenizer = target(asked)
    lengths = lengths_of(positions_of(model)) if asked.growth else []
    draft_model = draft_tokenizer = None
    if drafting:
        draft_model, draft_tokenizer = load_model(model_source(draft_source), **placement(asked))
    if asked.forced:
        tasks, mapped = forced_tasks(asked, model)
    elif asked.tasks is None:
        tasks, mapped = [], False
    else:
        tasks, mapped = asked_tasks(asked, model, tokenizer), False
    bases = open_target_bases([Path(path) for path in asked.bases], methods, model, tokenizer, mapped=mapped)
    options: dict[str, Any] = {
        "nodes": asked.nodes,
        "memory_limit": asked.memory_limit << 20,
        "fast": asked.loading.fast,
        "settings": chosen,
        "tokenizer": tokenizer,
        "draft_tokenizer": draft_tokenizer,
        "head": None if head_file is None else head_file.open(model),
        "bases": bases,
    }
    runner = Runner(
        tasks=tasks,
        systems=build_systems(methods, model, draft_model=draft_model, **options),
        plain=Speculator.from_transformers(model, method=PLAIN, fast=False),
        samplings=[Sampling(temperature, asked.seed) for temperature in temperatures(asked.temperature)],
        trials=asked.trials or (FORCED_TRIALS if asked.forced else TRIALS),
        batches=batches(asked.batch),
    )
    drafter = Path(asked.draft_model or BUNDLED).name if drafting else None
    settings = conditions(
        asked, runner, draft_model=drafter, head=asked.head and head_title(asked.head), settings=chosen, bases=bases
    )
    file = RowFile(Path(asked.out), settings, restart=asked.restart)
    if file.rows:
        say(f"going on with the run in {asked.out}.")
    if left := runner.remaining_items(file):
        with waiting("warming up"):
            runner.warm_up()
    with shown(runner.total_items, found=runner.total_items - left, expected=runner.estimate_seconds(file)) as advance:
        runner.run(file, advance)
    scaling = measured_scaling(asked, model, methods, chosen, bases, len(lengths)) if asked.growth else None
    rows = summary(file.rows)
    notes = sentences(settings, mapped)
    notes += [note for task in tasks for note in task.notes]
    notes += [f"{note[0].upper()}{note[1:]}" for note in runner.systems[0].notes]
    notes += [note for each in runner.systems if each.name == LLAMACPP for note in each.notes]
    notes += measurement_warnings(rows)
    write_results(
        Path(asked.out),
        rows,
        labels=labels(settings),
        notes=notes,
        settings=settings,
        environment=environment(model),
        scaling=scaling,
    )
    if rows:
        print_table(bench_table(rows), names=2)
    if scaling is not None:
        print_table(scaling_table(scaling), names=2)
        print("\n".join(scaling_findings(scaling)))
    print("\n".join(notes), flush=True)
    return 0


def measured_scaling(
    asked: Bench,
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
        "memory_limit": asked.memory_limit << 20,
        "base": bases if takes_bases(drafting) else None,
        "fast": asked.loading.fast,
        "settings": chosen.get(drafting),
    }
    with progress("scaling", lengths, "lengths") as advance:
        return measure_scaling(lambda: Speculator.from_transformers(model, **options), advance=advance)


def find_draft_model(asked: Bench) -> str | None:
    """Return the draft model: the one that is asked for, or the bundled one for the bundled model; None for none."""
    from speculant.api.loading import bundled_draft_model

    if asked.draft_model is not None or asked.config is not None or model_source(asked.loading.model) is not None:
        return asked.draft_model
    return str(bundled_draft_model())


def placement(asked: Bench) -> dict[str, Any]:
    """Return how models are loaded."""
    loading = asked.loading
    return {"dtype": loading.dtype, "device": loading.device, "attention": loading.attention}


def target(asked: Bench) -> tuple[Any, Any]:
    """Load or make the model that is asked for, and its tokenizer or None; set the threads that fit it."""
    from speculant.bench.systems.inflate import inflate
    from speculant.bench.systems.random_weights import random_model

    if asked.config is not None:
        model, tokenizer = random_model(Path(asked.config), **placement(asked)), None
    else:
        model, tokenizer, _ = load(asked.loading, gguf=True)
    if asked.inflate is not None:
        layers, _, mlp = asked.inflate.partition("x")
        if not layers.isdigit() or (mlp and not mlp.isdigit()):
            raise UsageError(f"--inflate takes LAYERS or LAYERSxMLP, such as 24 or 24x8192, not '{asked.inflate}'.")
        model = inflate(model, layers=int(layers), mlp=int(mlp) if mlp else None)
    set_threads_for(model, asked.loading.threads)
    return model, tokenizer


def positions_of(model: Any) -> int | None:
    """Return how many positions a model has."""
    found: int | None = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return found


def forced_tasks(asked: Bench, model: Any) -> tuple[list[Task], bool]:
    """Return a task per file of recorded outputs, and whether ids were mapped."""
    from speculant.bench.replay.traces import read_recordings
    from speculant.bench.suite.tasks import recorded_task
    from speculant.bench.systems.forced import fit_vocabulary

    paths = [Path(path) for path in dict.fromkeys(asked.forced)]
    files = [list(read_recordings(path))[: asked.limit] for path in paths]
    for path, file in zip(paths, files, strict=True):
        if not file:
            raise FileError(f"{path} holds no recorded output.")
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    fitted, mapped = fit_vocabulary([each for file in files for each in file], vocabulary)
    tasks, begin = [], 0
    for path, file in zip(paths, files, strict=True):
        tasks.append(recorded_task(path.stem, fitted[begin : begin + len(file)], positions_of(model)))
        begin += len(file)
    return tasks, mapped


def asked_tasks(asked: Bench, model: Any, tokenizer: Any) -> list[Task]:
    """Return a task per suite."""
    from speculant.bench.suite.suites import read_suite
    from speculant.bench.suite.tasks import prompt_task

    folder = None if asked.data is None else Path(asked.data)
    return [
        prompt_task(
            Path(name).stem if name.endswith(".jsonl") else name,
            read_suite(name, folder)[: asked.limit],
            tokenizer,
            positions=positions_of(model),
            max_new_tokens=asked.max_new_tokens or NEW_TOKENS,
        )
        for name in task_names(asked)
    ]
