"""The benchmark names of transformers' own decoding, checked before it is imported."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from speculant.core.errors import UnsupportedError, UsageError

PREFIX = "hf:"
ASSISTED = "hf:assisted"
LOOKUP_TOKENS = 10  # as in transformers' documentation
OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"hf:generate": {}, "hf:prompt-lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS}, ASSISTED: {}}
)


def check_hf(name: str, *, draft_model: bool) -> None:
    """Check a name before anything is loaded.

    Args:
        name: a name in `OPTIONS`.
        draft_model: whether there is one.

    Raises:
        UsageError: there is no such system.
        UnsupportedError: it lacks a draft model.
    """
    if name not in OPTIONS:
        raise UsageError(f"there is no method '{name}'. Of transformers' own there are {', '.join(OPTIONS)}.")
    if name == ASSISTED and not draft_model:
        raise UnsupportedError(f"{ASSISTED} drafts with a smaller model: name it by --draft-model.")
