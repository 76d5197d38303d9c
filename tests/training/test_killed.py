"""A training that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import trainings
from trainings import tiny_training

LIMIT = 120  # seconds until a process that does not answer is given up
PROGRAM = """
import sys
sys.path[:0] = sys.argv[2:]
import torch
torch.set_num_threads(1)
from pathlib import Path
from trainings import tiny_training
tiny_training(Path(sys.argv[1]), steps=60, evaluate_every=30, files={"checkpoint_steps": 3})
"""


@pytest.mark.slow
def test_a_killed_training_resumes_to_the_same_head(tmp_path: Path) -> None:
    """Guards the promise of --resume against SIGKILL, at whatever point it comes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tiny_training(tmp_path / "whole", steps=60, evaluate_every=30)
        state = tmp_path / "killed" / ".training" / "state.pt"
        folders = [str(Path(trainings.__file__).parent), *filter(None, sys.path)]
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / "killed"), *folders])
        deadline = time.monotonic() + LIMIT
        while not state.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert state.exists()
        tiny_training(tmp_path / "killed", steps=60, evaluate_every=30, files={"resume": True})
    finally:
        torch.set_num_threads(before)
    whole, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
