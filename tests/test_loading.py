"""What importing the public names loads: the engine, methods and whatever few need come when they are used."""

from __future__ import annotations

import subprocess
import sys

MAX_FILES = 80
SHOWN = """
import sys
import speculant
speculant.Speculator
print(*(name for name in sys.modules if name.split(".")[0] in ("speculant", "torch", "transformers")))
import speculant.bench.replay.workers
print("torch" in sys.modules)
"""


def test_importing_speculator_loads_few_files() -> None:
    """Guards the first import: up to 80 files of ours, without an engine, PyTorch or transformers.

    Replays start processes, which run no model and do without PyTorch, too.
    """
    shown = subprocess.run([sys.executable, "-c", SHOWN], check=True, capture_output=True, text=True).stdout
    *loaded, replays = shown.split()
    assert replays == "False"
    assert "speculant.api.speculator" in loaded
    assert len(loaded) <= MAX_FILES, loaded
    assert not {"torch", "transformers", "speculant.engines.hf.engine"} & set(loaded)
