"""The curve of what a target pass costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speculant.core.errors import FileError, UsageError
from speculant.sizing.step_cost import read_step_cost


def test_straight_between_its_points(tmp_path: Path) -> None:
    """Costs are read off the measured curve; further keys are let be."""
    (tmp_path / "c").write_text('{"nodes": [0, 10], "seconds": [1, 3], "device": "x"}')
    cost = read_step_cost(tmp_path / "c")
    assert cost.of(np.array([0, 5, 10])).tolist() == [1, 2, 3]
    cost.check(10)
    with pytest.raises(UsageError, match="ends at 10 nodes, but drafts have up to 11"):
        cost.check(11)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"nodes": [], "seconds": []}', '{"nodes": [0, 1], "seconds": [1]}',
        '{"nodes": [1, 2], "seconds": [1, 2]}', '{"nodes": [0, 2, 2], "seconds": [1, 2, 3]}',
        '{"nodes": [0], "seconds": [0]}', '{"nodes": [0], "seconds": ["a"]}', '{"nodes": 0, "seconds": 1}',
    ],
)  # fmt: skip
def test_what_is_no_curve(tmp_path: Path, text: str) -> None:
    """A wrong file is named with the form it should have."""
    (tmp_path / "c").write_text(text)
    with pytest.raises(FileError, match="holds no step cost: a measured curve is"):
        read_step_cost(tmp_path / "c")


def test_a_missing_file(tmp_path: Path) -> None:
    """The message names it."""
    with pytest.raises(FileError, match=r"cannot read .*: No such file"):
        read_step_cost(tmp_path / "c")
