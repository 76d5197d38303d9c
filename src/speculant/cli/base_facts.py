"""What the header of a base says of the texts it was built from, for people."""

from __future__ import annotations

from typing import Any

from speculant.cli.terminal import counted

NAMES = ("sources", "license", "source", "made")


def provenance(corpus: dict[str, Any] | None) -> list[str]:
    """Return what the header of a base says of its texts, for people; nothing for other memories."""
    if corpus is None:
        return []
    made = corpus.get("made") or {}
    return [
        *(f"source      {source_line(source)}" for source in corpus.get("sources", [])),
        f"license     {corpus.get('license') or 'not named by the builder'}",
        f"from        {corpus.get('source') or 'not named by the builder'}",
        f"built       {made.get('date', 'at an unknown date')} by Speculant {made.get('version', '(version unknown)')}",
    ]


def source_line(source: dict[str, Any]) -> str:
    """Return one of the sources in a base's header for people."""
    line = (
        f"{source['name']}, weight {source['weight']:g}: {counted(source['documents'], 'document')}, "
        f"{counted(source['tokens'], 'token')}"
    )
    return f"{line}; {counted(source['excluded'], 'document')} excluded" if source["excluded"] else line
