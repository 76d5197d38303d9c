"""What several tests of heads share."""

from __future__ import annotations

import pytest

from eagles import target_model
from speculant.engines.hf.views.target_parts import HFTargetParts


@pytest.fixture(scope="module")
def target() -> HFTargetParts:
    """Return the parts of a target of 8 layers."""
    return HFTargetParts(target_model())
