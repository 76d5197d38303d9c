"""A soak test of `speculant serve`: thousands of mixed requests, a quarter of them misbehaving, followed by checks.

A server with the bundled model and a memory file receives concurrent requests: chats and completions, streamed or not,
greedy and sampled, with `n`, `stop`, log-probabilities, schemas and predictions; and clients that cancel, reset their
connection, leave before their body is sent, read slowly or not at all, or send invalid HTTP. Resident memory, file
descriptors and threads are compared after a warm-up and at the end; greedy texts are compared with plain decoding in
this process, requests with the server's metrics, and the memory saved on SIGTERM with the tokens that the server
counted.

    python benchmarks/serving_soak.py -o benchmarks/results/serving-soak.json

The prefix cache is small enough to be full after the warm-up, and the drafting memory is limited to 16 MB, so that
their growth is not mistaken for a leak.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import HttpProcess
from soak_client import Client
from soak_traffic import Traffic, prompts_of
from speculant import Speculator
from speculant.api.loading import load_model
from speculant.cli.env import environment
from speculant.drafters.mix.memory import describe
from speculant.memory.file import read_any_memory

SERVE = [sys.executable, "-m", "speculant", "serve", "--served-model-name", "bundled"]
OPTIONS = ["--prefix-cache", "8MiB", "--memory-limit", "16MiB", "--max-queue", "512", "--save-seconds", "5"]
LIMITS = {"SPECULANT_STALL_SECONDS": "1", "SPECULANT_BODY_SECONDS": "5"}
COURSE = ("rss_bytes", "speculant_memory_bytes", "speculant_prefix_cache_bytes")
NODES = 64  # maximum per draft; a memory learns all of them even if a stop string cuts them off


async def metrics_of(client: Client) -> dict[str, float]:
    """Return the server's metrics, summed over all labels except statuses."""
    sums = dict[str, float]()
    for line in (await client.get("/metrics")).splitlines():
        name, _, value = line.rpartition(" ")
        family = name.partition("{")[0]
        own = 'path="/metrics"' in name or 'path="/health"' in name  # of this function, and of starting the server
        if line.startswith("speculant_") and not own and not family.endswith(("_created", "_bucket")):
            sums[family] = sums.get(family, 0) + float(value)
    return sums


async def settled(client: Client, pid: int) -> dict[str, float]:
    """Return the process's figures and metrics once no text is running and connections have closed."""
    for _ in range(600):
        found = await metrics_of(client)
        if not found["speculant_num_requests_running"] and not found["speculant_num_requests_waiting"]:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(3)
    return await inspect(client, pid)


async def inspect(client: Client, pid: int) -> dict[str, float]:
    """Return the process's figures and metrics."""
    found = await metrics_of(client)
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    status = {line.split(":")[0]: line.split()[1] for line in lines if ":" in line and len(line.split()) > 1}
    return found | {
        "rss_bytes": int(status["VmRSS"]) << 10,
        "threads": int(status["Threads"]),
        "file_descriptors": len(os.listdir(f"/proc/{pid}/fd")),
    }


def offline(greedy: list[tuple[dict[str, Any], str]]) -> list[dict[str, Any]]:
    """Return the texts that differ from plain decoding, fp32, one at a time."""
    model, tokenizer = load_model(None)
    alone = Speculator.from_transformers(model, tokenizer, method="none")
    wrong = []
    for body, text in greedy:
        result = alone.generate(
            body.get("messages") or body["prompt"], temperature=0, max_new_tokens=body["max_tokens"]
        )
        expected = result.text
        places = [place for stop in body.get("stop", ()) if (place := expected.find(stop)) >= 0]
        expected = expected[: min(places)] if places else expected
        if text != expected:
            wrong.append({"asked": body, "served": text, "expected": expected})
    return wrong


