"""Descriptions of a base and its sources for users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from speculant.cli.terminal import count_noun

if TYPE_CHECKING:
    from speculant.corpus.base import BuildSummary

NAMES = ("sources", "license", "source", "made")


def provenance(corpus: dict[str, Any] | None) -> list[str]:
    """Return what a base's header says about its texts, for display; empty for other memories."""
    if corpus is None:
        return []
    made = corpus.get("made") or {}
    return [
        *(f"source      {source_line(source)}" for source in corpus.get("sources", [])),
        f"license     {corpus.get('license') or 'not stated'}",
        f"from        {corpus.get('source') or 'not stated'}",
        f"built       {made.get('date', 'at an unknown date')} by Speculant {made.get('version', '(version unknown)')}",
    ]


def source_line(source: Mapping[str, Any]) -> str:
    """Return one source from a base's header, for display."""
    line = (
        f"{source['name']}, weight {source['weight']:g}: {count_noun(source['documents'], 'document')}, "
        f"{count_noun(source['tokens'], 'token')}"
    )
    return f"{line}; {count_noun(source['excluded'], 'document')} excluded" if source["excluded"] else line


def built_lines(built: BuildSummary) -> list[str]:
    """Return the lines to print about a base that was built."""
    left_out = f"{built.lacking:,} in full lines, {built.surplus:,} beyond 16 per context"
    lines = [
        f"tokens      {built.tokens:,}",
        *(f"source      {line}" for line in map(source_line, built.sources)),
        f"entries     {built.entries:,}; left out {left_out}",
        f"bytes       {built.size:,}: {built.size / built.tokens:.2f} per token",
    ]
    if built.network is not None:
        tokens, size = built.network
        lines.append(f"network     {tokens:,} tokens have vectors; {size:,} of these bytes")
    if built.refused:
        lines.append(f"chats       {built.refused:,} were rejected by the chat template and learned message by message")
    return lines
