"""What names of models, tokenizers and heads mean: paths of this machine, or names on the Hugging Face hub."""

from __future__ import annotations

import difflib
from pathlib import Path

_ADVICE = "Check the spelling and the network, or name a folder; `bundled` is the model that comes with the package."
_ALONE = "Without a network, HF_HUB_OFFLINE=1 uses what has been downloaded and does not wait for the hub."
_OFFLINE = "it is not downloaded, and HF_HUB_OFFLINE is set. Download it where there is a network, or name a folder"
# The first models of the hub have no owner in their names; the hub still takes these for openai-community/gpt2 etc.
OLD_NAMES = frozenset(
    {"ctrl", "distilgpt2", "gpt2", "gpt2-large", "gpt2-medium", "gpt2-xl", "openai-gpt", "t5-base", "t5-large"}
    | {"t5-small", "xlnet-base-cased", "xlnet-large-cased"}
)


def hub_advice() -> str:
    """Return the way out where nothing could be fetched; that of waiting where the hub was asked."""
    return _ADVICE if is_offline() else f"{_ADVICE} {_ALONE}"


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE keeps the hub from being asked."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def asking(name: str) -> str:
    """Return what is said before a name that is no folder here is looked for elsewhere."""
    if is_offline():
        return f"there is no folder {name} here; looking among what has been downloaded (HF_HUB_OFFLINE is set)."
    return f"there is no folder {name} here; asking the hub, which may take a while."


def is_path(name: str) -> bool:
    """Return whether a name can only be a path: it begins like one, or has more parts than names on the hub."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def why_missing(name: str) -> str | None:
    """Return why a name cannot be found, without asking the hub; None for what is here, or may be on the hub."""
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
