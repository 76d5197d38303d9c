"""Where models and tokenizers are: a folder, the hub, or the package itself. Nothing is loaded to find out."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from speculant.core.errors import ModelNotFoundError, TokenizerError
from speculant.core.hub import why_missing
from speculant.engines.llamacpp.file import begins_as_gguf

BUNDLED_NAME = "bundled"  # accepted wherever a model, draft model, tokenizer, head or base is named
BUNDLED = "stories"
_FOLDER = "name the folder that holds config.json and the weights"
BUNDLED_DRAFT = "draft"
BUNDLED_HEADS = ("eagle", "mtp", "eagle3", "dflash", "medusa", "exit")


def bundled_model() -> Path:
    """Return the folder of the bundled story model."""
    return Path(str(files("speculant") / "models" / BUNDLED))


def bundled_draft_model() -> Path:
    """Return the folder of the draft model for the bundled model; its tokenizer is the bundled model's."""
    return bundled_model() / BUNDLED_DRAFT


def bundled_heads() -> list[Path]:
    """Return the folders of the heads for the bundled model, the best one first."""
    heads = bundled_model() / "heads"
    return [heads / name for name in BUNDLED_HEADS if (heads / name).is_dir()]


def is_bundled(name: str | None) -> bool:
    """Return whether a name denotes the bundled model: None, "bundled" or its folder."""
    return name is None or means_bundled(name) or (bool(name) and Path(name).resolve() == bundled_model().resolve())


def means_bundled(name: Any) -> bool:
    """Return whether a name is "bundled" and no local folder or file has that name."""
    return name == BUNDLED_NAME and not Path(name).exists()


def find_model(name: str | None) -> str:
    """Return the folder or hub id of a model; None and "bundled" name the bundled model.

    Raises:
        ModelNotFoundError: no model is there, and the name is no hub id. Nothing is loaded to find out.
    """
    if name is None or means_bundled(name):
        return str(bundled_model())
    path = Path(name)
    if begins_as_gguf(path):
        raise ModelNotFoundError(f"{name} is a GGUF file, which --model and Speculator.from_gguf take; or {_FOLDER}.")
    if path.is_file():
        raise ModelNotFoundError(f"{name} is a file; {_FOLDER}.")
    if path.is_dir() and not any((path / each).exists() for each in ("config.json", "adapter_config.json")):
        raise ModelNotFoundError(f"there is no model in {name}: the folder has no config.json.")
    if reason := why_missing(name):
        raise ModelNotFoundError(f"there is no model at {name}: {reason}.")
    return name


def find_draft_model(name: str) -> str:
    """Return the folder or hub id of a draft model; "bundled" names the draft model of the bundled model.

    Raises:
        ModelNotFoundError: the name is a path without a model.
    """
    return str(bundled_draft_model()) if means_bundled(name) else find_model(name)


def find_tokenizer(name: str | None) -> str:
    """Return the folder, file or hub id of a tokenizer; None, "bundled" and its draft model use the bundled one.

    Raises:
        TokenizerError: nothing is there, and the name is no hub id.
    """
    if name is None or means_bundled(name) or Path(name).resolve() == bundled_draft_model().resolve():
        return str(bundled_model())
    if reason := why_missing(name):
        raise TokenizerError(f"there is no tokenizer at {name}: {reason}.")
    return name
