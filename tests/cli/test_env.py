"""The description of the machine."""

from __future__ import annotations

import getpass
import json
import os
import platform
from pathlib import Path

import pytest
import torch

from models import tiny_model
from speculant import __version__
from speculant.cli.env import environment
from speculant.cli.main import main


def test_the_command_prints_what_the_function_returns(capsys: pytest.CaptureFixture[str]) -> None:
    """Bug reports and measurements describe the machine in the same way."""
    assert main(["env", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == environment()
    assert main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(environment())
    assert lines[0].split() == ["speculant", __version__]


def test_nothing_personal_is_in_it() -> None:
    """A record may be published: no host, no folder, no user."""
    text = json.dumps(environment())
    assert platform.node() not in text
    assert str(Path.home()) not in text
    assert os.getcwd() not in text
    assert f'"{getpass.getuser()}"' not in text


def test_a_model_says_its_own_dtype() -> None:
    """What was measured is what the model ran in, not the default."""
    found = environment(tiny_model("llama").to(torch.bfloat16))
    assert (found["dtype"], found["device"]) == ("bfloat16", "cpu")
