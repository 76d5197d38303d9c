"""Maps the tensors of a GGUF file to a transformers model; complete and checked before any weight is read.

The model is created on the device "meta" from the file's own config. Layer tensors that the model lacks are refused,
since they would be missing in the computation; other unused tensors are listed.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from speculant.core.errors import ModelError, OutOfMemoryError, UnsupportedError
from speculant.engines.free_memory import available_memory
from speculant.engines.hf.quantized.gguf.architectures import Architecture
from speculant.engines.hf.quantized.gguf.config import find_architecture, read_config
from speculant.engines.hf.quantized.gguf.experts import ExpertTensors, gather_experts
from speculant.engines.hf.quantized.gguf.file import GgufFile, GgufTensor
from speculant.engines.hf.quantized.gguf.kinds import packed_bytes

CACHED_TOKENS = 4096  # assumed by the memory estimate
_EXPERTS = ".mlp.experts."
_UNUSED = "attn_rot_embd.weight"  # rotary frequencies in old files, which are computed instead
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GgufPlan:
    """The mapping of a file's tensors to a model.

    Attributes:
        file: the mapped file.
        architecture: architecture of the file.
        model: the model, without weights.
        quantized, floats: tensors by the names of the parameters that they replace.
        experts: tensors of expert layers, where several form one parameter.
        zeros: biases that the model has and the file omits, since they are 0.
        ignored: tensors of the file that the model does not use.
        dtype: dtype of float weights, activations and cache.
    """

    file: GgufFile
    architecture: Architecture
    model: Any
    quantized: Mapping[str, GgufTensor]
    floats: Mapping[str, GgufTensor]
    experts: Sequence[ExpertTensors]
    zeros: tuple[str, ...]
    ignored: tuple[str, ...]
    dtype: torch.dtype

    @property
    def cached_tokens(self) -> int:
        """The number of tokens of a text that the memory estimate includes."""
        return min(CACHED_TOKENS, int(self.model.config.max_position_embeddings))

    @property
    def packed_bytes(self) -> int:
        """The size of the quantised matrices in memory, in bytes."""
        return sum(packed_bytes(each.kind, *each.check_matrix()) for each in self.matrices().values())

    @property
    def float_bytes(self) -> int:
        """The size of all other weights in memory, in bytes."""
        return sum(_count(each) for each in self.float_tensors()) * self.dtype.itemsize

    @property
    def cache_bytes(self) -> int:
        """The size of the keys and values of one text of `cached_tokens`, in bytes."""
        config = self.model.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = config.num_key_value_heads * size
        return int(2 * config.num_hidden_layers * self.cached_tokens * heads * self.dtype.itemsize)

    @property
    def read_bytes(self) -> int:
        """The number of tensor bytes read from the file."""
        return sum(each.size for each in (*self.matrices().values(), *self.float_tensors()))

    def matrices(self) -> dict[str, GgufTensor]:
        """Return the quantised matrices by the names for `replace_weights`, including experts."""
        layers = (each for each in self.experts if each.is_quantized)
        return {**self.quantized, **{name: tensor for each in layers for name, tensor in each.matrices()}}

    def float_tensors(self) -> Iterator[GgufTensor]:
        """Yield the float tensors to read."""
        yield from self.floats.values()
        for each in self.experts:
            yield from each.float_tensors()

    def describe_memory(self) -> str:
        """Return a description of the memory that the model takes."""
        parts = [("packed weights", self.packed_bytes), ("other weights", self.float_bytes)]
        parts.append((f"a text of {self.cached_tokens:,} tokens", self.cache_bytes))
        each = ", ".join(f"{_megabytes(size)} for {name}" for name, size in parts if size)
        return f"{_megabytes(sum(size for _, size in parts))} of memory: {each}"

    def check_memory(self) -> None:
        """Check that the model fits in memory.

        Raises:
            OutOfMemoryError: it does not.
        """
        free, needed = available_memory(), self.packed_bytes + self.float_bytes + self.cache_bytes
        if free and needed > free:
            narrow = "" if self.dtype is torch.bfloat16 else "dtype bfloat16, "
            raise OutOfMemoryError(
                f"{self.file.path} takes {self.describe_memory()}; {_megabytes(free)} are free. Use a smaller "
                f"quantisation, {narrow}or llama.cpp, which maps weights from the file (--engine llamacpp)."
            )


def plan_gguf(file: GgufFile, *, dtype: torch.dtype = torch.float32, attention: str | None = None) -> GgufPlan:
    """Map a file's tensors to a model; no weights are read.

    Args:
        file: the mapped file.
        dtype: dtype of float weights, activations and cache: float32 or bfloat16.
        attention: transformers' attn_implementation; None for its default.

    Raises:
        ModelError: a tensor is missing, or has another shape than the model's.
        UnsupportedError: the architecture, a setting or a kind of its tensors is not supported.
    """
    architecture, config = find_architecture(file), read_config(file)
    model = _make_model(config, dtype, attention)
    parameters = {name: tuple(each.shape) for name, each in model.named_parameters()}
    quantized, floats, experts = dict[str, GgufTensor](), dict[str, GgufTensor](), dict[str, GgufTensor]()
    ignored = []
    for name, tensor in file.tensors.items():
        parameter = architecture.parameter(name)
        if parameter is not None and _EXPERTS in parameter and int(parameter.split(".")[2]) < config.num_hidden_layers:
            experts[parameter] = tensor
            continue
        if parameter is None or parameter not in parameters:
            if name not in architecture.rope:
                ignored.append(name)
            continue
        shape = parameters[parameter]
        if tensor.shape != shape and (1, *tensor.shape) != shape:  # files store the gate of a shared expert as a vector
            raise ModelError(
                f"the tensor '{name}' of {file.path} has the shape {list(tensor.shape)}, but by its settings the "
                f"model has {list(parameters[parameter])}. Convert the model again."
            )
        if tensor.is_quantized:
            _check_quantized(file, tensor, model.get_submodule(parameter.rpartition(".")[0]))
        (quantized if tensor.is_quantized else floats)[parameter] = tensor
    layers = gather_experts(experts)
    for each in layers:
        each.check(file, model.get_submodule(each.path))
    paths = {each.path for each in layers}
    left = (name for name in parameters if name.rpartition(".")[0] not in paths)
    missing = [name for name in left if name not in quantized and name not in floats]
    zeros = tuple(name for name in missing if architecture.optional_biases and name.endswith(".bias"))
    _check_ignored(file, ignored)
    _check_missing(file, architecture, [name for name in missing if name not in zeros])
    return GgufPlan(
        file=file,
        architecture=architecture,
        model=model,
        quantized=quantized,
        floats=floats,
        experts=layers,
        zeros=zeros,
        ignored=tuple(ignored),
        dtype=dtype,
    )


def count_kinds(plan: GgufPlan) -> dict[str, int]:
    """Return the number of the model's weights of each kind, most frequent kind first."""
    counts = Counter[str]()
    for each in (*plan.matrices().values(), *plan.float_tensors()):
        counts[each.kind] += _count(each)
    return dict(counts.most_common())


