"""The number of CPU threads: passes of small models take microseconds, less than waking up threads."""

from __future__ import annotations

import os
from typing import Any

PARAMETERS_PER_THREAD = 10_000_000
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def set_threads(model: Any, asked: int | None) -> str:
    """Set the number of threads that a model's passes use.

    Args:
        model: a loaded model.
        asked: the requested number; None for one that suits the model, unless the environment sets one.

    Returns:
        A description of the number and its reason.
    """
    import torch

    from speculant.engines.hf.quantized.model_weights import count_weights

    before = torch.get_num_threads()
    if asked is not None:
        torch.set_num_threads(asked)
        return f"{asked}, as asked"
    if model.device.type != "cpu":
        return f"{before}; the model is on {model.device.type}"
    named = next((name for name in VARIABLES if os.environ.get(name)), None)
    if named is not None:
        return f"{before}, by {named}"
    parameters = count_weights(model) or model.num_parameters()
    fitting = threads_for(parameters, before)
    torch.set_num_threads(fitting)
    return f"{fitting} of {before} for {parameters / 1e6:.0f} million parameters; --threads sets another number"


def threads_for(parameters: int, maximum: int) -> int:
    """Return the number of threads for a model with `parameters` weights."""
    return min(maximum, max(1, parameters // PARAMETERS_PER_THREAD))
