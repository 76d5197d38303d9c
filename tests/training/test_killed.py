"""A training that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import trainings
from trainings import tiny_training

LIMIT = 120  # seconds until a process that does not answer is given up
PROGRAM = """
import sys
sys.path[:0] = sys.argv[3:]
import torch
torch.set_num_threads(1)
import json
from pathlib import Path
from trainings import tiny_training
changes = json.loads(sys.argv.pop(2))
tiny_training(Path(sys.argv[1]), steps=60, evaluate_every=30, files={"checkpoint_steps": 3}, **changes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"kind": "eagle"}, {"kind": "draft-model", "on_policy": 0.5, "new_tokens": 8}])
def test_a_killed_training_resumes_to_the_same_weights(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Guards the promise of --resume against SIGKILL, at whatever point it comes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tiny_training(tmp_path / "whole", steps=60, evaluate_every=30, **changes)
        state = tmp_path / "killed" / ".training" / "state.pt"
        folders = [str(Path(trainings.__file__).parent), *filter(None, sys.path)]
        given = [str(tmp_path / "killed"), json.dumps(changes), *folders]
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, *given])
        deadline = time.monotonic() + LIMIT
        while not state.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert state.exists()
        tiny_training(tmp_path / "killed", steps=60, evaluate_every=30, files={"resume": True}, **changes)
    finally:
        torch.set_num_threads(before)
    whole, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
