"""Trains a head or a draft model, from data to the finished folder."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from speculant.core.hub import title
from speculant.drafters.heads.training.recipe import Recipe
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.training.checkpoints import state_file
from speculant.training.files import Files
from speculant.training.fingerprint import TargetIdentity, weights_digest
from speculant.training.joint.changes import measure_changes
from speculant.training.joint.recipe import JointRecipe, join_backbone
from speculant.training.kind import TrainingKind
from speculant.training.output import check_output, remove_state, write_head
from speculant.training.preparing import (
    attach_caches,
    build_head,
    check_kind,
    fitting_depths,
    fitting_sources,
    fitting_texts,
    fix_model,
)
from speculant.training.progress import Progress, TrainState
from speculant.training.rank_tree import find_tree
from speculant.training.reading import TrainData
from speculant.training.settings import TrainSettings
from speculant.training.trainer import Trainer
from speculant.training.workers import join_workers

logger = logging.getLogger(__name__)
EPOCHS = 5  # if neither steps nor minutes are given


def train_head(
    kind: TrainingKind,
    model: Any,
    data: TrainData,
    identity: TargetIdentity,
    settings: TrainSettings,
    files: Files,
    *,
    tokenizer: Any = None,
    longest: int | None = None,
    report: Callable[[Progress], object] | None = None,
    note: Callable[[str], object] = logger.info,
) -> dict[str, Any] | None:
    """Train a head or a draft model and write it.

    Returns its figures, or None if another process writes them.

    Args:
        kind: kind of the head, or `DRAFT_MODEL`.
        model: the target, a transformers model.
        data: training data.
        identity: identity of the target.
        settings: training settings.
        files: files of the training.
        tokenizer: the target's tokenizer, saved with draft models, or None.
        longest: maximum tokens used of a text; None for the models' positions.
        report: called with the progress.
        note: called with messages for the user.

    Raises:
        SpeculantError: training is not possible; see `Trainer.run`.
        KeyboardInterrupt: it was interrupted; its state is saved.
    """
    # 1. The head, alone or with a copy of the model's layers, and those whose features it is trained beside.
    unfinished = check_output(files.out, resume=files.resume, noun=kind.noun)
    if files.resume and not unfinished:
        note(f"{files.out} holds no state of a training; it begins anew.")
    target = HFTargetParts(model)
    check_kind(kind, settings, files, target)
    texts = fitting_sources(data.texts, model, note)
    heads = head = build_head(kind, target, model, settings, files, texts, tokenizer)
    if settings.joint:
        head = join_backbone(heads, model, settings)

    def new_recipe(depth: int) -> Recipe:
        recipe = kind.new_recipe(heads, depth)
        return JointRecipe(head, recipe, settings) if settings.joint else recipe

    before = [fix_model(kind.load_head(source, target, tokenizer), model.device) for source in files.before]

    # 2. Its texts, and the features that it reads of them.
    settings = fitting_depths(kind, head, settings)
    rooms = [longest, *(getattr(each, "positions", None) for each in (head, *before))]
    longest = min((room for room in rooms if room is not None), default=None)
    training, held_out = fitting_texts(texts, target, settings, longest, note)
    workers = join_workers(model.device)
    features = [
        kind.open_features(model, target, part, head, settings, depth, before)
        for part, depth in ((held_out, settings.measured), (training, settings.depth))
    ]
    if files.cache:
        attach_caches(features, files, identity, workers, note)
    if settings.steps is None and settings.minutes is None:
        of_step = settings.texts * settings.accumulate * workers.count
        settings = replace(settings, steps=-(-len(training) * EPOCHS // of_step))

    # 3. Training, from where an earlier run stopped if its state is there.
    trainer = Trainer(
        new_recipe,
        target,
        features[1],
        features[0],
        settings,
        path=state_file(files.out),
        about=_describe(kind, identity, files, training.digest(), before),
        workers=workers,
        checkpoint_steps=files.checkpoint_steps,
        checkpoint_minutes=files.checkpoint_minutes,
        report=report if workers.first else None,
    )
    if unfinished:
        note(f"going on from step {trainer.resume()}.")
    with freeze(model):
        state = trainer.run()
        if kind.searches_tree:
            held = (features[0].held_out_batch(group) for group in range(len(features[0].groups)))
            found = find_tree(new_recipe(settings.depth), held, target)
            heads.paths = found or heads.paths  # none if no head was ever right
        changes = measure_changes(head.backbone, features[0], target) if settings.joint else None
    workers.leave()

    # 4. The files, written by one process.
    if not workers.first:
        return None
    record = _record(kind, heads, data, identity, trainer.settings, state, len(held_out), workers.count, model.device)
    record |= {"start": files.start(), "before": [title(source) for source in files.before]}
    tuned = None
    if changes is not None:
        tuned = head.backbone.finish()
        record["joint"] = {"model": weights_digest(tuned), **changes}
    heads = heads.to(getattr(torch, files.dtype))
    write_head(files.out, heads, kind, target, record, tokenizer, tuned)
    remove_state(files.out)
    return record


def _describe(
    kind: TrainingKind, identity: TargetIdentity, files: Files, digest: str, before: Sequence[nn.Module]
) -> dict[str, Any]:
    """Return what a training must have in common with an earlier one to go on from its state."""
    found: dict[str, Any] = {
        "kind": kind.name,
        "target": f"{identity.model} {identity.tokenizer}",
        "data": digest,
        "init": files.init or dict(files.options) | ({} if files.like is None else {"like": files.like}),
    }
    return found | ({"before": [weights_digest(each) for each in before]} if before else {})


@contextmanager
def freeze(model: Any) -> Iterator[None]:
    """Disable gradients of a model's weights in this context."""
    changed = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in changed:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in changed:
            weight.requires_grad_(True)


def _record(
    kind: TrainingKind,
    head: nn.Module,
    data: TrainData,
    identity: TargetIdentity,
    settings: TrainSettings,
    state: TrainState,
    held_out: int,
    workers: int,
    device: torch.device,
) -> dict[str, Any]:
    """Return the figures of a finished training."""
    best = next(entry for entry in state.history if entry["step"] == state.best_step)
    threads = torch.get_num_threads()
    on_cpu = "1 CPU thread" if threads == 1 else f"{threads} CPU threads"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else on_cpu
    return {
        "kind": kind.name,
        "target": identity.record(),
        "data": list(data.sources),
        "settings": settings.record(),
        "parameters": sum(weight.numel() for weight in head.parameters()),
        "steps": state.step,
        "tokens": state.tokens,
        "seconds": round(state.seconds, 1),
        "device": name,
        "workers": workers,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "held_out": held_out,
        "best": best,
        "history": state.history,
    }
