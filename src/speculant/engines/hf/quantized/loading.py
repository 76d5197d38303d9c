"""Getting a model with quantised weights: rounded here, packed in the checkpoint, or kept from an earlier start.

A float checkpoint is mapped, and each matrix is rounded and let go before the next is read, so that only the packed
weights take memory. They are kept in the user's cache folder, from where the next start maps them.
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

from speculant.core.errors import UnsupportedError
from speculant.core.folders import cache_folder
from speculant.engines.hf.quantized.checkpoint_files import checkpoint_identity
from speculant.engines.hf.quantized.loss import Predictions, compare, predict, sample_ids
from speculant.engines.hf.quantized.modules import Activations
from speculant.engines.hf.quantized.packed_file import LAYOUT, PackedFileError, load_packed, save_packed
from speculant.engines.hf.quantized.parts import Parts, assemble, empty_model, matrices, named_floats
from speculant.engines.hf.quantized.rounding import Scheme, round_weight
from speculant.engines.hf.quantized.summary import QuantizedSummary, count_bytes, summarize

_FOLDER = "quantized"  # below the user's cache folder


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeRequest:
    """How a checkpoint of floats is quantised.

    Attributes:
        source: a folder or hub id.
        kind: the class of transformers that knows its config.
        scheme: "int8" or "int4".
        dtype: of the model's floats.
        attention: transformers' attn_implementation; None for its default.
        activations: whether the products round their inputs to 8 bits.
        keep: whether the packed weights are kept in the user's cache folder, and taken from there.
        tokenizer: for the sample, or None.
        sample: the text on which the loss is measured; None for a built-in one.
    """

    source: str
    kind: Any
    scheme: Scheme
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
        before: bytes of its float weights.
        predictions: of the float model on the sample, or None.
    """

    parts: Parts
    before: int
    predictions: Predictions | None


def load_quantized(asked: QuantizeRequest) -> tuple[Any, QuantizedSummary]:
    """Return a quantised model and what is to be said of it.

    Raises:
        UnsupportedError: the checkpoint is quantised already, or a part of it cannot be.
        OSError, ValueError: it cannot be loaded.
    """
    notes: tuple[str, ...] = ()
    path = packed_path(asked.source, asked.scheme) if asked.keep else None
    if path is not None and path.exists():
        try:
            return _load_kept(asked, path)
        except (PackedFileError, OSError) as error:
            notes = (f"packed weights from an earlier start could not be used and were made anew ({error})",)
    made = quantize(asked)
    model = assemble(made.parts, _empty(asked), dtype=asked.dtype, activations=asked.activations, source=asked.source)
    loss = None if made.predictions is None else compare(made.predictions, model)
    if asked.keep:
        path = packed_path(asked.source, asked.scheme)  # again: its files may have been fetched meanwhile
        try:
            if path is None:
                raise OSError("the checkpoint's files are not in one folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            save_packed(path, made.parts, {"before": made.before, "loss": None if loss is None else loss.as_dict()})
        except OSError as error:
            path = None
            notes = (*notes, f"the packed weights could not be kept, so the next start rounds them again ({error})")
    file = None if path is None else str(path)
    return model, summarize(made.parts, asked.scheme, before=made.before, loss=loss, file=file, notes=notes)


def packed_path(source: str, scheme: Scheme) -> Path | None:
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
        UnsupportedError: it is quantised already, or its decoder layers are not found.
        ValueError: a weight is not finite.
    """
    model = asked.kind.from_pretrained(asked.source, dtype="auto", attn_implementation=asked.attention).eval()
    check_floats(model.config)
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


def check_floats(config: Any) -> None:
    """Refuse a checkpoint that is quantised already.

    Raises:
        UnsupportedError: it is.
    """
    found = getattr(config, "quantization_config", None)
    if found is not None:
        method = found.get("quant_method") if isinstance(found, Mapping) else getattr(found, "quant_method", None)
        raise UnsupportedError(
            f"the checkpoint is quantised already ({getattr(method, 'value', method)}); leave out `quantize`, or name "
            "the model that it was made from."
        )


def _load_kept(asked: QuantizeRequest, path: Path) -> tuple[Any, QuantizedSummary]:
    """Return a model of packed weights that an earlier start has kept."""
    found = load_packed(path)
    model = assemble(found.parts, _empty(asked), dtype=asked.dtype, activations=asked.activations, source=str(path))
    return model, summarize(found.parts, asked.scheme, file=str(path), before=found.facts["before"])


def _empty(asked: QuantizeRequest) -> Any:
    return open_empty(asked.source, asked.kind, dtype=asked.dtype, attention=asked.attention)


def open_empty(source: str, kind: Any, *, dtype: torch.dtype, attention: str | None) -> Any:
    """Return an empty model of a checkpoint's config, with its generation config; see `empty_model`."""
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(source)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # its weights are none of transformers' quantised ones
    model = empty_model(config, kind, dtype=dtype, attention=attention)
    model.config.name_or_path = source
    with contextlib.suppress(OSError):  # without one, the config's own stays
        model.generation_config = GenerationConfig.from_pretrained(source)
    return model
