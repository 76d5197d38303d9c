"""How long short requests and streams wait in `speculant serve` while other clients send long prompts.

The bundled model with its positions raised to 8,192 (its texts are meaningless there, but take as long as any others).
Readers send prompts of 4,000 random tokens, one after the other, and request one new token for each. With 0, 1 and 3
readers,

    short     a client repeatedly requests one token after a 10-token prompt: seconds to the first token
    stream    a text is streamed: seconds between its chunks

The unit is a chunk: the time that 128 tokens of a long prompt take when nothing else is read.

    python benchmarks/serving_prompts.py --label after -o benchmarks/results/serving-prompts.json

Results are added to the file under their label, so that two versions can be compared.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from processes import HttpProcess
from serving_systems import NAME, speculant_command

POSITIONS, LONG, SHORT, CHUNK = 8192, 4000, 10, 128
READERS = (0, 1, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--label", required=True, help="name of the result in the file")
    parser.add_argument("--seconds", type=float, default=25.0, help="duration of each measurement; default: 25")
    args = parser.parse_args()
    from serving import described

    with tempfile.TemporaryDirectory() as scratch, serving(model_folder(Path(scratch)), Path(scratch)) as port:
        complete(port, LONG)  # warm-up of kernels and caches
        chunk = float(np.median([complete(port, LONG) for _ in range(3)])) * CHUNK / LONG
        cells = [{"readers": readers} | beside(port, readers, seconds=args.seconds, chunk=chunk) for readers in READERS]
    found = json.loads(args.out.read_text()) if args.out.exists() else {}
    settings = {"long": LONG, "short": SHORT, "positions": POSITIONS, "seconds": args.seconds}
    found[args.label] = {
        "environment": described(),
        "settings": settings,
        "chunk_seconds": round(chunk, 4),
        "cells": cells,
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    for cell in cells:
        print(json.dumps(cell))


def model_folder(scratch: Path) -> Path:
    """Return a copy of the bundled model that accepts long prompts."""
    from speculant.api.loading import bundled_model

    folder = scratch / "long"
    shutil.copytree(bundled_model(), folder)
    for name, field in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | {field: POSITIONS}))
    return folder


@contextmanager
def serving(folder: Path, scratch: Path) -> Iterator[int]:
    """Serve a model; yield the port."""
    server = HttpProcess("speculant", lambda port: speculant_command(folder, port), folder, scratch / "server.log")
    try:
        yield server.port
    finally:
        server.close()


def beside(port: int, readers: int, *, seconds: float, chunk: float) -> dict[str, Any]:
    """Return the waits of short requests and a stream alongside `readers` readers, in seconds and in chunks."""
    ended, read = threading.Event(), list[int]()
    threads = [threading.Thread(target=keep_reading, args=(port, ended, read)) for _ in range(readers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(1 if readers else 0)
    try:
        waits = list(repeated(port, seconds))
        gaps = stream_gaps(port, seconds)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    wall = time.perf_counter() - began
    found = {"short_first_token": spread(waits, chunk), "stream_gap": spread(gaps, chunk)}
    return found | {"prompts_read": len(read), "prompt_tokens_per_second": round(sum(read) / wall, 1)}


def keep_reading(port: int, ended: threading.Event, read: list[int]) -> None:
    while not ended.is_set():
        complete(port, LONG)
        read.append(LONG)


def repeated(port: int, seconds: float) -> Iterator[float]:
    """Yield the seconds of short requests, sent at irregular intervals."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield complete(port, SHORT)
        time.sleep(random.uniform(0.05, 0.5))


def complete(port: int, tokens: int) -> float:
    """Return the seconds of a request for one token after a new prompt."""
    began = time.perf_counter()
    for _ in ask(port, tokens, max_tokens=1):
        pass
    return time.perf_counter() - began


def stream_gaps(port: int, seconds: float) -> list[float]:
    """Return the seconds between the chunks of streams."""
    until, gaps = time.monotonic() + seconds, list[float]()
    while time.monotonic() < until:
        last = 0.0
        for moment in ask(port, SHORT, max_tokens=400, stream=True, until=until):
            if last:
                gaps.append(moment - last)
            last = moment
    return gaps


def ask(port: int, tokens: int, *, until: float = float("inf"), **options: Any) -> Iterator[float]:
    """Send a greedy completion of random tokens; yield the arrival time of each line of the answer."""
    body = {"model": NAME, "prompt": [random.randrange(300, 4000) for _ in range(tokens)], "temperature": 0} | options
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(answer.read().decode())
        for line in answer:
            if line.strip() and b"[DONE]" not in line:
                yield time.perf_counter()
            if time.monotonic() > until:
                return
    finally:
        connection.close()


def spread(values: Sequence[float], chunk: float) -> dict[str, float]:
    shares = {"p50": np.median(values), "p95": np.quantile(values, 0.95), "most": max(values)}
    found: dict[str, float] = {"count": len(values)}
    for name, value in shares.items():
        found |= {name: round(float(value), 4), f"{name}_chunks": round(float(value) / chunk, 2)}
    return found


if __name__ == "__main__":
    main()
