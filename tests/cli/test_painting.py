"""Text, colours and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculant.api.result import Piece
from speculant.cli.output import GREEN, RESET, YELLOW, check_writable, painted, write_json
from speculant.core.errors import FileError
from speculant.decoding.step import Source


def test_tokens_are_painted_by_source() -> None:
    """Neighbours of one source share a colour, plain tokens and empty texts get none."""
    sources = [Source.PLAIN, Source.ACCEPTED, Source.ACCEPTED, Source.BONUS]
    piece = Piece("abcd", [1, 2, 3, 4], ["a", "b", "c", "d"], sources)
    assert painted(piece) == f"a{GREEN}bc{RESET}{YELLOW}d{RESET}"
    assert painted(Piece("", [1], [""], [Source.BONUS])) == ""


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    """Each refusal names the reason; a new file and an old one are both fine."""
    (tmp_path / "old").write_text("")
    check_writable(str(tmp_path / "old"))
    check_writable(str(tmp_path / "new"))
    check_writable("new")
    with pytest.raises(FileError, match="it is a folder"):
        check_writable(str(tmp_path))
    with pytest.raises(FileError, match="there is no folder"):
        check_writable(str(tmp_path / "none" / "new"))


def test_folders_without_permission_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permission is asked of the folder for a new file."""
    monkeypatch.setattr("os.access", lambda place, _: place != tmp_path)
    with pytest.raises(FileError, match="permission denied"):
        check_writable(str(tmp_path / "new"))


def test_a_full_disk_is_an_error_of_the_file(tmp_path: Path) -> None:
    """What only turns out at the end is still no traceback."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(FileError, match="No space left"):
        write_json("/dev/full", {})
