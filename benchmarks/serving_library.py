"""`Batch` without a server, for `serving.py`: reads requests as JSON lines and writes the texts with their times.

Requests join as in the server: up to a number of clients at a time, and the next one when one has ended.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from serving_systems import MAX_CLIENTS, PREFIX_CACHE
from speculant.api.batch import Batch
from speculant.cli.loading import load_speculator
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--method", required=True)
    args = parser.parse_args()
    loading = ModelOptions(model=args.folder, dtype="float32", device="cpu", attention=None, fast=None, threads=1)
    speculator = load_speculator(loading, DraftingOptions(method=args.method)).speculator
    with speculator.batch(MAX_CLIENTS, prefix_cache=PREFIX_CACHE) as batch:
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            print(json.dumps(decode(batch, **json.loads(line))), flush=True)


def decode(batch: Batch, asked: Sequence[tuple[str, int]], clients: int) -> list[dict[str, Any]]:
    """Return text, tokens and times of each continuation, given prompts with their maximum tokens."""
    waiting = deque(enumerate(asked))
    places: dict[Any, int] = {}
    found: list[dict[str, Any]] = [{} for _ in asked]
    while waiting or len(batch):
        while waiting and len(batch) < clients:
            place, (prompt, maximum) = waiting.popleft()
            found[place] = {"text": "", "tokens": 0, "began": time.perf_counter(), "arrivals": []}
            places[batch.add(prompt, max_new_tokens=maximum, temperature=0)] = place
        for generation, piece in batch.step():
            if generation.error is not None:
                raise generation.error
            own = found[places[generation]]
            own["tokens"] += len(piece.tokens)
            if piece.text:
                own["text"] += piece.text
                own["arrivals"].append(time.perf_counter())
    return found


if __name__ == "__main__":
    main()
