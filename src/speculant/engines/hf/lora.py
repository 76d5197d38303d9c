"""LoRA adapters (Hu et al. 2021, arXiv 2106.09685) via PEFT: checked against a model's config, merged into its weights.

A merged adapter adds no cost to passes and works with every way of running a model. In 16-bit dtypes the sums are
rounded, as in PEFT's `merge_and_unload`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.core.errors import ModelError, ModelNotFoundError, UnsupportedError
from speculant.core.hub import hub_advice, why_missing
from speculant.core.packages import check_packages
from speculant.engines.hf.loading import outline_model

if TYPE_CHECKING:
    from peft import LoraConfig


def check_adapter(source: str, model: str | None) -> None:
    """Check that an adapter can be merged into a model, reading only the model's config.

    Args:
        source: the adapter's folder or hub id.
        model: a folder or a hub id; None for the bundled model.

    Raises:
        ModelNotFoundError: there is no such adapter, or it cannot be read.
        UnsupportedError: PEFT is not installed, or the adapter is of another kind.
        ModelError: it belongs to another model.
    """
    config, weights = _read(source)
    import torch
    from peft import PeftModel
    from peft.utils.save_and_load import set_peft_model_state_dict

    try:
        with torch.device("meta"):
            wrapped = PeftModel(outline_model(model), config)
            own = {name: each for name, each in weights.items() if each.device.type == "cpu"}
            found = set_peft_model_state_dict(wrapped, own, low_cpu_mem_usage=True)
    except (RuntimeError, ValueError, KeyError) as error:  # mismatched sizes, missing modules
        raise ModelError(f"{_misfit(source, model)} {_reason(error)}") from error
    missing = [name for name in found.missing_keys if ".lora_" in name]
    if missing or found.unexpected_keys:
        named = f"{missing[0]} is missing" if missing else f"there is no place for {found.unexpected_keys[0]}"
        raise ModelError(f"{_misfit(source, model)} {named}.")


def merge_adapter(model: Any, source: str) -> Any:
    """Return a transformers model with an adapter merged into its weights; the model must be the caller's own.

    Args:
        model: a model with float weights.
        source: the adapter's folder or hub id.

    Raises:
        ModelNotFoundError, UnsupportedError: see `check_adapter`.
        ModelError: the adapter does not fit, or its sums are not finite.
    """
    config, _ = _read(source)
    from peft import PeftModel

    try:
        wrapped = PeftModel.from_pretrained(model, source, config=config, torch_device=str(model.device))
        return wrapped.merge_and_unload(safe_merge=True).eval()
    except (RuntimeError, ValueError, KeyError) as error:
        raise ModelError(f"the adapter in {source} cannot be merged: {_reason(error)}") from error


def _read(source: str) -> tuple[LoraConfig, dict[str, Any]]:
    """Return the config and the weights of an adapter."""
    check_packages(("peft",), what="LoRA", extra="lora")
    if reason := why_missing(source):
        raise ModelNotFoundError(f"there is no adapter at {source}: {reason}.")
    from peft import LoraConfig, PeftConfig
    from peft.utils.save_and_load import load_peft_weights

    try:
        config = PeftConfig.from_pretrained(source)
        kind = str(getattr(config.peft_type, "value", config.peft_type))
        if getattr(config, "alora_invocation_tokens", None):
            kind = "aLoRA"  # its weights take effect only from a certain token on
        if not isinstance(config, LoraConfig) or kind == "aLoRA":
            raise UnsupportedError(f"the adapter in {source} is of kind {kind}; only LoRA can be merged into weights.")
        config.inference_mode = True
        return config, load_peft_weights(source, device="cpu")
    except UnsupportedError:
        raise
    except Exception as error:  # damaged files fail in many ways; each ends here with its reason
        advice = "" if Path(source).exists() else f" {hub_advice()}"
        raise ModelNotFoundError(f"the adapter in {source} cannot be read: {_reason(error)}{advice}") from error


def _misfit(source: str, model: str | None) -> str:
    return f"the adapter in {source} was not made for {model or 'the bundled model'}:"


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1 if isinstance(error, RuntimeError) else 0] if lines else type(error).__name__  # sizes come last
