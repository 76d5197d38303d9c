"""Getting a model with quantised weights: rounded here, packed in the checkpoint, or kept from an earlier start.

A checkpoint is mapped, and each matrix is rounded or unpacked and let go before the next is read, so that only the
packed weights take memory. They are kept in the user's cache folder, from where the next start maps them.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from speculant.core.errors import ModelNotFoundError, UnsupportedError
from speculant.core.folders import cache_folder
from speculant.engines.hf.quantized.checkpoint_files import checkpoint_identity, open_checkpoint
from speculant.engines.hf.quantized.checkpoints.formats import find_format, quantization_settings
from speculant.engines.hf.quantized.loss import Predictions, compare, predict, sample_ids
from speculant.engines.hf.quantized.modules import Activations
from speculant.engines.hf.quantized.packed_file import LAYOUT, PackedFileError, load_packed, save_packed
from speculant.engines.hf.quantized.parts import Parts, assemble, empty_model, matrices, named_floats
from speculant.engines.hf.quantized.rounding import Scheme, round_weight
from speculant.engines.hf.quantized.summary import QuantizedSummary, count_bytes, summarize
from speculant.engines.hf.quantized.tensor_names import match_names
from speculant.engines.hf.quantized.weight import pack

PACKED = "speculant"  # the `quant_method` of folders that `speculant quantize` has written
FILE = "model.safetensors"  # their weights
_FOLDER = "quantized"  # below the user's cache folder


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeRequest:
    """How a checkpoint is quantised.

    Attributes:
        source: a folder or hub id.
        kind: the class of transformers that knows its config.
        scheme: "int8" or "int4" for a checkpoint of floats; None for one that is quantised already.
        dtype: of the model's floats.
        attention: transformers' attn_implementation; None for its default.
        activations: whether the products round their inputs to 8 bits.
        keep: whether the packed weights are kept in the user's cache folder, and taken from there.
        tokenizer: for the sample, or None.
        sample: the text on which the loss is measured; None for a built-in one.
    """

    source: str
    kind: Any
    scheme: Scheme | None
    dtype: torch.dtype
    attention: str | None = None
    activations: Activations = "int8"
    keep: bool = True
    tokenizer: Any = None
    sample: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """A quantised checkpoint, and how it was made.

    Attributes:
        parts: its weights.
        before: bytes of its float weights; None if they were packed.
        predictions: of the float model on the sample, or None.
    """

    parts: Parts
    before: int | None = None
    predictions: Predictions | None = None


def load_quantized(asked: QuantizeRequest) -> tuple[Any, QuantizedSummary]:
    """Return a quantised model and what is to be said of it.

    Raises:
        UnsupportedError: the checkpoint is quantised already and should not be, or a part of it has no layout here.
        ModelNotFoundError: weights are missing or damaged.
        OSError, ValueError: it cannot be loaded.
    """
    notes: tuple[str, ...] = ()
    model, settings = open_empty(asked.source, asked.kind, dtype=asked.dtype, attention=asked.attention)
    if settings.get("quant_method") == PACKED:
        return _load_folder(asked, model, settings)
    title = check_scheme(asked.scheme, settings)
    path = packed_path(asked.source, title) if asked.keep else None
    if path is not None and path.exists():
        try:
            found = load_packed(path)
            _assemble(asked, found.parts, model)
            return model, summarize(found.parts, title, file=str(path), before=found.facts["before"])
        except (PackedFileError, ModelNotFoundError, OSError) as error:
            notes = (f"packed weights from an earlier start could not be used and were made anew: {error}",)
            model, _ = open_empty(asked.source, asked.kind, dtype=asked.dtype, attention=asked.attention)
    made = quantize(asked) if asked.scheme is not None else read_checkpoint(asked, model, settings)
    _assemble(asked, made.parts, model)
    loss = None if made.predictions is None else compare(made.predictions, model)
    if asked.keep:
        path = packed_path(asked.source, title)  # again: its files may have been fetched meanwhile
        try:
            if path is None:
                raise OSError("the checkpoint's files are not in one folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            save_packed(path, made.parts, {"before": made.before, "loss": None if loss is None else loss.as_dict()})
        except OSError as error:
            path = None
            notes = (*notes, f"the packed weights could not be kept, so the next start makes them again: {error}")
    file = None if path is None else str(path)
    return model, summarize(made.parts, title, before=made.before, loss=loss, file=file, notes=notes)


def packed_path(source: str, scheme: str) -> Path | None:
    """Return where the packed weights of a checkpoint are kept; None while its files are not on this machine.

    The name is made from the files' names, sizes, times and headers, the scheme and the layout's version.
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


