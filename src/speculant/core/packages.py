"""Check that packages of optional extras are installed, without importing them, before work that needs them begins."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from speculant.core.errors import UnsupportedError


def check_packages(modules: Sequence[str], *, what: str, extra: str) -> None:
    """Check that modules can be imported.

    Args:
        modules: names of the modules.
        what: the feature that needs them, for the message.
        extra: the extra of this package that installs them.

    Raises:
        UnsupportedError: a module is not installed.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        names = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        raise UnsupportedError(f"{names}, which {what} needs: pip install 'speculant[{extra}]'.")
