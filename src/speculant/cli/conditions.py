"""The conditions of a benchmark, as data for comparisons and as sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.cli.bench_settings import FORCED_TRIALS, TRIALS
from speculant.cli.loading import model_source
from speculant.cli.settings import settings_json, settings_sentences
from speculant.cli.terminal import count_noun
from speculant.core.hub import title
from speculant.options.model import BUNDLED

if TYPE_CHECKING:
    from speculant.bench.suite.runner import Runner
    from speculant.cli.bench_settings import BenchOptions
    from speculant.drafters.mix.base import MixBase

LABELS = ("forced", "random weights", "inflated")


def model_name(asked: BenchOptions) -> str:
    """Return the model's name in the results: a hub id, or a folder without its path."""
    if asked.config is not None:
        config = Path(asked.config).resolve()
        return config.parent.name if config.name == "config.json" else config.stem
    name = model_source(asked.loading.model)
    return BUNDLED if name is None else title(name)


def find_known_conditions(asked: BenchOptions) -> dict[str, Any]:
    """Return the conditions that are known before a model is loaded."""
    return {
        "model": model_name(asked),
        "forced": bool(asked.forced),
        "random_weights": asked.config is not None,
        "inflated": asked.inflate,
        "nodes": asked.drafting.nodes,
        "max_depth": asked.drafting.max_depth,
        "memory_limit_mb": asked.drafting.memory_limit / (1 << 20),
        "temperatures": list(asked.temperature),
        "seed": asked.seed or 0,
        "batches": list(asked.batch),
        "trials": asked.trials or (FORCED_TRIALS if asked.forced else TRIALS),
        "limit": asked.limit,
        "max_new_tokens": asked.max_new_tokens,
    }


def conditions(
    asked: BenchOptions,
    runner: Runner,
    *,
    draft_model: str | None,
    head: str | None,
    settings: Mapping[str, Any],
    bases: Sequence[MixBase] = (),
) -> dict[str, Any]:
    """Return the conditions that must be equal for a run to be continued.

    Args:
        asked: the options.
        runner: runner of the benchmark.
        draft_model: name of the draft model, without a path; None if there is none.
        head: name of the given head, without a path, or None.
        settings: settings of drafters, by method.
        bases: bases for the methods that take any.
    """
    import torch

    from speculant.api.engines import describe_model
    from speculant.bench.systems.system import SpeculantSystem

    facts = describe_model(runner.plain.model)
    return {
        **find_known_conditions(asked),
        "tasks": {task.name: len(task.items) for task in runner.tasks},
        "methods": [system.name for system in runner.systems],
        "draft_model": draft_model,
        **({} if head is None else {"head": head}),
        **({"bases": [_base_facts(base) for base in bases]} if bases else {}),
        "method_settings": settings_json(settings),
        "dtype": facts.dtype,
        "device": facts.device,
        "attention": facts.attention,
        "fast": any(isinstance(each, SpeculantSystem) and each.fast for each in runner.systems),
        "threads": torch.get_num_threads(),
    }


def labels(settings: dict[str, Any]) -> list[str]:
    """Return labels that readers must not overlook."""
    return [label for label in LABELS if settings[label.replace(" ", "_")]]


def sentences(settings: dict[str, Any], mapped: bool) -> list[str]:
    """Return the conditions as sentences."""
    from speculant.bench.suite.runner import GROUP

    where = (
        f"Model {settings['model']}, {settings['dtype']} on {settings['device']}, {settings['attention']} attention, "
        f"{count_noun(settings['threads'], 'thread')}"
    )
    how = (
        f"{where}; {_times(settings['trials'])} after a warm-up, all methods one after the other on each request; "
        "memory empty at the start of each task and kept within it."
    )
    sizes = [str(size) for size in settings["batches"] if size > 1]
    if sizes:
        how += (
            f" Batches of {' and '.join(sizes)}: items go through them in groups, {GROUP} per request of a batch, "
            "methods one after the other on each group; speed-ups compare with plain decoding in batches of that size."
        )
    if not settings["tasks"]:
        how = f"{where}."
    if settings["fast"]:
        how += " Speculant's methods, plain decoding (`none`) too, run its own code for layers; those of hf: do not."
    found = [how]
    if settings["forced"]:
        found.append(
            "Forced: the model runs every pass, the next tokens are those of the recording; so cost is the model's, "
            "acceptance the recording's, and drafters are shown no logits."
        )
    if settings["random_weights"]:
        found.append("Random weights: the model is its config's shape and nothing else.")
    if settings["inflated"]:
        found.append(
            f"Inflated to {settings['inflated']} (layers x MLP): layers and widths that do not change the output "
            "were added, so the text is the small model's and the cost a larger model's."
        )
    if mapped:
        found.append("Token ids were renumbered, since the model's vocabulary is smaller than the recorded one.")
    if settings["draft_model"] is not None:
        found.append(f"Draft model: {settings['draft_model']}.")
    if "head" in settings:
        found.append(f"Head: {settings['head']}.")
    found += [
        f"Frozen base of the methods that use one: {base['name']}, {base['entries']:,} entries from "
        f"{base['tokens']:,} tokens."
        for base in settings.get("bases", ())
    ]
    found += settings_sentences(settings["method_settings"])
    if settings["limit"] is not None:
        found.append(f"The first items of each task, at most {settings['limit']}.")
    return found


def _base_facts(base: MixBase) -> dict[str, Any]:
    """Return the identity of a base for the results, without its path."""
    return {"name": base.path.name, "entries": base.facts.get("entries", 0), "tokens": base.facts.get("tokens", 0)}


def _times(trials: int) -> str:
    return "one trial" if trials == 1 else f"{trials} trials"
