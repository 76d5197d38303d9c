"""The Markdown table of methods in docs/methods.md."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from speculant.registry import VERIFIERS, Method

HEADINGS = ("method", "family", "requires", "memory", "paper")
WIDTH = 120  # of the lines of the documentation

_ARXIV = re.compile(r"\b\d{4}\.\d{5}\b")


def markdown_table(methods: Sequence[Method]) -> str:
    """Return a table with a row for each method, and a sentence on default rules, without importing drafters."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *map(_cells, methods)]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", _rules(methods)])


def _rules(methods: Sequence[Method]) -> str:
    """Return the default acceptance rule of most methods, and the methods that have another one."""
    by_rule = dict[str, list[str]]()
    for method in methods:
        by_rule.setdefault(method.verifier, []).append(f"`{method.name}`")
    usual, *others = sorted(by_rule, key=lambda rule: -len(by_rule[rule]))
    exceptions = [
        f"`{rule}`{' (lossy)' if VERIFIERS[rule].lossy else ''} for {', '.join(by_rule[rule])}" for rule in others
    ]
    text = f"Default acceptance rule: {'; '.join([f'`{usual}`', *exceptions])}."
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def _cells(method: Method) -> tuple[str, ...]:
    return (
        f"`{method.name}`",
        method.family,
        method.requires or "-",
        _memory(method),
        _ARXIV.sub(lambda found: f"[{found[0]}](https://arxiv.org/abs/{found[0]})", method.source),
    )


def _memory(method: Method) -> str:
    """Return whether its memory can be saved, and the kind of corpus that it can start with."""
    parts = ["saved"] if method.memory is not None else []
    parts += [f"corpus `{method.corpus}`"] if method.corpus is not None else []
    return ", ".join(parts) or "-"
