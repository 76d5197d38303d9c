"""A reader of pages that minds their elements."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta"}


class Balance(HTMLParser):
    """Checks that every element is closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Remember it."""
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        """Closes itself."""

    def handle_endtag(self, tag: str) -> None:
        """Close the last."""
        assert self.open.pop() == tag
