"""Loads a model with quantised weights: quantised now, or stored by an earlier start.

Packed weights are stored in the user's cache folder, from where the next start maps them. With a full disk or an
unwritable folder only the file is lost, and a damaged file is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from speculant.core.errors import ModelNotFoundError, UnsupportedError
from speculant.core.folders import cache_folder
from speculant.engines.hf.quantized.checkpoint_files import checkpoint_identity, find_file
from speculant.engines.hf.quantized.checkpoints.formats import PACKED, quantization_settings
from speculant.engines.hf.quantized.loss import QuantizationLoss, compare
from speculant.engines.hf.quantized.making import Quantized, QuantizeRequest, quantize, read_checkpoint
from speculant.engines.hf.quantized.packed_file import LAYOUT, PackedFileError, load_packed, save_packed
from speculant.engines.hf.quantized.parts import Parts, assemble, empty_model
from speculant.engines.hf.quantized.release import check_release
from speculant.engines.hf.quantized.rounding import Scheme
from speculant.engines.hf.quantized.summary import QuantizedSummary, summarize

FILE = "model.safetensors"  # in folders of `speculant quantize`
_FOLDER = "quantized"  # below the user's cache folder

logger = logging.getLogger(__name__)


def load_quantized(asked: QuantizeRequest) -> Any:
    """Return a quantised model; its attribute `quantized_summary` describes what was quantised, and is logged.

    Raises:
        UnsupportedError: the checkpoint is already quantised and should not be, or part of it has no layout here.
        ModelNotFoundError: weights are missing or damaged.
        OSError, ValueError: it cannot be loaded.
    """
    check_release()
    notes: tuple[str, ...] = ()
    model, settings = open_empty(asked)
    scheme = check_scheme(asked.scheme, settings)
    if settings.get("quant_method") == PACKED:
        return _load_file(asked, model, find_file(asked.source, FILE), scheme)
    path = packed_path(asked.source, scheme) if asked.keep else None
    if path is not None and path.exists():
        try:
            return _load_file(asked, model, path, scheme, file=str(path))
        except (PackedFileError, ModelNotFoundError, OSError) as error:
            notes = (f"packed weights from an earlier start could not be used and were made again: {error}",)
            model, settings = open_empty(asked)
    made, loss = make_parts(asked, model, settings)
    if asked.keep:
        path = packed_path(asked.source, scheme)  # again: its files may have been fetched meanwhile
        try:
            if path is None:
                raise OSError("the checkpoint's files are in no folder, or there is no cache folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            save_packed(path, made.parts, {"before": made.before})
        except OSError as error:
            path = None
            notes = (*notes, f"the packed weights could not be kept, so the next start makes them again: {error}")
    file = None if path is None else str(path)
    return _attach_summary(model, summarize(made.parts, scheme, before=made.before, loss=loss, file=file, notes=notes))


def make_parts(
    asked: QuantizeRequest, model: Any, settings: Mapping[str, Any]
) -> tuple[Quantized, QuantizationLoss | None]:
    """Quantise a float checkpoint, or read one that is already quantised, into an empty model.

    Returns:
        Its parts, and the loss of rounding on a sample of text; None if there were no floats or no tokenizer.

    Raises:
        UnsupportedError, ModelNotFoundError, OSError, ValueError: see `load_quantized`.
    """
    made = quantize(asked) if asked.scheme is not None else read_checkpoint(asked, model, settings)
    assemble_model(asked, model, made.parts)
    return made, None if made.predictions is None else compare(made.predictions, model)


def packed_path(source: str, scheme: str) -> Path | None:
    """Return where the packed weights of a checkpoint are stored; None if its files or the cache folder are unknown.

    The name is derived from the files' names, sizes, times and headers, the scheme and the layout's version.
    """
    try:
        identity = checkpoint_identity(source)
        folder = cache_folder() / _FOLDER
    except OSError:
        return None
    if identity is None:
        return None
    title = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(source).name)[:60].strip("-.") or "model"
    digest = hashlib.blake2b(f"{identity} {scheme} {LAYOUT}".encode(), digest_size=8).hexdigest()
    return folder / f"{title}-{scheme}-{digest}.safetensors"


def check_scheme(scheme: Scheme | None, settings: Mapping[str, Any]) -> str:
    """Return the name of the weights' quantisation: the scheme, or the format of an already quantised checkpoint.

    Raises:
        UnsupportedError: a scheme is requested for such a checkpoint.
    """
    method = settings.get("quant_method")
    if scheme is not None and settings:
        raise UnsupportedError(
            f"the checkpoint is quantised already ({method}); leave out `quantize`, or name the model it was made from."
        )
    return scheme or str(settings.get("scheme") if method == PACKED else method)


def open_empty(asked: QuantizeRequest) -> tuple[Any, dict[str, Any]]:
    """Return an empty model for a checkpoint's config, and the config's `quantization_config`; see `empty_model`."""
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(asked.source)
    settings = quantization_settings(config) or {}
    for each in (config, config.get_text_config(decoder=True)):
        if hasattr(each, "quantization_config"):
            del each.quantization_config  # the weights will not be quantised by transformers
    model = empty_model(config, asked.kind, dtype=_dtype(asked, config), attention=asked.attention)
    model.config.name_or_path = asked.source
    with contextlib.suppress(OSError):  # without one, the config's own is kept
        model.generation_config = GenerationConfig.from_pretrained(asked.source)
    return model, settings


def _load_file(asked: QuantizeRequest, model: Any, path: Path, scheme: str, *, file: str | None = None) -> Any:
    """Return a model from the packed weights in a file; `file` is set to it if it is a stored one."""
    found = load_packed(path)
    assemble_model(asked, model, found.parts)
    return _attach_summary(model, summarize(found.parts, scheme, before=found.facts["before"], file=file))


def assemble_model(asked: QuantizeRequest, model: Any, parts: Parts) -> None:
    """Put the parts of a checkpoint into an empty model; see `assemble`."""
    assemble(parts, model, dtype=_dtype(asked, model.config), activations=asked.activations, source=asked.source)


def _attach_summary(model: Any, summary: QuantizedSummary) -> Any:
    model.quantized_summary = summary
    logger.info("%s", summary)
    return model


def _dtype(asked: QuantizeRequest, config: Any) -> torch.dtype:
    """Return the requested dtype of floats; float32 if the checkpoint's has no quantised products."""
    name = asked.dtype
    if name == "auto":
        name = str(config.get_text_config(decoder=True).dtype).removeprefix("torch.")
    return torch.bfloat16 if name == "bfloat16" else torch.float32
