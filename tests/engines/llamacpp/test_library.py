"""llama-cpp-python is imported when it is needed, and its messages are kept."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from speculant.core.errors import UnsupportedError
from speculant.engines.llamacpp import library
from speculant.engines.llamacpp.library import LogLines, import_llamacpp


def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [each for each in sys.modules if each.split(".")[0] == "llama_cpp"]:
        monkeypatch.delitem(sys.modules, loaded)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named."""
    without_package(monkeypatch)
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(UnsupportedError, match=r"not installed: pip install 'speculant\[llamacpp\]'"):
        import_llamacpp()


def test_a_library_for_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message tells that the package is there and must be built anew."""
    without_package(monkeypatch)
    (tmp_path / "llama_cpp.py").write_text("raise RuntimeError('Failed to load shared library')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnsupportedError, match=r"does not run here: Failed to load.*Build it again"):
        import_llamacpp()


@pytest.mark.parametrize("version", ["0.3.20", "0.4.0"])
def test_other_versions_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields of its structures differ between releases, and would be set in silence."""
    fake: Any = SimpleNamespace(__version__=version)
    monkeypatch.setattr(library, "import_llamacpp", lambda: fake)
    with pytest.raises(
        UnsupportedError, match=rf"{version} is installed, but versions from 0\.3\.36 to below 0\.4 are supported"
    ):
        library.load_library.__wrapped__()


def test_the_log_names_the_reason() -> None:
    """The first line that speaks of an error is the reason; progress dots and other messages are not kept."""
    log = LogLines()
    for level, text in ((2, b"loading\n"), (1, b"chatter"), (3, b"tensor data is not within the file\n"), (5, b".")):
        log.add(level, text)
    log.add(3, b"error loading model\n")
    assert log.reason() == "error loading model"
    assert log.mentions("within the file")
    assert not log.mentions("chatter")
    log.clear()
    assert log.reason() == ""
