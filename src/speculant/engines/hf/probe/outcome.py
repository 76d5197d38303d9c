"""What a probe has found, and the file that keeps it for other processes."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch

from speculant.core.folders import cache_folder
from speculant.engines.hf.acceleration import Acceleration
from speculant.engines.hf.probe.capabilities import HFCapabilities
from speculant.engines.hf.probe.model_state import digest_of
from speculant.engines.hf.probe.tiny import quiet

_NOT_THE_SHAPE = {"_name_or_path", "transformers_version", "architectures"}

Outcome = TypeVar("Outcome", "ProbeOutcome", "PaddingOutcome")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOutcome:
    """The findings of a probe.

    Attributes:
        verdict: "trees", "chains" or "refused".
        text_alone: whether the model accepts prompts without media; others are checked by their first prompt.
        masked: whether rows see windows as the config and class suggest; False if the model has none after all.
        batches: whether several sequences may share a pass.
        reason: the difference found, for verdicts other than "trees".
        notes: what could not be probed.

    Raises:
        ValueError: there is no such verdict.
    """

    verdict: str
    text_alone: bool = True
    masked: bool = True
    batches: bool = True
    reason: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.verdict not in ("trees", "chains", "refused"):
            raise ValueError(f"no verdict: {self.verdict}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingOutcome:
    """What padding in front of a text changes.

    Attributes:
        read: whether it affects the text.
        drafts: whether drafts behind it leave the logits unchanged.
    """

    read: bool = False
    drafts: bool = True


def result_file(
    model: Any,
    capabilities: HFCapabilities,
    acceleration: Acceleration | None,
    entry: Any,
    largest: int,
    *,
    name: str = "probe",
) -> Path | None:
    """Return the file of the outcome; None if there is no folder, or the model's state cannot be identified."""
    state = digest_of(model)
    if state is None:
        return None
    config = {key: value for key, value in model.config.to_dict().items() if key not in _NOT_THE_SHAPE}
    kind, device = type(model), model.device
    facts = [
        config,
        f"{kind.__module__}.{kind.__qualname__}",
        getattr(model.config, "_attn_implementation", None),
        str(model.dtype),
        torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        asdict(capabilities),
        type(acceleration).__name__,
        None if entry is None else str(type(entry)),
        state,
        largest,
        *_code_identity(),
    ]
    identity = json.dumps(facts, sort_keys=True, default=str).encode()
    try:
        return cache_folder() / f"{name}-{hashlib.blake2b(identity, digest_size=8).hexdigest()}.json"
    except OSError:
        return None


@functools.cache
def _code_identity() -> tuple[str, ...]:
    """Return a digest of this engine's code, which affects its passes as much as versions do, and the versions.

    They are read once per process, which continues with its imported code.
    """
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest(), *(version(name) for name in ("torch", "transformers", "speculant"))


def load_or_probe(file: Path | None, kind: type[Outcome], probe: Callable[[], Outcome]) -> Outcome:
    """Return the outcome in a file, or that of a probe, which is stored there; without a file it is not stored."""
    outcome = None if file is None else _read(file, kind)
    if outcome is None:
        with quiet():
            outcome = probe()
        if file is not None:
            _write(file, outcome)
    return outcome


def _read(path: Path, kind: type[Outcome]) -> Outcome | None:
    """Read a stored outcome; None if there is none or the file is broken, which probing again repairs."""
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if "notes" in found:
            found["notes"] = tuple(found["notes"])
        return kind(**found)
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _write(path: Path, outcome: ProbeOutcome | PaddingOutcome) -> None:
    """Store an outcome atomically; with an unwritable folder, every process probes again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            json.dump(asdict(outcome), file)
        os.replace(file.name, path)
    except OSError as error:
        logger.info("the probe's result could not be kept: %s", error)