def _make_model(config: Any, dtype: torch.dtype, attention: str | None) -> Any:
    from transformers import AutoModelForCausalLM

    chosen = {} if attention is None else {"attn_implementation": attention}
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return AutoModelForCausalLM.from_config(config, dtype=dtype, **chosen)
        except (ValueError, RuntimeError, TypeError, AttributeError) as error:
            raise ModelError(f"a model with the settings of the file cannot be made: {error}") from error


def _check_missing(file: GgufFile, architecture: Architecture, missing: list[str]) -> None:
    """Report missing tensors.

    Raises:
        ModelError: tensors are missing.
    """
    if missing:
        names = ", ".join(f"'{architecture.tensor(name)}'" for name in missing[:3])
        rest = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelError(
            f"{file.path} lacks the tensor {names}{rest}. It may be one of several files, or damaged; "
            "download or convert it again."
        )


def _check_ignored(file: GgufFile, ignored: list[str]) -> None:
    """Refuse tensors of layers that the model lacks: they would be missing in the computation.

    Raises:
        UnsupportedError: there are such tensors.
    """
    for name in ignored:
        if name.startswith("blk.") and not name.endswith(_UNUSED):
            raise UnsupportedError(
                f"Speculant's own passes do not support the tensor '{name}' of {file.path}. Use llama.cpp (--engine "
                "llamacpp)."
            )


def _check_quantized(file: GgufFile, tensor: GgufTensor, module: nn.Module) -> None:
    """Check that products are implemented for a quantised tensor.

    Raises:
        UnsupportedError: there is no layout for its kind, or its module is not a linear layer or embedding.
    """
    tensor.check_matrix()
    if not isinstance(module, nn.Linear | nn.Embedding):
        raise UnsupportedError(
            f"the tensor '{tensor.name}' of {file.path} is quantised, which Speculant's own passes do not support for "
            f"a {type(module).__name__}. Use llama.cpp (--engine llamacpp)."
        )


def _count(tensor: GgufTensor) -> int:
    return torch.Size(tensor.shape).numel()


def _megabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
