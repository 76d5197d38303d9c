"""Several processes that train one head or draft model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import trainings
from trainings import tiny_training

PROGRAM = """
import sys
sys.path[:0] = sys.argv[3:]
import torch
torch.set_num_threads(1)
import json
from pathlib import Path
from trainings import tiny_training
tiny_training(Path(sys.argv[1]), **json.loads(sys.argv[2]))
"""


CHANGES = ({"files": {"cache": 8000}}, {"kind": "draft-model", "on_policy": 0.5, "new_tokens": 8})


@pytest.mark.slow
@pytest.mark.parametrize("changes", CHANGES, ids=["eagle", "draft-model"])
def test_two_processes_are_as_two_accumulated_batches(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Guards torchrun: gradients are averaged, and one process writes what both have trained."""
    tiny_training(tmp_path / "one", accumulate=2, **changes | {"files": {}})
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    folders = [str(Path(trainings.__file__).parent), *filter(None, sys.path)]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(20000 + os.getpid() % 20000)]
    given = [str(tmp_path / "two"), json.dumps(changes), *folders]
    subprocess.run([sys.executable, *launch, str(program), *given], check=True, timeout=300)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=2e-3, rtol=0)  # states were cached in float16
