"""What `speculant bench` compares: the requested methods, the model, and what they draft with.

Importing this loads PyTorch and transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from speculant.api.engines import find_engine
from speculant.api.loading import bundled_draft_model, find_draft_model, load_model
from speculant.api.speculator import Speculator
from speculant.bench.suite.rows import PLAIN
from speculant.bench.suite.runner import Runner
from speculant.bench.suite.tasks import Task, TaskSampling, make_recorded_task, prompt_task
from speculant.bench.systems.bases import check_bases, open_target_bases
from speculant.bench.systems.forced import fit_vocabulary
from speculant.bench.systems.inflate import inflate
from speculant.bench.systems.random_weights import random_model
from speculant.bench.systems.selection import build_systems, parse_methods, takes_draft_model, takes_head
from speculant.cli.bench_checks import inflation
from speculant.cli.bench_settings import FORCED_TRIALS, NEW_TOKENS, TRIALS, BenchOptions
from speculant.cli.compiling import compilation_announced
from speculant.cli.head_file import HeadFile, read_head
from speculant.cli.loading import has_own_head, load, model_source, set_threads_for
from speculant.cli.loading_checks import find_drafter
from speculant.cli.settings import build_settings_by_method
from speculant.core.errors import UsageError
from speculant.drafters.mix.base import MixBase
from speculant.memory.bases import find_base
from speculant.options.drafting import DEFAULT_METHOD
from speculant.registry import default_method


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedMethods:
    """The methods to compare, checked before a model is loaded.

    Attributes:
        names: names of the methods.
        head: the requested head, or None.
        draft_model: name of the draft model; None if no method drafts with one.
        settings: settings of methods, by name.
    """

    names: Sequence[str]
    head: HeadFile | None
    draft_model: str | None
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The loaded systems on their tasks.

    Attributes:
        runner: decodes every task with every system.
        bases: bases that methods draft from.
        mapped: whether the ids of recordings were mapped into the model's vocabulary.
    """

    runner: Runner
    bases: Sequence[MixBase]
    mapped: bool


def choose_methods(asked: BenchOptions) -> ComparedMethods:
    """Return the methods to compare, by the options and by what the model has.

    Raises:
        UsageError: there is no such method, or an option would be ignored.
        FileError: the head cannot be read.
    """
    head = None if asked.drafting.head is None else read_head(asked.drafting.head)
    united = [] if head is None else [default_method(head.format.method)]
    named = asked.methods or ",".join(["none", DEFAULT_METHOD, *united])
    source = model_source(asked.loading.model)
    heads = any(takes_head(name.strip()) for name in named.split(","))  # the model may have one of its own
    own = source is None or (heads and head is None and asked.config is None and has_own_head(source))
    draft_model = draft_model_of(asked)
    methods = parse_methods(
        named if asked.drafting.drafter is None else f"{named},{find_drafter(asked.drafting.drafter).name}",
        forced=bool(asked.forced),
        draft_model=draft_model is not None,
        head=None if head is None else head.format.kind,
        bundled=asked.config is None and own,
        sampled=any(asked.temperature),
    )
    drafting = any(map(takes_draft_model, methods))
    if asked.drafting.draft_model is not None and not drafting:
        raise UsageError("--draft-model would be ignored: none of --methods drafts with a model.")
    if asked.drafting.head is not None and not any(map(takes_head, methods)):
        raise UsageError("--head would be ignored: none of --methods drafts with a head.")
    if asked.drafting.base:
        check_bases(methods, tokenizer=asked.config is None or asked.tokenizer is not None)
    return ComparedMethods(
        names=methods,
        head=head,
        draft_model=draft_model if drafting else None,
        settings=build_settings_by_method(methods, asked.drafting.settings or ()),
    )


def open_comparison(
    asked: BenchOptions,
    compared: ComparedMethods,
    given: Mapping[str, Sequence[Any]],
    model: Any,
    tokenizer: Any,
    *,
    recorded: Any,
) -> Comparison:
    """Load what the methods draft with, and return the systems on their tasks.

    Args:
        asked: the options.
        compared: the methods.
        given: recordings or conversations, by task name.
        model: the model.
        tokenizer: its tokenizer, or None.
        recorded: tokenizer of the recordings, or None.
    """
    draft_model = draft_tokenizer = None
    if compared.draft_model is not None:
        draft_model, draft_tokenizer = load_model(compared.draft_model, **placement(asked))
    tasks, mapped = tasks_of(asked, given, model, tokenizer)
    paths = [find_base(name) for name in asked.drafting.base]
    bases = open_target_bases(paths, compared.names, model, recorded or tokenizer, mapped=mapped)
    options: dict[str, Any] = {
        "nodes": asked.drafting.nodes,
        "max_depth": asked.drafting.max_depth,
        "memory_limit": asked.drafting.memory_limit,
        "fast": asked.loading.fast,
        "settings": compared.settings,
        "tokenizer": tokenizer,
        "draft_tokenizer": draft_tokenizer,
        "head": None if compared.head is None else compared.head.open(model),
        "bases": bases,
    }
    with compilation_announced():
        systems = build_systems(compared.names, model, draft_model=draft_model, **options)
    runner = Runner(
        tasks=tasks,
        systems=systems,
        plain=Speculator.from_transformers(model, method=PLAIN, fast=False),
        samplings=[TaskSampling(temperature, asked.seed or 0) for temperature in asked.temperature],
        trials=asked.trials or (FORCED_TRIALS if asked.forced else TRIALS),
        batches=asked.batch,
    )
    return Comparison(runner=runner, bases=bases, mapped=mapped)


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


def tasks_of(
    asked: BenchOptions, given: Mapping[str, Sequence[Any]], model: Any, tokenizer: Any
) -> tuple[list[Task], bool]:
    """Return the tasks that suit the model, and whether the ids of recordings were mapped into its vocabulary."""
    positions = positions_of(model)
    if not asked.forced:
        maximum = asked.max_new_tokens or NEW_TOKENS
        found = [
            prompt_task(name, rows, tokenizer, positions=positions, max_new_tokens=maximum)
            for name, rows in given.items()
        ]
        return found, False
    vocabulary = find_engine(model).vocabulary(model)
    fitted, mapped = fit_vocabulary([each for rows in given.values() for each in rows], vocabulary)
    rest = iter(fitted)
    return [make_recorded_task(name, list(islice(rest, len(rows))), positions) for name, rows in given.items()], mapped