def quantize(asked: QuantizeRequest) -> Quantized:
    """Load a checkpoint of floats and round its matrices.

    Raises:
        UnsupportedError: its decoder layers are not found, or a weight is not finite.
    """
    assert asked.scheme is not None
    model = asked.kind.from_pretrained(asked.source, dtype="auto", attn_implementation=asked.attention).eval()
    if getattr(model, "peft_config", None):
        raise UnsupportedError(
            "an adapter cannot be quantised with its model; merge it first, or leave out `quantize`."
        )
    ids = sample_ids(model, asked.tokenizer, asked.sample)
    predictions = None if ids is None else predict(model, ids)
    before = count_bytes(dict(named_floats(model)))
    ends = {
        id(each.weight) for each in (model.get_input_embeddings(), model.get_output_embeddings()) if each is not None
    }
    weights = {}
    for name in matrices(model):
        parameter = model.get_parameter(name)
        try:
            weights[name] = round_weight(parameter, "int8" if id(parameter) in ends else asked.scheme)
        except ValueError as error:
            raise UnsupportedError(f"{name} cannot be rounded to {asked.scheme}: {error}.") from error
        parameter.data = parameter.data.new_empty(0)  # let go, wherever it is tied
    floats = {name: each.detach() for name, each in named_floats(model) if name not in weights}
    return Quantized(parts=Parts(weights=weights, floats=floats), before=before, predictions=predictions)


def read_checkpoint(asked: QuantizeRequest, model: Any, settings: Mapping[str, Any]) -> Quantized:
    """Read a checkpoint that is quantised already.

    Args:
        asked: what and how.
        model: an empty model of its config.
        settings: the config's `quantization_config`.

    Raises:
        UnsupportedError: there is no reader for its format, or no layout for one of its matrices.
        ModelNotFoundError: weights are missing or damaged.
    """
    form = find_format(settings)
    if form is None:
        raise UnsupportedError(f"there is no reader for weights in the format {settings.get('quant_method')!r}.")
    with open_checkpoint(asked.source) as files:
        weights, orders, used = {}, {}, set[str]()
        names = match_names(model, files)
        for matrix in form.read(files, settings):
            name = names(matrix.name)
            weights[name] = pack(matrix.values)
            if matrix.order is not None:
                orders[name] = matrix.order
            used.update(matrix.tensors)
        floats = {names(name): files.read(name).clone() for name in files if name not in used}
    return Quantized(parts=Parts(weights=weights, floats=floats, orders=orders))


def check_scheme(scheme: Scheme | None, settings: Mapping[str, Any]) -> str:
    """Return what the weights are called: the scheme, or the format of a checkpoint that is quantised already.

    Raises:
        UnsupportedError: a scheme is asked of such a checkpoint.
    """
    method = settings.get("quant_method")
    if scheme is not None and settings:
        raise UnsupportedError(
            f"the checkpoint is quantised already ({method}); leave out `quantize`, or name the model it was made from."
        )
    return scheme or str(method)


def open_empty(source: str, kind: Any, *, dtype: torch.dtype, attention: str | None) -> tuple[Any, Mapping[str, Any]]:
    """Return an empty model of a checkpoint's config, and the config's `quantization_config`; see `empty_model`."""
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(source)
    settings = quantization_settings(config) or {}
    for each in (config, config.get_text_config(decoder=True)):
        if hasattr(each, "quantization_config"):
            del each.quantization_config  # the weights will be none of transformers' quantised ones
    model = empty_model(config, kind, dtype=dtype, attention=attention)
    model.config.name_or_path = source
    with contextlib.suppress(OSError):  # without one, the config's own stays
        model.generation_config = GenerationConfig.from_pretrained(source)
    return model, settings


def _load_folder(asked: QuantizeRequest, model: Any, settings: Mapping[str, Any]) -> tuple[Any, QuantizedSummary]:
    """Return a model from a folder that `speculant quantize` has written."""
    if asked.scheme is not None:
        check_scheme(asked.scheme, settings)
    found = load_packed(Path(asked.source) / FILE)
    _assemble(asked, found.parts, model)
    return model, summarize(found.parts, str(settings.get("scheme")), before=found.facts["before"])


def _assemble(asked: QuantizeRequest, parts: Parts, model: Any) -> None:
    assemble(parts, model, dtype=asked.dtype, activations=asked.activations, source=asked.source)
