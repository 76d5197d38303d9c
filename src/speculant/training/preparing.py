"""The starting point of a training: the usable texts, the head or draft model, its depths, and caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from speculant.core.errors import UnsupportedError, UsageError
from speculant.drafters.heads.checkpoints.fitting import check_decoder
from speculant.drafters.heads.head import TargetParts
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.training.batches import split, stream_seed, usable
from speculant.training.checkpoints import FOLDER
from speculant.training.feature_cache import FeatureCache
from speculant.training.features import Features
from speculant.training.files import Files
from speculant.training.fingerprint import TargetIdentity
from speculant.training.kind import TrainingKind
from speculant.training.settings import TrainSettings
from speculant.training.sources import source_positions
from speculant.training.texts import Texts
from speculant.training.workers import Workers

HELD_OUT_SHARE = 0.1  # maximum share of the texts


def check_kind(kind: TrainingKind, settings: TrainSettings, files: Files, target: TargetParts) -> None:
    """Refuse options that a kind does not support, and targets for which it does not draft.

    Raises:
        UsageError: there are such options.
        UnsupportedError: the target is an encoder-decoder, and this is not for one.
    """
    check_decoder(kind.plural, kind.decoder_only, target)
    if settings.joint and target.source_size:
        raise UnsupportedError(
            "an encoder-decoder is not trained together with its heads. Leave out --joint to train the heads alone."
        )
    if settings.joint and not kind.joint:
        raise UsageError(f"{kind.plural} are trained for a fixed model only; --joint trains heads of kind medusa.")
    given = {"on_policy": settings.on_policy, "like": files.like, "before": files.before}
    known = () if not kind.draft_model else given if kind.depth == 1 else ("like",)  # PARD models have several depths
    wrong = [name for name, value in given.items() if value and name not in known]
    if wrong:
        raise UsageError(f"{kind.plural} do not take {' and '.join(wrong)}; only draft models do.")


def fitting_sources(texts: Texts, model: Any, note: Callable[[str], object]) -> Texts:
    """Return the texts that a target can be trained on: with sources if it is an encoder-decoder, else without.

    Pairs whose source is empty or longer than the encoder's positions are left out.

    Raises:
        UsageError: the texts are for a target of the other kind.
    """
    encodes = bool(getattr(model.config, "is_encoder_decoder", False))
    if encodes != (texts.sources is not None):
        held, needed = ("no sources", "an encoder-decoder") if encodes else ("sources", "decoder-only")
        raise UsageError(
            f"the texts have {held}, and the target is {needed}. Name texts that `speculant train data` lets it write."
        )
    if texts.sources is None:
        return texts
    lengths, maximum = texts.sources.lengths, source_positions(model)
    chosen = np.flatnonzero(lengths > 0 if maximum is None else (lengths > 0) & (lengths <= maximum))
    if lacking := len(texts) - len(chosen):
        note(f"{lacking} of {len(texts)} texts have a source that is empty or too long, and are left out.")
    return texts.select(chosen)


def fitting_texts(
    texts: Texts, target: HFTargetParts, settings: TrainSettings, longest: int | None, note: Callable[[str], object]
) -> tuple[Texts, Texts]:
    """Return the texts to train on and the held-out ones: cut to the target's positions, without those too short.

    Raises:
        UsageError: too few are left.
    """
    maximum = min(longest or target.positions or 2048, target.positions or longest or 2048)
    cut = texts.cut(maximum)
    if cut.tokens < texts.tokens:
        note(f"texts are cut to {maximum} tokens, which leaves {cut.tokens} of {texts.tokens}.")
    chosen = usable(cut, settings.measured)
    if len(chosen) < 2:
        raise UsageError(
            f"of {len(texts)} texts, {len(chosen)} have the {settings.measured + 3} tokens that training at this "
            "depth needs; at least two are needed. Name more data, or lower --depth."
        )
    if len(chosen) < len(cut):
        note(f"{len(cut) - len(chosen)} of {len(cut)} texts are too short to train on and are left out.")
    cut = cut.select(chosen)
    held = max(1, min(settings.held_out, int(len(cut) * HELD_OUT_SHARE)))
    training, held_out = split(len(cut), held, settings.seed)
    return cut.select(training), cut.select(held_out)


def build_head(
    kind: TrainingKind,
    target: HFTargetParts,
    model: Any,
    settings: TrainSettings,
    files: Files,
    texts: Texts,
    tokenizer: Any = None,
) -> Any:
    """Return the head or draft model to train, in float32 on the target's device.

    Raises:
        UsageError: the starting point is of another kind, or an option is unknown.
        SpeculantError: it cannot be loaded, or does not match the target.
    """
    counts = np.bincount(texts.ids, minlength=target.vocabulary).astype(np.int64)
    if files.init is None:
        with torch.random.fork_rng():
            torch.manual_seed(stream_seed(settings.seed))
            head = kind.new_head(target, settings.depth, counts=counts, options=files.options, like=files.like)
    else:
        head = kind.load_head(files.init, target, tokenizer, counts=counts)
    return head.to(device=model.device, dtype=torch.float32).requires_grad_(True).train()


def fix_model(head: nn.Module, device: torch.device) -> Any:
    """Return a frozen head or draft model on a device."""
    return head.to(device).requires_grad_(False).eval()


def fitting_depths(kind: TrainingKind, head: Any, settings: TrainSettings) -> TrainSettings:
    """Return settings with the depths to measure.

    Raises:
        UsageError: the head cannot draft to the requested training depth.
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
    """Give features caches on disk within the limit, in order; each process has its own caches."""
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
