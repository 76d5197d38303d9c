"""Training a head from data to the finished folder."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from speculant.core.errors import UsageError
from speculant.drafters.heads.checkpoints.formats import load_head
from speculant.engines.hf.target_parts import HFTargetParts
from speculant.training.batches import Groups, split, stream_seed, usable
from speculant.training.checkpoints import FOLDER, state_file
from speculant.training.feature_cache import FeatureCache
from speculant.training.features import Features
from speculant.training.fingerprint import TargetIdentity
from speculant.training.kinds import Kind
from speculant.training.output import check_output, finished, remove_state, write_head
from speculant.training.reading import TrainData
from speculant.training.settings import TrainSettings
from speculant.training.texts import Texts
from speculant.training.trainer import Progress, Trainer, TrainState
from speculant.training.workers import join_workers

HELD_OUT_SHARE = 0.1  # of the texts, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where a training's files are.

    Attributes:
        out: the folder that gets the head.
        cache: bytes that hidden states may take on disk; 0 to compute them every time.
        cache_folder: where; None for the folder of the training's state, which is removed at its end.
        resume: whether to go on with what `out` holds.
        init: a head to begin with; None for a new one.
        checkpoint_steps, checkpoint_minutes: between checkpoints.
    """

    out: Path
    cache: int = 0
    cache_folder: Path | None = None
    resume: bool = False
    init: str | None = None
    checkpoint_steps: int | None = None
    checkpoint_minutes: float = 5.0


def train_head(
    kind: Kind,
    model: Any,
    data: TrainData,
    identity: TargetIdentity,
    settings: TrainSettings,
    files: Files,
    *,
    longest: int | None = None,
    report: Callable[[Progress], object] = lambda progress: None,
    note: Callable[[str], object] = lambda text: None,
) -> dict[str, Any] | None:
    """Train a head and write it; return its figures, None if another process writes them or it was finished before.

    Args:
        kind: of the head.
        model: the target, a transformers model.
        data: what to train on.
        identity: of the target.
        settings: of the training.
        files: where everything is.
        longest: tokens of a text that are used; None for all that the target has positions for.
        report: is given the progress.
        note: is given what the user should know.

    Raises:
        SpeculantError: it cannot be trained so; see `Trainer.run`.
        KeyboardInterrupt: it was interrupted; its state is saved.
    """
    if kind.deepest is not None and settings.depth > kind.deepest:
        raise UsageError(f"heads of kind {kind.name} draft {kind.deepest} tokens at most; lower --depth.")
    settings = replace(settings, measured=max(settings.depth, min(kind.measured, kind.deepest or kind.measured)))
    if files.resume and finished(files.out):
        note(f"the head in {files.out} is finished; there is nothing to go on with.")
        return None
    unfinished = check_output(files.out, resume=files.resume)
    if files.resume and not unfinished:
        note(f"{files.out} holds no state of a training; it begins anew.")
    model.requires_grad_(False)
    target = HFTargetParts(model)
    texts = fitting(data.texts, target, settings, longest, note)
    head = build_head(kind, target, model, settings, files.init)
    training, held_out = texts
    features = [
        Features(model, target, groups, head.taps, None)
        for groups in (
            Groups(part, size=settings.texts, anchors=settings.anchors, depth=deepest, seed=settings.seed)
            for part, deepest in ((held_out, settings.measured), (training, settings.depth))
        )
    ]
    attach_caches(features, files, target, identity, note)
    about = {"kind": kind.name, "target": identity.record(), "data": data.texts.digest(), "init": files.init or ""}
    workers = join_workers(model.device)
    trainer = Trainer(
        lambda depth: kind.new_recipe(head, depth),
        target,
        features[1],
        features[0],
        settings,
        path=state_file(files.out),
        about=about,
        workers=workers,
        checkpoint_steps=files.checkpoint_steps,
        checkpoint_minutes=files.checkpoint_minutes,
        report=report if workers.first else lambda progress: None,
    )
    if unfinished:
        note(f"going on from step {trainer.resume()}.")
    state = trainer.run()
    workers.wait()
    if not workers.first:
        return None
    record = _record(kind, head, data, identity, trainer.settings, state, len(held_out), workers.count, model.device)
    write_head(files.out, head, kind, target, record)
    remove_state(files.out)
    return record


def fitting(
    texts: Texts, target: HFTargetParts, settings: TrainSettings, longest: int | None, note: Callable[[str], object]
) -> tuple[Texts, Texts]:
    """Return the texts to train on and those held out: cut to the target's positions, without those too short.

    Raises:
        UsageError: hardly any are left.
    """
    most = min(longest or target.positions or 2048, target.positions or longest or 2048)
    cut = texts.cut(most)
    if cut.tokens < texts.tokens:
        note(f"texts are cut to {most} tokens, which leaves {cut.tokens} of {texts.tokens}.")
    chosen = usable(cut, settings.measured)
    if len(chosen) < 2:
        raise UsageError(
            f"of {len(texts)} texts, {len(chosen)} have the {settings.measured + 3} tokens that a head of this depth "
            "needs; two are the least. Name more data, or lower --depth."
        )
    if len(chosen) < len(cut):
        note(f"{len(cut) - len(chosen)} of {len(cut)} texts are too short to train on and are left out.")
    cut = cut.select(chosen)
    held = max(1, min(settings.held_out, int(len(cut) * HELD_OUT_SHARE)))
    training, held_out = split(len(cut), held, settings.seed)
    return cut.select(training), cut.select(held_out)


def build_head(kind: Kind, target: HFTargetParts, model: Any, settings: TrainSettings, init: str | None) -> Any:
    """Return the head to train, in float32 on the target's device.

    Raises:
        UsageError: the head to begin with is of another kind.
        SpeculantError: it cannot be loaded, or does not fit the target.
    """
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(settings.seed))
        if init is None:
            head: Any = kind.new_head(target)
        else:
            loaded = load_head(init, target)
            if loaded.kind != kind.name:
                raise UsageError(f"the head {init} is of kind {loaded.kind}, not {kind.name}.")
            head = loaded.head
    assert isinstance(head, nn.Module)
    return head.to(device=model.device, dtype=torch.float32).train()


def attach_caches(
    features: list[Features],
    files: Files,
    target: HFTargetParts,
    identity: TargetIdentity,
    note: Callable[[str], object],
) -> None:
    """Give features caches on disk, within the limit, the first ones first."""
    left = files.cache
    folder = files.cache_folder or files.out / FOLDER / "cache"
    for name, each in zip(("held-out", "training"), features, strict=True):
        if not left:
            return
        rows = [int(each.groups.texts.lengths[each.groups[group]].sum()) for group in range(len(each.groups))]
        about = {
            "target": identity.model,
            "texts": each.groups.texts.digest(),
            "layers": list(each.layers),
            "hidden": target.hidden_size,
            "size": len(each.groups[0]),
        }
        width = len(each.layers) * target.hidden_size
        each.cache = FeatureCache(folder / name, rows=rows, width=width, limit=left, about=about)
        left -= each.cache.bytes
    cached, groups = sum(len(each.cache or []) for each in features), sum(len(each.groups) for each in features)
    note(f"hidden states of {cached} of {groups} batches fit into {files.cache / 1e9:.1f} GB on disk.")


def _record(
    kind: Kind,
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
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
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
