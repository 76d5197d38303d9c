"""Settings of all tests."""

from __future__ import annotations

import gc
import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings


def kernel_cache() -> Path:
    """Return a cache folder for these very kernels: numba does not notice when what a kernel calls has changed.

    Kernels call nothing outside files that define kernels, but for constants from `core`.
    """
    spec = find_spec("speculant")
    assert spec is not None
    assert spec.origin is not None
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        source = path.read_bytes()
        if b"njit" in source or path.parent.name == "core":
            digest.update(source)
    return Path(__file__).parent.parent / ".pytest_cache" / f"kernels-{digest.hexdigest()}"


os.environ.setdefault("NUMBA_CACHE_DIR", str(kernel_cache()))
os.environ["SPECULANT_BASES"] = str(Path(__file__).parent.parent / ".pytest_cache" / "bases")  # not the user's own
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parent.parent / ".pytest_cache" / "cache")  # not the user's own
gc.set_threshold(50_000, 20, 20)  # collection creates a million objects, of which nothing can be freed
settings.register_profile("speculant", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("speculant")


def pytest_collection_finish() -> None:
    """Exempt the million objects that collection created from garbage collections, and seed no absent device."""
    import torch  # xdist's first process, which imports this file, needs no torch

    gc.collect()
    gc.freeze()
    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_available():  # it would note a stack trace of every seed, for when it is found
            device.manual_seed_all = lambda _: None


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Freeze objects again after commands, which unfreeze them at their end."""
    # It takes no time; to count what is frozen, and freeze only where nothing is, would take a tenth of a second.
    if hasattr(getattr(item, "module", None), "main"):
        gc.freeze()
