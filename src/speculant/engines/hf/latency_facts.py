"""What the latency of a model's passes depends on, by which measured latencies are stored."""

from __future__ import annotations

from typing import Any

import torch

from speculant.engines.hf.acceleration import Acceleration
from speculant.engines.hf.cpu.build import processor

_NOT_THE_SHAPE = {"_name_or_path", "transformers_version", "architectures"}


def find_latency_facts(model: Any, acceleration: Acceleration) -> tuple[object, ...]:
    """Return the model's config, dtype, device, threads, and the code of its layers."""
    device = model.device
    return (
        {key: value for key, value in model.config.to_dict().items() if key not in _NOT_THE_SHAPE},
        getattr(model.config, "_attn_implementation", None),
        str(model.dtype),
        torch.cuda.get_device_name(device) if device.type == "cuda" else [device.type, processor()],
        torch.get_num_threads(),
        *acceleration.settings(),
        torch.__version__,
    )
