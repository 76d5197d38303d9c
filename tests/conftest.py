"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("speculant", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("speculant")
