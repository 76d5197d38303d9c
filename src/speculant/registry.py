"""The one table of methods; the command line, the README and the docs print it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from speculant.errors import UnknownMethodError

if TYPE_CHECKING:
    from speculant.drafters.base import Drafter


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to draft.

    Attributes:
        name: what users type.
        family: where it stands in the survey's taxonomy (Xia et al., arXiv 2401.07851, figure 3).
        summary: what it does, in a line.
        drafter: "module:class" of its drafter, imported when it is used.
        memory: whether it learns something that can be saved.
        exactness: "lossless", or "(lossy)" with the reason.
        source: paper and arXiv id.
    """

    name: str
    family: str
    summary: str
    drafter: str
    memory: bool
    exactness: str
    source: str

    def build(self, **options: Any) -> Drafter:
        """Import and construct the drafter with its keyword options."""
        module, name = self.drafter.split(":")
        drafter: Drafter = getattr(import_module(module), name)(**options)
        return drafter


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method(
                name="none",
                family="plain decoding",
                summary="no drafts: the same loop, one token a pass; the baseline",
                drafter="speculant.drafters.base:NoDrafter",
                memory=False,
                exactness="lossless",
                source="-",
            ),
            Method(
                name="aded",
                family="training-free, adaptive n-gram memory",
                summary="tri-gram table that adapts to the target, best-first tree; the default",
                drafter="speculant.drafters.aded:AdedDrafter",
                memory=True,
                exactness="lossless",
                source="Liu et al. 2024, arXiv 2407.12021, improved",
            ),
            Method(
                name="aded-paper",
                family="training-free, adaptive n-gram memory",
                summary="ADED as published, constant by constant, for comparison",
                drafter="speculant.drafters.aded:AdedPaperDrafter",
                memory=False,
                exactness="lossless",
                source="Liu et al. 2024, arXiv 2407.12021",
            ),
        )
    }
)


def find_method(name: str) -> Method:
    """Return the method of that name.

    Raises:
        UnknownMethodError: there is none; the message suggests the nearest name.
    """
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(name, METHODS, n=1, cutoff=0.4)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    raise UnknownMethodError(
        f"there is no method '{name}'. {hint}`speculant methods` lists them: {', '.join(METHODS)}."
    )
