"""The experts of a layer in a GGUF file: one tensor of all experts per projection, [E, outs, k].

Quantised ones become one `QuantizedExperts`, whose matrices are the same bytes as [E * outs, k]. Floats become
transformers' parameters, where gate and up are one tensor whose axes and order differ between classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from speculant.core.errors import ModelError, UnsupportedError
from speculant.engines.hf.quantized.experts import PROJECTIONS, expert_weights, is_experts
from speculant.engines.hf.quantized.gguf.file import GgufFile, GgufTensor
from speculant.engines.hf.quantized.weight import OUTS

BIAS = "_bias"  # suffix of bias names


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ExpertTensors:
    """The tensors of one layer's experts in a file.

    Attributes:
        path: path of the experts' module.
        tensors: by the names in `PROJECTIONS`, with the suffix `BIAS` for biases.
    """

    path: str
    tensors: dict[str, GgufTensor] = field(default_factory=dict)

    @property
    def is_quantized(self) -> bool:
        """Whether the matrices are quantised; all are, or none."""
        return self.tensors["gate_proj"].is_quantized

    def check(self, file: GgufFile, module: Any) -> None:
        """Check that the tensors match a module.

        Raises:
            ModelError: one is missing, or has the wrong shape.
            UnsupportedError: the module's class is unknown, or only some of the tensors are quantised.
        """
        if not is_experts(module):
            raise UnsupportedError(
                f"this release of transformers has experts in {type(module).__name__} that Speculant does not know; "
                "install a newer one, or use llama.cpp (--engine llamacpp)."
            )
        biased = module._parameters.get("down_proj_bias") is not None
        count = len(module.down_proj)
        shapes = {name: tuple(weight.shape) for name, weight in expert_weights(module).items()}
        for name in (*PROJECTIONS, *(each + BIAS for each in PROJECTIONS if biased)):
            tensor = self.tensors.get(name)
            if tensor is None:
                raise ModelError(f"{file.path} lacks the tensor of '{self.path}.{name}'. Convert the model again.")
            outs, k = shapes[name.removesuffix(BIAS)]
            expected = (count, outs // count) if name.endswith(BIAS) else (count, outs // count, k)
            if tensor.shape != expected:
                raise ModelError(
                    f"the tensor '{tensor.name}' of {file.path} has the shape {list(tensor.shape)}, but by its "
                    f"settings the experts have {list(expected)}. Convert the model again."
                )
        matrices = [self.tensors[name] for name in PROJECTIONS]
        if len({each.is_quantized for each in matrices}) > 1:
            raise UnsupportedError(
                f"experts of '{self.path}' are only partly quantised in {file.path}. Use llama.cpp (--engine llamacpp)."
            )
        if self.is_quantized and any(each.shape[1] % OUTS for each in matrices):
            raise UnsupportedError(
                f"the outputs of the experts of {file.path} are not a multiple of {OUTS}. Use llama.cpp (--engine "
                "llamacpp)."
            )

    def matrices(self) -> Iterator[tuple[str, GgufTensor]]:
        """Yield the quantised matrices, [E * outs, k], by the names for `replace_weights`."""
        for name in PROJECTIONS:
            tensor = self.tensors[name]
            count, outs, k = tensor.shape
            yield f"{self.path}.{name}", replace(tensor, shape=(count * outs, k))

    def parameters(self, module: Any, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the float parameters by name: biases, and matrices that are not quantised."""
        found = dict[str, Tensor]()
        if not self.is_quantized:
            each = {name: self.tensors[name].floats().to(dtype) for name in PROJECTIONS}
            both = _join(module, each["gate_proj"], each["up_proj"])
            axes = (1, 2) if module.is_transposed else (1, 1)
            found["gate_up_proj"] = both.transpose(*axes).contiguous()
            found["down_proj"] = each["down_proj"].transpose(*axes).contiguous()
        if "down_proj" + BIAS in self.tensors:
            gate, up, down = (self.tensors[name + BIAS].floats().to(dtype) for name in PROJECTIONS)
            found["gate_up_proj" + BIAS] = _join(module, gate, up)
            found["down_proj" + BIAS] = down.clone()
        return {f"{self.path}.{name}": values for name, values in found.items()}

    def float_tensors(self) -> Iterator[GgufTensor]:
        """Yield the tensors of `parameters`."""
        for name, tensor in self.tensors.items():
            if not tensor.is_quantized or name.endswith(BIAS):
                yield tensor


def gather_experts(found: Mapping[str, GgufTensor]) -> list[ExpertTensors]:
    """Group tensors by "path.projection" into the experts of each layer."""
    layers: dict[str, ExpertTensors] = {}
    for name, tensor in found.items():
        path, _, projection = name.rpartition(".")
        layers.setdefault(path, ExpertTensors(path=path)).tensors[projection] = tensor
    return list(layers.values())


def _join(module: Any, gate: Tensor, up: Tensor) -> Tensor:
    """Join gate and up to [E, 2 * I, ...], concatenated or interleaved."""
    if module.is_concatenated:
        return torch.cat((gate, up), dim=1)
    return torch.stack((gate, up), dim=2).flatten(1, 2)
