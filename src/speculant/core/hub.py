"""Resolution of the names of models, tokenizers and heads: local paths, or names on the Hugging Face hub."""

from __future__ import annotations

import difflib
from pathlib import Path

_ADVICE = "Check the spelling and the network, or name a folder; `bundled` is the model that comes with the package."
_ALONE = "Without a network, HF_HUB_OFFLINE=1 uses what has been downloaded and does not wait for the hub."
_OFFLINE = (
    "it has not been downloaded, and HF_HUB_OFFLINE is set. Download it where there is a network, or name a folder"
)
# The earliest models have no owner in their names; the hub still resolves these to openai-community/gpt2 etc.
OLD_NAMES = frozenset(
    {"ctrl", "distilgpt2", "gpt2", "gpt2-large", "gpt2-medium", "gpt2-xl", "openai-gpt", "t5-base", "t5-large"}
    | {"t5-small", "xlnet-base-cased", "xlnet-large-cased"}
)


def hub_advice() -> str:
    """Return advice for a failed download; if the hub was asked, including how to avoid the wait."""
    return _ADVICE if is_offline() else f"{_ADVICE} {_ALONE}"


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids access to the hub."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def asking(name: str) -> str:
    """Return the message shown before a name that is not a local folder is looked up elsewhere."""
    if is_offline():
        return f"there is no folder {name} here; looking it up among the downloaded models (HF_HUB_OFFLINE is set)."
    return f"there is no folder {name} here; looking it up on the hub, which may take a while."


def title(name: str) -> str:
    """Return a short name for a model or head: a name on the hub, or a folder without its path."""
    return Path(name).resolve().name if Path(name).exists() else name


def is_path(name: str) -> bool:
    """Return whether a name can only be a path: it starts like one, or has more parts than a name on the hub."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def why_missing(name: str) -> str | None:
    """Return why a name cannot be found, without asking the hub; None if it exists locally or may exist on the hub."""
    if Path(name).exists():
        return None
    if is_path(name):
        return "the folder does not exist"
    from huggingface_hub import constants

    if (Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}").is_dir():
        return None
    if "/" not in name and name not in OLD_NAMES:
        meant = difflib.get_close_matches(name, ["bundled"], n=1)
        hint = "; `bundled` is the model that comes with the package" if meant else ""
        return f"there is no such folder here, and names on the hub have the form owner/name{hint}"
    return _OFFLINE if is_offline() else None
