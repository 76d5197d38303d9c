"""Which releases of transformers build models whose weights stay quantised."""

from __future__ import annotations

import transformers

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.prompt import slices_by_length


def check_release() -> None:
    """Refuse releases whose classes of experts and tied heads are made in another way.

    Raises:
        UnsupportedError: this is one of them.
    """
    if not slices_by_length():
        raise UnsupportedError(
            f"weights stay quantised with a newer transformers than {transformers.__version__}: "
            "pip install --upgrade transformers, within the range that this package names."
        )
