"""Processes that run other versions of the source, so that benchmarks can compare two of them in turns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


class VersionProcess:
    """A benchmark's own script, run on a version of the source. It answers each line of its input with one line."""

    def __init__(self, script: str, source: Path, *arguments: str) -> None:
        """Start the script, whose first line names the package that it imported.

        Args:
            script: path of the script.
            source: the version's `src` folder.
            arguments: arguments of the script.
        """
        environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert (found := self._answer()) == str(source.resolve() / "speculant"), f"runs {found} instead of {source}"

    def ask(self, line: str) -> str:
        """Return the answer to a line."""
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()
