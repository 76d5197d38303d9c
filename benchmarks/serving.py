"""Load test of `speculant serve`, compared with plain decoding, other servers, and the library without a server.

Streamed greedy completions of the beginnings of held-out stories, at several numbers of concurrent clients:

    speculant           `speculant serve` with default options, up to 64 concurrent texts
    plain               the same with `--method none`
    transformers        `transformers serve`, which decodes one text at a time
    transformers-paged  the same with `--continuous-batching`
    llamacpp            llama.cpp's `llama-server`, 64 slots, on the same weights as a float32 GGUF file
    llamacpp-ngram      the same with its default speculation, `--spec-default`, a table of n-grams for all slots
    llamacpp-draft      the same with the bundled draft model
    library             `Batch` called directly with the method and the requests of `speculant`
    library-plain       the same without drafts, to compare with `plain`; only if named in --systems

All systems are started at once with one thread each and take turns: while one is measured, the others are suspended.
The order rotates with every repetition; prompts are the same for all systems and new in each repetition. Ratios compare
figures of the same repetition. With --slice, all systems answer the requests of a repetition at the same time, in turns
of so many seconds of CPU time, which a ratio of throughputs needs on a busy machine; latencies mean nothing then.

    python benchmarks/serving.py -o benchmarks/results/serving.json --chart docs/images/serving.png

Results are added to the file by target, so `--targets bundled` and `--targets inflated` can be separate runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from serving_chart import draw
from serving_systems import LLAMACPP, SYSTEMS, start, write_gguf_files
from serving_turns import LENGTHS, Cell, System, turn
from serving_turns import turns as take_turns
from stories import cut_prompts

TARGETS = ("bundled", "inflated")
REQUESTS = {"bundled": 8, "inflated": 2}  # minimum; each client sends at least `TURNS`
TURNS = {"bundled": 3, "inflated": 1}
TOKENS = {"bundled": 64, "inflated": 16}
RATIOS = {
    "speculant_to_plain": ("speculant", ("plain",)),
    "speculant_to_transformers": ("speculant", ("transformers", "transformers-paged")),  # the faster one
    "speculant_to_llamacpp": ("speculant", LLAMACPP),
    "server_to_library": ("speculant", ("library",)),
    "plain_server_to_library": ("plain", ("library-plain",)),
}
MEDIANS = ("time_to_first_token_ms", "inter_token_latency_ms", "time_per_output_token_ms")


def main() -> None:
    args = parse()
    found = json.loads(args.out.read_text()) if args.out.exists() else {"targets": {}}
    found["environment"] = described()
    for target in args.targets:
        with tempfile.TemporaryDirectory() as folder:
            found["targets"][target] = measure(target, model_folder(target, args, Path(folder)), Path(folder), args)
        args.out.write_text(json.dumps(found, indent=1) + "\n")
        print_summary(target, found["targets"][target]["summary"])
    if args.chart is not None:
        draw(found, args.chart)


def parse() -> argparse.Namespace:
    names = lambda text: tuple(text.split(","))  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--chart", type=Path, help="PNG file for a chart of the results")
    parser.add_argument("--targets", type=names, default=TARGETS, help="default: bundled,inflated")
    parser.add_argument("--systems", type=names, default=SYSTEMS[:-1], help=f"of {','.join(SYSTEMS)}")
    parser.add_argument("--clients", type=names, default=("1", "4", "16", "64"), help="default: 1,4,16,64")
    parser.add_argument("--requests", type=int, help=f"minimum per number of clients; default: {REQUESTS}")
    parser.add_argument("--turns", type=int, help=f"minimum requests per client; default: {TURNS}")
    parser.add_argument("--tokens", type=int, help=f"mean of the maximum tokens per answer; default: {TOKENS}")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--slice", type=float, help="seconds of CPU time of a turn; default: until all is answered")
    parser.add_argument("--inflated", type=Path, help="folder in which the inflated target (2 GB) is kept between runs")
    args = parser.parse_args()
    args.clients = [int(each) for each in args.clients]
    for name, given, known in (("--targets", args.targets, TARGETS), ("--systems", args.systems, SYSTEMS)):
        if unknown := set(given) - set(known):
            parser.error(f"{name}: there is no {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    return args


def described() -> dict[str, Any]:
    """Return the machine and versions; each system runs its passes on one thread."""
    from importlib.metadata import version

    from speculant.cli.env import environment

    return environment() | {"threads": 1, "fastapi": version("fastapi"), "uvicorn": version("uvicorn")}


def model_folder(target: str, args: argparse.Namespace, scratch: Path) -> Path:
    """Return a target's folder, which every system can load."""
    from speculant.api.loading import bundled_model

    if target == "bundled":
        return bundled_model()
    folder: Path = args.inflated or scratch / "inflated"
    if not (folder / "config.json").exists():
        print("saving the inflated target", file=sys.stderr)
        from targets import load_pair

        pair = load_pair("inflated", dtype="float32", draft_model=None)
        pair.model.save_pretrained(folder)
        pair.tokenizer.save_pretrained(folder)
    return folder


