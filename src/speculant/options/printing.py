"""How a command prints what it found."""

from __future__ import annotations

from dataclasses import dataclass

from speculant.options import kinds, option


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintOptions:
    """How a command prints what it found."""

    json: bool = option.option(False, "print JSON", kinds.FLAG)
