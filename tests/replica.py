"""A replica as a process of its own: decodes recorded texts on command and shares what it learns. Run as a script.

It reads lines of JSON from standard input, {"prompt": [...], "output": [...]} to decode or {} to report, and answers
each with the accepted tokens, the tokens learned from others and what the channel has done.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import numpy as np

VOCABULARY = 4000


def main(url: str, tokenizer: str) -> None:
    """Decode until the input ends."""
    drafter = open_drafter(url, tokenizer)
    answer({})
    for line in sys.stdin:
        asked = json.loads(line)
        accepted = None
        if asked:
            accepted = decode(drafter, *(np.array(asked[name], np.int32) for name in ("prompt", "output")))
        answer({"accepted": accepted, "learned": drafter.learned} | asdict(drafter.channel.counts))
    drafter.close()


def open_drafter(url: str, tokenizer: str = "t") -> Any:
    """Return a drafter that shares what it learns."""
    from speculant.registry import BuildContext, build_drafter, find_method
    from speculant.sharing.opening import open_sharing

    method = find_method("mix")
    inner = build_drafter(method, BuildContext(vocabulary=VOCABULARY, tokenizer=tokenizer, memory_limit=16 << 20))
    return open_sharing(inner, url, method=method, tokenizer=tokenizer, vocabulary=VOCABULARY)


def decode(drafter: Any, prompt: np.ndarray, output: np.ndarray) -> int:
    """Decode a recorded text; return how many of its tokens were drafted and accepted."""
    from speculant.bench.replay.player import replay
    from speculant.bench.replay.traces import Recording

    return int(replay(drafter, [Recording(prompt, output)], nodes=8).accepted.sum())


def answer(facts: dict[str, Any]) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


class Replica:
    """The process, seen from a test."""

    def __init__(self, url: str, tokenizer: str = "t") -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, url, tokenizer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ready(self) -> Replica:
        """Wait until it can be asked."""
        assert self._answer() == {}
        return self

    def decode(self, prompt: Any, output: Any) -> dict[str, Any]:
        """Decode a text; return what it answers."""
        return self._ask({"prompt": [int(i) for i in prompt], "output": [int(i) for i in output]})

    def report(self) -> dict[str, Any]:
        """Return what it has done so far."""
        return self._ask({})

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


if __name__ == "__main__":
    main(*sys.argv[1:])
