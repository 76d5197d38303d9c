"""Creates the parts of a quantised model: by rounding a float checkpoint, or reading one that is already quantised.

A checkpoint is mapped, and each matrix is rounded or unpacked and released before the next is read, so that only the
packed weights take memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.checkpoint_files import open_checkpoint
from speculant.engines.hf.quantized.checkpoints.experts import join_experts
from speculant.engines.hf.quantized.checkpoints.formats import find_format
from speculant.engines.hf.quantized.experts import expert_weights
from speculant.engines.hf.quantized.loss import Predictions, predict, sample_ids
from speculant.engines.hf.quantized.modules import Activations
from speculant.engines.hf.quantized.parts import Parts, matrices, named_floats, quantizable_experts
from speculant.engines.hf.quantized.rounding import Scheme, choose_scheme, round_weight
from speculant.engines.hf.quantized.summary import count_bytes
from speculant.engines.hf.quantized.weight import pack


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeRequest:
    """The way to quantise a checkpoint.

    Attributes:
        source: a folder or hub id.
        kind: transformers' class for its config.
        scheme: "int8" or "int4" for a float checkpoint; None for one that is already quantised.
        dtype: dtype name of the model's floats: float32, bfloat16, or auto for the checkpoint's; None for float32.
        attention: transformers' attn_implementation; None for its default.
        activations: whether the products round their inputs to 8 bits.
        keep: whether packed weights are stored in, and loaded from, the user's cache folder.
        tokenizer: tokenizer for the sample, or None.
        sample: the text on which the loss is measured; None for a built-in one.
    """

    source: str
    kind: Any
    scheme: Scheme | None
    dtype: str | None = None
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
        predictions: the float model's predictions on the sample, or None.
    """

    parts: Parts
    before: int | None = None
    predictions: Predictions | None = None


def quantize(asked: QuantizeRequest) -> Quantized:
    """Load a float checkpoint and round its matrices.

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

    def take(name: str, matrix: Tensor, *, end: bool = False) -> None:
        assert asked.scheme is not None
        try:
            weights[name] = round_weight(matrix, choose_scheme(asked.scheme, name, matrix, end=end))
        except ValueError as error:
            raise UnsupportedError(f"{name} cannot be rounded to {asked.scheme}: {error}.") from error

    for name in matrices(model):
        parameter = model.get_parameter(name)
        take(name, parameter, end=id(parameter) in ends)
        parameter.data = parameter.data.new_empty(0)  # released, wherever it is tied
    gone = set(weights)
    for path, module in [*quantizable_experts(model)]:
        for projection, matrix in expert_weights(module).items():
            take(f"{path}.{projection}", matrix)
        for each in ("gate_up_proj", "down_proj"):
            module.get_parameter(each).data = torch.empty(0)
            gone.add(f"{path}.{each}")
    floats = {name: each.detach() for name, each in named_floats(model) if name not in gone}
    return Quantized(parts=Parts(weights=weights, floats=floats), before=before, predictions=predictions)


def read_checkpoint(asked: QuantizeRequest, model: Any, settings: Mapping[str, Any]) -> Quantized:
    """Read a checkpoint that is already quantised.

    Args:
        asked: the request.
        model: an empty model for its config.
        settings: the config's `quantization_config`.

    Raises:
        UnsupportedError: there is no reader for its format, or no layout for one of its matrices.
        ModelNotFoundError: weights are missing or damaged.
    """
    form = find_format(settings)
    if form is None or form.read is None:
        raise UnsupportedError(f"weights in the format {settings.get('quant_method')!r} are not supported.")
    with open_checkpoint(asked.source) as files:
        weights, orders, used = {}, {}, set[str]()
        names = _match_names(model)
        for matrix in form.read(files, settings):
            name = names(matrix.name)
            weights[name] = pack(matrix.values)
            if matrix.order is not None:
                orders[name] = matrix.order
            used.update(matrix.tensors)
        floats = {names(name): files.read(name).clone() for name in files if name not in used}
    joined = join_experts(weights)
    if shuffled := [name for name in orders if name not in joined]:
        raise UnsupportedError(
            f"{shuffled[0]} takes its inputs in an order of its own (desc_act), which is not supported for experts."
        )
    return Quantized(parts=Parts(weights=joined, floats=floats, orders=orders))


def _match_names(model: nn.Module) -> Callable[[str], str]:
    """Return a function from a tensor's name in a checkpoint to its name in an empty model for the same config.

    They are equal, unless the class has renamed its modules since.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    renamings = [each for each in get_model_conversion_mapping(model) if isinstance(each, WeightRenaming)]
    prefix: Any = model.base_model_prefix
    places = {name: True for name, _ in named_floats(model)}

    def rename(name: str) -> str:
        return name if name in places else str(rename_source_key(name, renamings, [], prefix, places)[0])

    return rename
