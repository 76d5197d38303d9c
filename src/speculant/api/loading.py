"""Getting a model and its tokenizer, from a folder, the hub, or the package itself."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from speculant.api.tokenizer_files import load_tokenizer_file
from speculant.core.errors import ModelNotFoundError, OutOfMemoryError, TokenizerError, UsageError

BUNDLED = "stories"
BUNDLED_DRAFT = "draft"
BUNDLED_HEADS = ("eagle", "eagle3", "dflash", "medusa")


def bundled_model() -> Path:
    """Return the folder of the story model that comes with the package."""
    return Path(str(files("speculant") / "models" / BUNDLED))


def bundled_draft_model() -> Path:
    """Return the folder of the draft model for the bundled model; its tokenizer is the bundled model's."""
    return bundled_model() / BUNDLED_DRAFT


def bundled_heads() -> list[Path]:
    """Return the folders of the heads for the bundled model, the best one first."""
    heads = bundled_model() / "heads"
    return [heads / name for name in BUNDLED_HEADS if (heads / name).is_dir()]


def is_bundled(name: str | None) -> bool:
    """Whether a model's name is the bundled model's: None or its folder."""
    return name is None or (bool(name) and Path(name).resolve() == bundled_model().resolve())


def load_model(
    name: str | None = None,
    *,
    dtype: str | None = None,
    device: str | None = None,
    attention: str | None = None,
) -> tuple[Any, Any]:
    """Load a causal LM and its tokenizer (None if it has none).

    Args:
        name: a folder or a hub id; None for the bundled story model.
        dtype: a torch dtype's name or "auto"; None for float32 on a CPU, the checkpoint's own elsewhere.
        device: a torch device, or "auto" to spread the model (accelerate); None for an accelerator if there is one.
        attention: transformers' attn_implementation; None for its default.

    Raises:
        ModelNotFoundError: no model there, or the hub cannot be reached.
        OutOfMemoryError: it does not fit.
        UsageError: no such dtype or device.
    """
    import torch
    from transformers import AutoModelForCausalLM

    source = str(bundled_model()) if name is None else name
    device = device or default_device()
    dtype = dtype or ("float32" if device == "cpu" else "auto")
    if dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise UsageError(f"there is no dtype '{dtype}'; try float32, bfloat16, float16 or auto.")
    placement = {"device_map": device} if device == "auto" else {}
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation=attention, **placement)
        if not placement:
            model = model.to(device)
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(f"{source} does not fit on {device}. Use a smaller dtype or --device cpu.") from error
    except Exception as error:  # configs, weights and hubs fail in many ways; each ends here with its reason
        raise ModelNotFoundError(_why_not(source, error)) from error
    return model.eval(), load_tokenizer(source, required=False)


def load_config(source: str) -> Any:
    """Load the config of a causal LM from a folder or the hub.

    Raises:
        ModelNotFoundError: there is none, or the hub cannot be reached.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source).get_text_config(decoder=True)
    except Exception as error:  # as many as there are kinds of hubs and configs; each ends here with its reason
        raise ModelNotFoundError(_why_not(source, error)) from error


def load_tokenizer(source: str | None = None, *, required: bool = True) -> Any:
    """Load a tokenizer from a folder, a file, the hub or the bundled model, whose draft model has the same.

    A file of SentencePiece or tiktoken only encodes and decodes text, see `speculant.api.tokenizer_files`.

    Raises:
        TokenizerError: it is required and there is none.
    """
    from transformers import AutoTokenizer

    if source is None or Path(source).resolve() == bundled_draft_model().resolve():
        source = str(bundled_model())
    if Path(source).is_file():
        return load_tokenizer_file(Path(source))
    try:
        return AutoTokenizer.from_pretrained(source)
    except Exception as error:  # whatever a broken tokenizer raises, the way out is the same
        if not required:
            return None
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TokenizerError(
            f"no tokenizer in {source}: {first.rstrip('.')}. Name a folder that has tokenizer.json."
        ) from error


def default_device() -> str:
    """Return "cuda" or "mps" where there is one, else "cpu"."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _why_not(source: str, error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    if Path(source).exists():
        return f"the model in {source} cannot be loaded: {reason}"
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        return f"there is no model at {source}: the folder does not exist."
    return (
        f"there is no folder {source}, and no model of that name could be fetched from the hub: {reason} "
        "Check the spelling and the network, or name a folder."
    )
