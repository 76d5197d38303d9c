"""Methods that draft with the target itself."""

from __future__ import annotations

from speculant.registry.method import Method

SELF_DRAFTING: tuple[Method, ...] = ()
