"""Checks that the transformers release can build models with quantised weights."""

from __future__ import annotations

import transformers

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.prompt import slices_by_length


def check_release() -> None:
    """Refuse releases that implement experts and tied heads differently.

    Raises:
        UnsupportedError: this is one of them.
    """
    if not slices_by_length():
        raise UnsupportedError(
            f"weights stay quantised with a newer transformers than {transformers.__version__}: "
            "pip install --upgrade transformers, within the range that this package names."
        )
