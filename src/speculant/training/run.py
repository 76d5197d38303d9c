"""Training a head from data to the finished folder."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from speculant.core.errors import UsageError
from speculant.drafters.heads.checkpoints.formats import load_head
from speculant.engines.hf.target_parts import HFTargetParts
from speculant.training.batches import HELD_OUT, Groups, split, stream_seed, usable
from speculant.training.checkpoints import FOLDER, state_file
from speculant.training.feature_cache import FeatureCache
from speculant.training.features import Features
from speculant.training.fingerprint import TargetIdentity
from speculant.training.kinds import Kind
from speculant.training.output import check_output, finished, remove_state, write_head
from speculant.training.progress import Progress, TrainState
from speculant.training.rank_tree import find_tree
from speculant.training.reading import TrainData
from speculant.training.settings import TrainSettings
from speculant.training.texts import Texts
from speculant.training.trainer import Trainer
from speculant.training.workers import Workers, join_workers

logger = logging.getLogger(__name__)
HELD_OUT_SHARE = 0.1  # of the texts, at most
SAVED = ("float32", "bfloat16", "float16")
EPOCHS = 5  # where neither steps nor minutes are given


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where a training's files are.

    Attributes:
        out: the folder that gets the head.
        cache: bytes that hidden states may take on disk; 0 to compute them every time.
        cache_folder: where; None for the folder of the training's state, which is removed at its end.
        resume: whether to go on with what `out` holds.
        init: a head to begin with; None for a new one.
        options: of a new head, by name.
        checkpoint_steps, checkpoint_minutes: between checkpoints.
        dtype: of the weights that are written: float32, bfloat16 or float16.
    """

    out: Path
    cache: int = 0
    cache_folder: Path | None = None
    resume: bool = False
    init: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    checkpoint_steps: int | None = None
    checkpoint_minutes: float = 5.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in SAVED:
            raise UsageError(f"weights are written in {', '.join(SAVED)}, not {self.dtype!r}.")


def train_head(
    kind: Kind,
    model: Any,
    data: TrainData,
    identity: TargetIdentity,
    settings: TrainSettings,
    files: Files,
    *,
    longest: int | None = None,
    report: Callable[[Progress], object] | None = None,
    note: Callable[[str], object] = logger.info,
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
    if files.resume and finished(files.out):
        note(f"the head in {files.out} is finished; there is nothing to go on with.")
        return None
    unfinished = check_output(files.out, resume=files.resume)
    if files.resume and not unfinished:
        note(f"{files.out} holds no state of a training; it begins anew.")
    target = HFTargetParts(model)
    head = build_head(kind, target, model, settings, files, data.texts)
    settings = fitting_depths(kind, head, settings)
    training, held_out = fitting_texts(data.texts, target, settings, longest, note)
    workers = join_workers(model.device)
    features = [
        Features(model, target, groups, head.taps)
        for groups in (
            Groups(part, size=settings.texts, anchors=settings.anchors, depth=depth, seed=settings.seed)
            for part, depth in ((held_out, settings.measured), (training, settings.depth))
        )
    ]
    if files.cache:
        attach_caches(features, files, identity, workers, note)
    if settings.steps is None and settings.minutes is None:
        of_step = settings.texts * settings.accumulate * workers.count
        settings = replace(settings, steps=-(-len(training) * EPOCHS // of_step))
    about = {
        "kind": kind.name,
        "target": f"{identity.model} {identity.tokenizer}",
        "data": training.digest(),
        "init": files.init or dict(files.options),
    }
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
        report=report if workers.first else None,
    )
    if unfinished:
        note(f"going on from step {trainer.resume()}.")
    with frozen(model):
        state = trainer.run()
        if kind.searches_tree:
            groups = features[0].groups
            held = (features[0].batch(n, groups.anchors(n, HELD_OUT, n)) for n in range(len(groups)))
            head.paths = find_tree(kind.new_recipe(head, settings.depth), held, target)
    workers.leave()
    if not workers.first:
        return None
    record = _record(kind, head, data, identity, trainer.settings, state, len(held_out), workers.count, model.device)
    write_head(files.out, head.to(getattr(torch, files.dtype)), kind, target, record)
    remove_state(files.out)
    return record


@contextmanager
def frozen(model: Any) -> Iterator[None]:
    """Compute no gradients of a model's weights in here."""
    changed = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in changed:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in changed:
            weight.requires_grad_(True)


def fitting_texts(
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


def build_head(
    kind: Kind, target: HFTargetParts, model: Any, settings: TrainSettings, files: Files, texts: Texts
) -> Any:
    """Return the head to train, in float32 on the target's device.

    Raises:
        UsageError: the head to begin with is of another kind, or there is no such option.
        SpeculantError: it cannot be loaded, or does not fit the target.
    """
    if files.init is None:
        with torch.random.fork_rng():
            torch.manual_seed(stream_seed(settings.seed))
            counts = np.bincount(texts.ids, minlength=target.vocabulary).astype(np.int64)
            head: Any = kind.new_head(target, settings.depth, counts=counts, options=files.options)
    else:
        loaded = load_head(files.init, target)
        if loaded.kind != kind.name:
            raise UsageError(f"the head {files.init} is of kind {loaded.kind}, not {kind.name}.")
        if files.options:
            raise UsageError("options of new heads (--set) have no effect on a head that is given by --init.")
        head = loaded.head
    assert isinstance(head, nn.Module)
    return head.to(device=model.device, dtype=torch.float32).requires_grad_(True).train()


def fitting_depths(kind: Kind, head: Any, settings: TrainSettings) -> TrainSettings:
    """Return settings with the depths that are measured.

    Raises:
        UsageError: the head cannot draft as deep as it should be trained.
    """
    if head.depth is not None and settings.depth > head.depth:
        raise UsageError(f"this head of kind {kind.name} drafts {head.depth} tokens at most; lower --depth.")
    deepest = kind.measured if head.depth is None else min(kind.measured, head.depth)
    return replace(settings, measured=max(settings.depth, deepest))


def attach_caches(
    features: list[Features],
    files: Files,
    identity: TargetIdentity,
    workers: Workers,
    note: Callable[[str], object],
) -> None:
    """Give features caches on disk, within the limit, the first ones first; processes have caches of their own."""
    left = files.cache // workers.count
    folder = files.cache_folder or files.out / FOLDER / "cache"
    if workers.count > 1:
        folder = folder / f"worker-{workers.rank}"
    for name, each in zip(("held-out", "training"), features, strict=True):
        lengths = each.groups.texts.lengths
        about = {"target": identity.model, "texts": each.groups.texts.digest(), "size": len(each.groups[0])}
        each.cache = FeatureCache(
            folder / name,
            rows=[int(lengths[each.groups[group]].sum()) for group in range(len(each.groups))],
            shape=each.shape,
            limit=left,
            about=about | {"layers": list(each.layers)},
        )
        left -= each.cache.bytes
    cached, groups = sum(len(each.cache or ()) for each in features), sum(len(each.groups) for each in features)
    note(f"hidden states of {cached} of {groups} batches fit into {files.cache / 1e9:g} GB on disk.")


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