def measure(target: str, folder: Path, scratch: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return the cells of a target, their summary, and the number of identical texts."""
    began, tokens = time.perf_counter(), args.tokens or TOKENS[target]
    turns, minimum = args.turns or TURNS[target], args.requests or REQUESTS[target]
    counts = {clients: max(minimum, turns * clients) for clients in args.clients}
    prompts = iter(cut_prompts(Path(os.environ["SPECULANT_DATA"]) / "text/tinystories", count=2000))
    cells, texts = list[Cell](), dict[str, list[str]]()
    if set(args.systems) & set(LLAMACPP):
        write_gguf_files(folder, scratch)
    with running(args.systems, folder, scratch) as systems:
        for clients in args.clients:
            warm = take(prompts, max(2, clients))
            for system in systems:
                turn(system, warm, clients=clients, tokens=max(8, tokens // 3))
        for repetition in range(args.repetitions):
            for clients, count in counts.items():
                asked, place = take(prompts, count), repetition % len(systems)
                order = systems[place:] + systems[:place]
                found = take_turns(order, asked, clients=clients, tokens=tokens, seconds=args.slice)
                for system, (cell, answers) in zip(order, found, strict=True):
                    cells.append({"repetition": repetition, "clients": clients, "system": system.name} | cell)
                    texts.setdefault(system.name, []).extend(answer.text.strip() for answer in answers)
                    print(json.dumps(cells[-1]), file=sys.stderr)
        described = {each.name: {"command": each.command, "memory_mb": each.memory_mb} for each in systems}
    return {
        "settings": {
            "tokens": tokens,
            "lengths": LENGTHS,
            "requests": counts,
            "repetitions": args.repetitions,
            "slice": args.slice,
            "seconds": elapsed(began),
        },
        "systems": described,
        "summary": summary(cells),
        "identical_texts": {
            name: {"compared": len(own), "identical": sum(map(str.__eq__, own, next(iter(texts.values()))))}
            for name, own in texts.items()
        },
        "cells": cells,
    }


@contextlib.contextmanager
def running(names: Sequence[str], folder: Path, scratch: Path) -> Iterator[list[System]]:
    """Start systems, suspended; stop them at exit."""
    systems = list[System]()
    try:
        for name in names:
            systems.append(start(name, folder, scratch))
            systems[-1].pause()
        yield systems
    finally:
        for system in systems:
            system.close()


def take(prompts: Iterator[str], count: int) -> list[str]:
    return [next(prompts) for _ in range(count)]


def elapsed(began: float) -> int:
    return round(time.perf_counter() - began)


def summary(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return the systems' medians, and ratios with their spread, for each number of clients."""
    found = []
    for clients in dict.fromkeys(cell["clients"] for cell in cells):
        own = [cell for cell in cells if cell["clients"] == clients]
        systems = {
            name: medians([cell for cell in own if cell["system"] == name])
            for name in dict.fromkeys(cell["system"] for cell in own)
        }
        ratios: dict[str, Any] = {}
        for name, (over, under) in RATIOS.items():
            for figure, ending in (("tokens_per_second", ""), ("tokens_per_cpu_second", "_cpu")):
                if values := paired(own, figure, over, under):
                    spread = {"median": np.median(values), "least": min(values), "most": max(values)}
                    ratios[name + ending] = {key: round(float(value), 4) for key, value in spread.items()}
        found.append({"clients": clients, "systems": systems, "ratios": ratios})
    return found


def medians(cells: Sequence[Cell]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: round(float(np.median([cell[name] for cell in cells])), 3)
        for name in ("tokens_per_second", "tokens_per_cpu_second", "client_cpu_share")
    }
    for name in MEDIANS:
        found[name] = {
            share: round(float(np.median([cell[name][share] for cell in cells if cell[name]])), 3)
            for share in cells[0][name]
        }
    return found


def paired(cells: Sequence[Cell], figure: str, over: str, under: Sequence[str]) -> list[float]:
    """Return one ratio per repetition in which the systems ran; the denominator is the best of `under`."""
    found = []
    for repetition in dict.fromkeys(cell["repetition"] for cell in cells):
        values = {cell["system"]: cell[figure] for cell in cells if cell["repetition"] == repetition}
        against = [values[name] for name in under if name in values]
        if over in values and against:
            found.append(values[over] / max(against))
    return found


def print_summary(target: str, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        print(f"\n{target}, {row['clients']} clients")
        for name, own in row["systems"].items():
            first, between = own["time_to_first_token_ms"], own["inter_token_latency_ms"]
            print(
                f"  {name:20} {own['tokens_per_second']:8.1f} tokens/s"
                f"   first {first['p50']:8.1f} /{first['p99']:8.1f} ms"
                f"   between {between['p50']:7.1f} /{between['p99']:7.1f} ms   clients {own['client_cpu_share']:.0%}"
            )
        for name, ratio in row["ratios"].items():
            print(f"  {name:32} {ratio['median']:.3f} ({ratio['least']:.3f} to {ratio['most']:.3f})")


if __name__ == "__main__":
    main()
