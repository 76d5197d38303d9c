"""Checks, before the first draft on a model, that drafts leave its logits unchanged.

Drafts can be verified losslessly only if a row's logits depend on nothing but its own tokens and positions. Models
violate this in ways that no config states: masks by cache slot, masks chosen by the contents of a pass, rotary factors
that depend on the longest position of a pass. So the probe compares rounds with trees, with chains and without drafts,
all through the engine's own caches, with the logits of `model.generate` itself, over random ids.

Two models are probed. Long texts beyond limits (windows, chunks, rotary limits) would be expensive on a large model. So
these run on a random fp32 model of a few thousand weights of the same class (see `tiny`), with one layer of each kind
in the config and limits of a few tokens. The model itself is probed for what the tiny one cannot show: its own weights,
dtype, kernels, quantisation, adapters and code changed after loading. Its texts cross position 128, and its passes have
as many rows as drafts get, alone and in a batch. If no tiny model can be built, a note says what was skipped.

Both results are stored in the user's cache folder, one file per config, class, attention, dtype, device, versions, code
and state of the model (`model_state`); a model with code that no file can identify is probed in every process. Models
of one architecture often share the result of the tiny one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from speculant.core.engine import make_refused
from speculant.engines.hf.acceleration import Acceleration, PlainPasses
from speculant.engines.hf.forward_pass import ModelRunner
from speculant.engines.hf.probe.capabilities import HFCapabilities
from speculant.engines.hf.probe.class_checks import TREE_ATTENTION, check_model, misreads_at_limit
from speculant.engines.hf.probe.outcome import ProbeOutcome, load_or_probe, result_file
from speculant.engines.hf.probe.rounds import (
    LONG_TEXTS,
    OWN_TEXTS,
    ROW_COUNTS,
    Plain,
    batch_difference,
    count_difference,
    first_difference,
)
from speculant.engines.hf.probe.tiny import one_thread, tiny_config, tiny_model
from speculant.engines.hf.views.unwrapping import base_model

logger = logging.getLogger(__name__)


def probe_outcome(
    model: Any,
    capabilities: HFCapabilities,
    acceleration: Acceleration | None = None,
    *,
    entry: Any = None,
    largest: int = ROW_COUNTS[-1],
) -> ProbeOutcome:
    """Return the stored outcome for this model, device and versions, probing the model if there is none.

    Args:
        model: a causal LM that `check_model` accepted.
        capabilities: the result of `check_model`.
        acceleration: the prepared model; None for its own passes.
        entry: the PEFT model whose `generate` defines the text; None for the model itself.
        largest: maximum rows per pass.

    Raises:
        OutOfMemoryError: the device is full.
    """
    file = result_file(model, capabilities, acceleration, entry, largest)
    return load_or_probe(
        file, ProbeOutcome, lambda: examine(model, capabilities, acceleration, entry=entry, largest=largest)
    )


def merge(capabilities: HFCapabilities, outcome: ProbeOutcome, name: str) -> HFCapabilities:
    """Return the capabilities restricted by an outcome."""
    if outcome.verdict == "refused":
        return make_refused(replace(capabilities, batches=False), f"{name} cannot verify drafts: {outcome.reason}")
    notes = (*capabilities.notes, *outcome.notes)
    if capabilities.trees and outcome.verdict == "chains":
        notes = (*notes, f"drafts are verified as chains: {outcome.reason}.")
    trees = capabilities.trees and outcome.verdict == "trees"
    changed = restrict(capabilities, trees=trees, masked=outcome.masked)
    return replace(
        changed,
        text_alone=outcome.text_alone,
        batches=capabilities.batches and outcome.batches,
        notes=notes,
    )


def examine(
    model: Any,
    capabilities: HFCapabilities,
    acceleration: Acceleration | None = None,
    *,
    entry: Any = None,
    largest: int = ROW_COUNTS[-1],
) -> ProbeOutcome:
    """Return the best verdict that holds for a tiny model of the same architecture and for the model itself.

    Raises:
        OutOfMemoryError: the device is full.
    """
    if misreads_at_limit(base_model(model)):
        reason = "its `generate` gets texts beyond the first rotary limit wrong in this release of transformers"
        return ProbeOutcome(verdict="refused", batches=False, reason=reason)
    used = PlainPasses() if acceleration is None else acceleration
    notes: tuple[str, ...] = ()
    plain = Plain(model if entry is None else entry)
    if reason := plain.failure(ModelRunner(model, capabilities, used)):
        if not capabilities.media:
            return ProbeOutcome(verdict="refused", batches=False, reason=f"its `generate` fails with {reason}")
        note = f"the model reads no text without media ({reason}), so drafts are checked behind its first prompt alone."
        verdict = "trees" if capabilities.trees else "chains"
        return ProbeOutcome(verdict=verdict, text_alone=False, batches=False, notes=(note,))
    try:
        tiny, small = build_tiny(model, capabilities)
    except Exception as error:  # a class may fail on a small config: the model itself can still be probed
        logger.info("no tiny model of %s: %r", type(model).__name__, error)
        tiny, small = None, capabilities
        notes = ("no small model of this architecture could be made, so drafts beyond its limits were not checked.",)
    reason = found = ""
    plain_tiny = Plain(tiny)
    for trees, masked in _candidates(small):
        runner = ModelRunner(model, restrict(capabilities, trees=trees, masked=masked), used)
        beyond = ProbeOutcome(verdict="trees" if trees else "chains")
        if tiny is not None:
            beyond = _tiny_outcome(tiny, restrict(small, trees=trees, masked=masked), plain_tiny)
        found = beyond.reason or first_difference(runner, OWN_TEXTS, plain) or count_difference(runner, largest)
        if not found:
            return replace(
                beyond,
                masked=masked,
                batches=beyond.batches and not (trees and batch_difference(runner, OWN_TEXTS * 2, plain)),
                reason=reason,
                notes=notes,
            )
        reason = reason or found
    return ProbeOutcome(verdict="refused", batches=False, reason=found)


def _tiny_outcome(tiny: Any, capabilities: HFCapabilities, plain: Plain) -> ProbeOutcome:
    """Return what texts beyond the limits of a tiny model show; stored, since many models have the same tiny one."""
    file = result_file(tiny, capabilities, None, None, 0, name="tiny-probe")
    return load_or_probe(file, ProbeOutcome, lambda: _examine_tiny(tiny, capabilities, plain))


def _examine_tiny(tiny: Any, capabilities: HFCapabilities, plain: Plain) -> ProbeOutcome:
    runner, trees = ModelRunner(tiny, capabilities, PlainPasses()), capabilities.trees
    with one_thread():
        if found := first_difference(runner, LONG_TEXTS, plain):
            return ProbeOutcome(verdict="refused", batches=False, reason=found)
        batches = not (trees and batch_difference(runner, LONG_TEXTS, plain))
    return ProbeOutcome(verdict="trees" if trees else "chains", batches=batches)


def _candidates(capabilities: HFCapabilities) -> Iterator[tuple[bool, bool]]:
    """Yield (trees, masked), from the config's promises down to chains with masks left to the model."""
    for trees in (True, False) if capabilities.trees else (False,):
        yield trees, True
        if capabilities.window is not None and not capabilities.mixed:
            yield trees, False


def restrict(capabilities: HFCapabilities, *, trees: bool, masked: bool) -> HFCapabilities:
    """Return the capabilities with these trees, and without windows if rows are not masked by them."""
    if masked:
        return replace(capabilities, trees=trees)
    return replace(capabilities, trees=trees, window=None, window_by_cache=False)


def build_tiny(model: Any, capabilities: HFCapabilities) -> tuple[Any, HFCapabilities]:
    """Return a tiny random model of the same architecture and its capabilities."""
    bare = base_model(model)
    config = tiny_config(bare.config)
    attention = getattr(bare.config, "_attn_implementation", None) or "eager"
    half = attention not in TREE_ATTENTION
    tiny = tiny_model(
        type(bare), config, attention=attention, device=model.device, dtype=model.dtype if half else torch.float32
    )
    return tiny, replace(check_model(tiny), trees=capabilities.trees)
