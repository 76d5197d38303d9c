"""Files that commands write: none is destroyed by a slip."""

from __future__ import annotations

from pathlib import Path

import pytest

from memories import saved
from speculant.cli.files import JSON, PAGE, check_memory_output, check_result, check_writable, write_json
from speculant.core.errors import FileError, UsageError


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


@pytest.mark.parametrize(
    ("form", "content", "fine"),
    [
        (JSON, '{"rows": []}', True),
        (JSON, "[1]", True),
        (JSON, "", True),
        (JSON, "import os\n", False),
        (JSON, '{"a": 1}\n{"a": 2}\n', False),
        (JSON, "\xff", False),
        (PAGE, "<!doctype html>\n<p>", True),
        (PAGE, "\n<HTML>", True),
        (PAGE, "# notes\n<html>", False),
    ],
)
def test_a_result_replaces_only_its_like(form: str, content: str, fine: bool, tmp_path: Path) -> None:
    """An earlier result may go; a program, prompts a line each or notes may not."""
    (tmp_path / "f").write_bytes(content.encode("latin-1"))
    if fine:
        check_result("--json", str(tmp_path / "f"), form)
    else:
        with pytest.raises(UsageError, match="it is not overwritten"):
            check_result("--json", str(tmp_path / "f"), form)


def test_a_result_is_no_input(tmp_path: Path) -> None:
    """Not by another name, not by a link, and not if neither exists yet."""
    (tmp_path / "in.json").write_text("[]")
    (tmp_path / "link").symlink_to(tmp_path / "in.json")
    (tmp_path / "hard").hardlink_to(tmp_path / "in.json")
    for name in ("in.json", "link", "hard", "../" + tmp_path.name + "/in.json"):
        with pytest.raises(UsageError, match="also another file"):
            check_result("--json", str(tmp_path / name), JSON, [None, tmp_path / "in.json"])
    with pytest.raises(UsageError, match="also another file"):
        check_result("--json", str(tmp_path / "new"), JSON, [tmp_path / "." / "new"])
    check_result("--json", None, JSON)
    check_result("--json", "-", JSON, ["-"])


def test_memories_are_replaced_only_by_force(tmp_path: Path) -> None:
    """Anything else is not replaced at all, but for an empty file, which holds nothing."""
    memory = str(saved(tmp_path / "m", "sam", [1, 2, 3]))
    with pytest.raises(UsageError, match="--force"):
        check_memory_output(memory, [], force=False)
    check_memory_output(memory, [], force=True)
    (tmp_path / "a.py").write_text("x = 1")
    with pytest.raises(UsageError, match="not a memory file"):
        check_memory_output(str(tmp_path / "a.py"), [], force=True)
    with pytest.raises(UsageError, match="one of the inputs"):
        check_memory_output(str(tmp_path / "a.py"), [tmp_path / "a.py"], force=True)
    (tmp_path / "empty").write_text("")
    check_memory_output(str(tmp_path / "empty"), [], force=False)
