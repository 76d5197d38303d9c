"""Packages of the optional extras: looked for, without being imported, before work that needs them begins."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from speculant.core.errors import UnsupportedError


def check_packages(modules: Sequence[str], *, what: str, extra: str) -> None:
    """Check that modules can be imported.

    Args:
        modules: their names.
        what: what needs them, for the message.
        extra: of this package, that they come with.

    Raises:
        UnsupportedError: one is not installed.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        names = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        raise UnsupportedError(f"{names}, which {what} needs: pip install 'speculant[{extra}]'.")
