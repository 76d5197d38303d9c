"""What several tests of targets share."""

from __future__ import annotations

import ctypes

import pytest

from speculant.engines.hf.cpu.build import BuildError, load_native


@pytest.fixture
def compiled() -> ctypes.CDLL:
    """Return the compiled code; skip where it cannot be built."""
    try:
        return load_native()
    except BuildError as error:
        pytest.skip(str(error))
