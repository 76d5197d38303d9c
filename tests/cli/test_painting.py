"""Text and colours."""

from __future__ import annotations

import pytest

from speculant.api.result import Piece
from speculant.cli.painting import GREEN, RESET, YELLOW, can_paint, paint
from speculant.decoding.sequence import Source


def test_tokens_are_painted_by_source() -> None:
    """Neighbours of one source share a colour, plain tokens and empty texts get none."""
    sources = [Source.PLAIN, Source.ACCEPTED, Source.ACCEPTED, Source.BONUS]
    piece = Piece("abcd", [1, 2, 3, 4], ["a", "b", "c", "d"], sources)
    assert paint(piece) == f"a{GREEN}bc{RESET}{YELLOW}d{RESET}"
    assert paint(Piece("", [1], [""], [Source.BONUS])) == ""


def test_colours_honour_pipes_and_no_color(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A wish that cannot be met is answered, not ignored; NO_COLOR wins over FORCE_COLOR."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert not can_paint(True)
    assert "--color has no effect" in capsys.readouterr().err
    assert not can_paint(False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert can_paint(True)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("NO_COLOR", "1")
    assert not can_paint(True)
