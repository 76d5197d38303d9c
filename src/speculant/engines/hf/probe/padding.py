"""Whether padding in front of a prompt changes a model's text, and whether drafts can be verified behind it.

Few prompts have padding, and finding this out takes almost as long as the rest of a probe. So it is examined when the
first padded prompt comes, on a tiny model of the same architecture (see `probing`), and stored like a probe's outcome.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from speculant.engines.hf.acceleration import PlainPasses
from speculant.engines.hf.forward_pass import ModelRunner
from speculant.engines.hf.probe.outcome import PaddingOutcome, load_or_probe, result_file
from speculant.engines.hf.probe.probing import build_tiny, restrict
from speculant.engines.hf.probe.rounds import (
    LONG_TEXTS,
    OWN_TEXTS,
    PADDED_TEXTS,
    Plain,
    batch_difference,
    first_difference,
    reads_padding,
)
from speculant.engines.hf.probe.tiny import one_thread

logger = logging.getLogger(__name__)


def padding_outcome(runner: ModelRunner, *, entry: Any = None) -> PaddingOutcome:
    """Return the stored outcome for this architecture, examining a tiny model of it if there is none.

    Args:
        runner: runner of a model that was probed.
        entry: the PEFT model whose `generate` defines the text; None for the model itself.

    Raises:
        OutOfMemoryError: the device is full.
    """
    found = _find_outcome(runner, entry)
    return replace(found, read=found.read or runner.capabilities.reads_padding)


def _find_outcome(runner: ModelRunner, entry: Any) -> PaddingOutcome:
    model, capabilities = runner.model, runner.capabilities
    if not capabilities.drafts or capabilities.encoder or not capabilities.text_alone:  # decided by the first prompt
        return PaddingOutcome()
    try:
        tiny, small = build_tiny(model, capabilities)
    except Exception as error:  # a class may fail on a small config: the model itself still shows what it reads
        logger.info("no tiny model of %s: %r", type(model).__name__, error)
        plain = Plain(model if entry is None else entry)
        return PaddingOutcome(read=reads_padding(runner, OWN_TEXTS[0], plain))
    small = restrict(small, trees=capabilities.trees, masked=capabilities.window is not None)
    small = replace(small, batches=capabilities.batches)
    file = result_file(tiny, small, None, None, 0, name="tiny-padding")
    return load_or_probe(file, PaddingOutcome, lambda: _examine(ModelRunner(tiny, small, PlainPasses())))


def _examine(runner: ModelRunner) -> PaddingOutcome:
    """Return what padding changes in the texts of a tiny model."""
    plain = Plain(runner.model)
    with one_thread():
        read = reads_padding(runner, LONG_TEXTS[0], plain)
        wrong = bool(first_difference(runner, PADDED_TEXTS, plain))
        if not wrong and runner.capabilities.trees and runner.capabilities.batches:
            wrong = batch_difference(runner, PADDED_TEXTS, plain)
    return PaddingOutcome(read=read, drafts=not wrong)
