"""How drafts are made inside another engine, which calls a drafter: vLLM and SGLang."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from speculant.options import kinds, option
from speculant.options.drafting import DEFAULT_METHOD, DraftingOptions
from speculant.options.serving import ServingOptions

DRAFTED_PER_STEP = 256

_option = partial(option.option, panel="Drafting", flag="")


def read_object(value: Any) -> Mapping[str, Any]:
    """Return an object that is given as such, or as JSON."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        found = value
    if not isinstance(found, Mapping):
        raise ValueError(f'must be an object such as {{"row_memory": 8}}, not {value!r}.')
    return dict(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostingOptions:
    """How to draft inside an engine.

    Attributes:
        method: a drafting method that learns from text alone.
        settings: settings of its drafter; None for the defaults.
        memory: memory file to begin with, if it exists, and to save to; None to forget everything at the end.
        memory_limit: maximum size of the drafter's memory in bytes.
        corpus: memory file to begin with where there is no `memory` file yet; it is only read.
        base: frozen bases under the memory; "auto" for those of the user's folder that fit. They are not found unasked:
            ranks on several machines must draft the same tokens, and their folders may differ.
        share: the URL of a store that replicas learn from each other through, see `sharing.address`; None for none.
        save_seconds: time between saves in the background; it is also saved at exit.
        drafted_per_step: maximum tokens drafted in a step, for all its requests together.
        min_probability: minimum probability of being accepted, as the drafter estimates it, of a drafted token; each
            costs time where passes are limited by computation, as on CPUs and under load.
        allow_untested: whether engines of versions that were not tested are accepted.

    Raises:
        UsageError: a value makes no sense.
    """

    method: str = option.reuse(
        DraftingOptions, "method", default=DEFAULT_METHOD, help="drafting method, see `speculant methods`"
    )
    settings: Mapping[str, Any] | None = option.reuse(
        DraftingOptions, "settings", help="settings of the method, as JSON or a table", read_all=read_object
    )
    memory: Path | None = option.reuse(DraftingOptions, "memory", kind=kinds.PATH)
    memory_limit: int = option.reuse(DraftingOptions, "memory_limit")
    corpus: Path | None = option.reuse(ServingOptions, "corpus")
    base: Any = option.reuse(
        DraftingOptions,
        "base",
        default=(),
        help="frozen bases under the memory, or auto for those in your folder that fit; default: none",
    )
    share: str | None = option.reuse(
        DraftingOptions, "share", help="store through which replicas share what they learn; only the first rank shares"
    )
    save_seconds: float = option.reuse(ServingOptions, "save_seconds")
    drafted_per_step: int = _option(
        DRAFTED_PER_STEP, "maximum tokens drafted per step, over all requests", kinds.whole(0)
    )
    min_probability: float = _option(
        0.0,
        "minimum acceptance probability of a drafted token; 0.02 to 0.1 where every row costs time; default: 0",
        kinds.number(0, 1, metavar="P"),
        old_names=("least_probability",),
    )
    allow_untested: bool = _option(False, "accept versions and configurations that were not tested", kinds.FLAG)

    def __post_init__(self) -> None:
        option.read_values(self)
