"""The server's options from flags of `speculant serve`, environment variables and the `--config` file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions
from speculant.options.option import options_of
from speculant.options.serving import ServingOptions
from speculant.options.variables import read_variables

GROUPS = (ModelOptions, DraftingOptions, ServingOptions)


def load_settings(
    flags: Mapping[str, Any], *, config: str | Path | None = None
) -> tuple[ModelOptions, DraftingOptions, ServingOptions]:
    """Return the options of the model, of drafting and of the server.

    Args:
        flags: values given on the command line, by name.
        config: a file with lines SPECULANT_NAME=value, or None.

    Raises:
        FileError: the file cannot be read.
        UsageError: a value is invalid, or a variable or line is unknown; the message says where.
    """
    what = "a setting of `speculant serve`"
    given = read_variables(GROUPS, flags=flags, environment=os.environ, file=config, what=what)
    model, drafting, serving = ({name: given[name] for name in options_of(each) if name in given} for each in GROUPS)
    own = ServingOptions(**serving)
    return ModelOptions(**model), DraftingOptions(**drafting | {"memory": None}), own