async def soak(args: argparse.Namespace, server: HttpProcess) -> dict[str, Any]:
    """Run the soak and return the observations of the clients and the server's metrics."""
    client, pid = Client("127.0.0.1", server.port), server.process.pid
    data = os.environ.get("SPECULANT_DATA")
    run = Traffic(client, prompts_of(Path(data) if data else None), seed=args.seed)
    course, began = list[dict[str, float]](), time.monotonic()

    def note(figures: dict[str, float]) -> dict[str, float]:
        course.append({"requests": run.found.kinds.total()} | {name: figures[name] for name in COURSE})
        return figures

    async def look() -> None:
        note(await inspect(client, pid))

    await run.run(args.warm_up, args.concurrency)
    warm = note(await settled(client, pid))
    until = began + 60 * args.minutes
    await run.run(args.requests - args.warm_up, args.concurrency, until=until, look=look)
    end = note(await settled(client, pid))
    return {"found": run.found, "warm": warm, "end": end, "course": course, "seconds": time.monotonic() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=math.inf, help="send no more requests after this time")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--warm-up", type=int, default=400, help="requests before the process is first inspected")
    parser.add_argument("--check", type=int, default=200, help="greedy texts to compare with plain decoding")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [*SERVE, "--memory", str(folder / "memory.speculant"), *OPTIONS]
        log = folder / "log"
        server = HttpProcess("speculant", lambda port: [*command, "--port", str(port)], folder, log, variables=LIMITS)
        try:
            seen = asyncio.run(soak(args, server))
            server.process.send_signal(signal.SIGTERM)
            code = server.process.wait(120)
        finally:
            server.close()
        learned = describe(read_any_memory(folder / "memory.speculant"))["tokens learned"]
        files = sorted(each.name for each in folder.iterdir())
        errors = [line for line in log.read_text(encoding="utf-8").splitlines() if "level=error" in line]
    found, warm, end = seen["found"], seen["warm"], seen["end"]
    sample = random.Random(args.seed).sample(found.greedy, min(args.check, len(found.greedy)))
    wrong = offline(sample)
    counted = end["speculant_prompt_tokens_total"] + end["speculant_generation_tokens_total"]
    http = end["speculant_http_requests_total"]
    texts = end["speculant_request_success_total"] + end["speculant_request_failures_total"]
    checks = {
        "no unexpected answer": not found.problems,
        "rss within 5 %": end["rss_bytes"] <= 1.05 * warm["rss_bytes"],
        "file descriptors equal": end["file_descriptors"] == warm["file_descriptors"],
        "threads equal": end["threads"] == warm["threads"],
        "every place free": end["speculant_num_requests_running"] == end["speculant_num_requests_waiting"] == 0,
        "greedy texts equal": not wrong,
        "requests accounted for": found.complete - found.blind <= http <= found.complete,
        "texts accounted for": found.finished <= end["speculant_request_success_total"] <= texts,
        "memory saved": end["speculant_memory_save_failures_total"] == 0 and code == 0,
        "nothing else in its folder": files == ["log", "memory.speculant"],
        "tokens learned": 0 <= learned - counted <= NODES * found.stopped,
        "no error logged": not errors,
    }
    report = {
        "environment": environment(),
        "options": OPTIONS,
        "limits": LIMITS,
        "requests": found.kinds.total(),
        "asked_for": {"requests": args.requests, "minutes": args.minutes if args.minutes < math.inf else None},
        "concurrency": args.concurrency,
        "warm_up": args.warm_up,
        "seconds": seen["seconds"],
        "checks": checks,
        "kinds": dict(found.kinds),
        "statuses": {str(status): count for status, count in sorted(found.statuses.items())},
        "problems": found.problems,
        "longest_refusal_seconds": found.longest_refusal,
        "greedy": {"finished": len(found.greedy), "compared": len(sample), "different": wrong},
        "requests_sent": found.complete,
        "requests_reset_unseen": found.blind,
        "requests_counted": http,
        "unread_and_cut_off": found.cut_off,
        "texts_finished": found.finished,
        "tokens_counted": counted,
        "tokens_learned": learned,
        "exit_code": code,
        "errors_logged": errors,
        "course": seen["course"],
        "warm": warm,
        "end": end,
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    for name, passed in checks.items():
        print("ok    " if passed else "FAILED", name)
    if not all(checks.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
