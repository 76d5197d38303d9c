"""The options with which `generate` is called: those of a request, and what is left out of the model's own config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from speculant.engines.hf.sampling.generate_capture import sampling_options
from speculant.engines.hf.sampling.own_config import CONTRADICTING, contradicts, leave_out_modes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SettledOptions:
    """Options of a request.

    Attributes:
        options: options for `generate`, by name.
        stop: stop strings of the generation config, which `generate` has no tokenizer to find.
        notes: messages for the user.
    """

    options: Mapping[str, Any]
    stop: tuple[str, ...]
    notes: tuple[str, ...]


def settle_options(
    own: GenerationConfig, ids: Tensor, given: Mapping[str, Any], *, constrained: bool
) -> SettledOptions:
    """Return the options for `generate`.

    What a model's generation config asks for that is not decoded here, such as beams, is left out; what the request
    itself asks for stays, to be refused.

    Args:
        own: the model's generation config.
        ids: Int64[1, T], the prompt.
        given: options of the request.
        constrained: whether the text follows a constraint, which also rules against other settings are left out for.

    Raises:
        UsageError: sampling options together with greedy decoding.
    """
    options = {"attention_mask": torch.ones_like(ids), **given}
    without = leave_out_modes(own, asked=options.get("generation_config"), given=options)
    if constrained:
        without |= {name: None for name in CONTRADICTING if contradicts(name, own) and name not in options}
    options |= without
    left = ", ".join(f"{name}={getattr(own, name)!r}" for name in without)
    stop = getattr(options.get("generation_config"), "stop_strings", None) or own.stop_strings or ()
    if stop:
        options["stop_strings"] = None
    temperature, top_p, top_k = (options.pop(name, None) for name in ("temperature", "top_p", "top_k"))
    return SettledOptions(
        options=options | sampling_options(temperature, top_p, top_k, **options),
        stop=tuple(stop) if isinstance(stop, list | tuple) else (stop,),
        notes=(f"left out of the model's generation config: {left}.",) if left else (),
    )
