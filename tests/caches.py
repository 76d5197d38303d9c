"""Cache folders of tests that must not find what others have kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from speculant.core.folders import cache_folder
from speculant.engines.hf.cpu.build import BuildError, load_native


def use_empty_cache(monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """Keep caches below `home` from here on; return the folder, empty except for the compiled code.

    Without that code the first pass would compile it again, which takes longer than the test.
    """
    try:
        load_native()
        compiled = list(cache_folder().glob("layers-*.so"))
    except BuildError:
        compiled = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    folder = home / "speculant"
    folder.mkdir(parents=True, exist_ok=True)
    for library in compiled:
        shutil.copy2(library, folder)
    return folder
