"""The Markdown table of methods in docs/methods.md."""

from __future__ import annotations

import re
from collections.abc import Sequence

from speculant.registry import VERIFIERS, Method

HEADINGS = ("method", "family", "rule", "requires", "memory", "paper")
BEGIN = "<!-- written by `speculant methods --markdown` -->"
END = "<!-- end of the table of methods -->"

_ARXIV = re.compile(r"\b\d{4}\.\d{5}\b")


def markdown_table(methods: Sequence[Method]) -> str:
    """Return the table with a row for each method, without importing drafters."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *map(_cells, methods)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(method: Method) -> tuple[str, ...]:
    lossy = ", lossy" if VERIFIERS[method.verifier].lossy else ""
    return (
        f"`{method.name}`",
        method.family,
        f"`{method.verifier}`{lossy}",
        method.requires or "-",
        _memory(method),
        _ARXIV.sub(lambda found: f"[{found[0]}](https://arxiv.org/abs/{found[0]})", method.source),
    )


def _memory(method: Method) -> str:
    """Return whether its memory can be saved, and the kind of corpus that it can start with."""
    parts = ["saved"] if method.memory is not None else []
    parts += [f"corpus `{method.corpus}`"] if method.corpus is not None else []
    return ", ".join(parts) or "-"
