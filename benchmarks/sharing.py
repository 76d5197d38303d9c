"""Three replicas that share what they learn, compared with separate replicas and one memory, on recorded outputs.

Each trace is split three ways, request by request. Replicas are processes that replay their part; a target pass is a
pause of `--pass-ms`, so that texts grow as fast as with a model. They share through their own Redis server.

    apart       each replica has its own memory
    shared      each replica learns what the others publish
    single      one memory for all three parts, three requests at a time: the upper limit for sharing
    sequential  one memory, one request after the other, like `speculant replay`

    python benchmarks/sharing.py -o benchmarks/results/sharing.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from processes import free_port
from speculant.bench.replay.player import make_recorded_sequence
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.cli.env import environment
from speculant.core.drafter import Drafter
from speculant.decoding.sequence import Sequence as Text
from speculant.decoding.step import DecodingComponents, step
from speculant.engines.recorded import RecordedEngine
from speculant.registry import BuildContext, build_drafter, find_method
from speculant.sharing.address import parse_address
from speculant.sharing.channel import SharedTokens
from speculant.sharing.opening import open_sharing
from speculant.sharing.redis_streams import RedisChannel
from speculant.sizing.fixed import FixedSizing
from speculant.verifiers.sample_then_follow import SampleThenFollow

REPLICAS = 3
TRACES = ("llama31-8b-sharegpt", "llama31-8b-instructcoder", "llama31-8b-gsm8k", "llama31-8b-cnn")
VOCABULARY = 128_256
Rows = list[dict[str, Any]]


def parts_of(drafter: Drafter, engine: RecordedEngine, nodes: int) -> DecodingComponents:
    return DecodingComponents(engine=engine, drafter=drafter, verifier=SampleThenFollow(), sizing=FixedSizing(nodes))


def play(streams: Sequence[Sequence[Recording]], parts: DecodingComponents) -> dict[str, int]:
    """Decode streams of requests concurrently, each one request after the other; count tokens and rounds."""
    waiting = [iter(stream) for stream in streams]
    active: dict[int, Text] = {}
    tokens = rounds = prompts = 0
    while True:
        for place, stream in enumerate(waiting):
            if place in active and active[place].ended:
                active.pop(place).close()
            if place not in active and (recording := next(stream, None)) is not None:
                active[place] = make_recorded_sequence(recording, parts)
                prompts += len(recording.prompt)
        if not active:
            return {"tokens": tokens, "rounds": rounds, "prompt_tokens": prompts}
        for text in active.values():  # one at a time, since a batch would share a fixed number of nodes
            done = step([text], parts)
            if text.error is not None:
                raise text.error
            rounds += 1
            tokens += len(done.each[0].walk.tokens)


def build(memory: int) -> Drafter:
    return build_drafter("mix", BuildContext(vocabulary=VOCABULARY, tokenizer="llama-3", memory_limit=memory))


def replica(trace: Path, number: int, url: str | None, args: argparse.Namespace, barrier: Any, results: Any) -> None:
    """Replay a third of a trace in a separate process."""
    recordings = list(read_recordings(trace))[: args.limit][number::REPLICAS]
    drafter, sharing = build(args.memory << 20), None
    if url is not None:
        mix = find_method("mix")
        sharing = open_sharing(drafter, url, method=mix, tokenizer="llama-3", vocabulary=VOCABULARY)
    engine = RecordedEngine(on_pass=lambda _rows: time.sleep(args.pass_ms / 1000))
    barrier.wait()
    wall, cpu = time.perf_counter(), time.process_time()
    counts: dict[str, Any] = play([recordings], parts_of(sharing or drafter, engine, args.nodes))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    counts |= {"wall_seconds": wall, "cpu_seconds": cpu}
    if sharing is not None:
        learning = sharing.learner.seconds
        barrier.wait()  # the others may still publish, but this one no longer has to learn
        sharing.close()
        assert isinstance(sharing.channel, RedisChannel)
        done = sharing.channel.counts
        counts |= {
            "learned": sharing.learned,
            "learning_seconds": learning,
            "publishing_seconds": done.seconds,
            "messages": done.messages,
            "published": done.tokens,
            "payload": done.payload,
            "dropped": done.dropped,
            "received": done.received,
            "refused": done.refused,
        }
    results.put(counts)


def run(trace: Path, url: str | None, args: argparse.Namespace) -> Rows:
    """Run the three replicas of a trace and return their counts."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(REPLICAS), context.Queue()
    processes = [
        context.Process(target=replica, args=(trace, number, url, args, barrier, results)) for number in range(REPLICAS)
    ]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return found


def mat(rows: Rows) -> float:
    return float(sum(row["tokens"] for row in rows) / sum(row["rounds"] for row in rows))


def measure(trace: Path, url: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a trace."""
    recordings = list(read_recordings(trace))[: args.limit]
    split = [recordings[number::REPLICAS] for number in range(REPLICAS)]
    # Without pauses, since drafts do not depend on time if nothing is learned from outside.
    apart = [play([part], parts_of(build(args.memory << 20), RecordedEngine(), args.nodes)) for part in split]
    single = [play(split, parts_of(build(args.memory << 20), RecordedEngine(), args.nodes))]
    sequential = [play([recordings], parts_of(build(args.memory << 20), RecordedEngine(), args.nodes))]
    shared = run(trace, f"{url}?stream={trace.stem}", args)
    total = {name: sum(row[name] for row in shared) for name in shared[0]}
    return {
        "trace": trace.stem,
        "requests": len(recordings),
        "mat": {"apart": mat(apart), "shared": mat(shared), "single": mat(single), "sequential": mat(sequential)},
        "shared_to_single": mat(shared) / mat(single),
        "apart_to_single": mat(apart) / mat(single),
        "messages_per_committed_token": total["messages"] / total["tokens"],
        "messages_per_second_and_replica": total["messages"] / total["wall_seconds"],
        "bytes_per_published_token": total["payload"] / total["published"],
        "share_of_a_core": {
            "publishing": total["publishing_seconds"] / total["wall_seconds"],
            "learning": total["learning_seconds"] / total["wall_seconds"],
        },
        "replicas": shared,
    }


def lags(url: str, count: int) -> list[float]:
    """Return the milliseconds from publishing to learning, for separately published pieces."""
    mix = find_method("mix")
    reader = open_sharing(build(16 << 20), f"{url}?stream=lag", method=mix, tokenizer="t", vocabulary=VOCABULARY)
    sender = RedisChannel(parse_address(f"{url}?stream=lag"), tokenizer="t", vocabulary=VOCABULARY)
    found = []
    for number in range(count):
        tokens = np.full(8, number, np.int32)
        began = time.perf_counter()
        sender.publish(SharedTokens(request=number, start=0, tokens=tokens))
        while reader.learned < 8 * (number + 1):
            time.sleep(0.0005)
        found.append(1000 * (time.perf_counter() - began))
    sender.close()
    reader.close()
    return found


def publishing_time(url: str, rounds: int) -> float:
    """Return the median microseconds that a round spends on queueing its four tokens."""
    channel = RedisChannel(parse_address(f"{url}?stream=time"), tokenizer="t", vocabulary=VOCABULARY)
    tokens, found = np.arange(4, dtype=np.int32), []
    for number in range(rounds):
        began = time.perf_counter()
        channel.publish(SharedTokens(request=1, start=4 * number, tokens=tokens))
        found.append(1e6 * (time.perf_counter() - began))
        time.sleep(0.002)
    channel.close()
    return float(np.median(found))


@contextmanager
def server() -> Iterator[str]:
    """Run a Redis server without persistence; yield its URL."""
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        raise SystemExit("this benchmark needs redis-server: apt-get install redis-server")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        process = subprocess.Popen([binary, *options], cwd=folder, stdout=subprocess.DEVNULL)
        try:
            time.sleep(1)
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--traces", default=",".join(TRACES), help="names below $SPECULANT_DATA/traces")
    parser.add_argument("--limit", type=int, help="requests per trace, from the start; default: all")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--pass-ms", type=float, default=10.0)
    parser.add_argument("--memory", type=int, default=256, help="MB per memory")
    args = parser.parse_args()
    folder, figures = Path(os.environ["SPECULANT_DATA"]) / "traces", []
    with server() as url:
        lag, micros = lags(url, 50), publishing_time(url, 500)
        for name in args.traces.split(","):
            figures.append(measure(folder / f"{name}.jsonl", url, args))
            print(json.dumps({key: value for key, value in figures[-1].items() if key != "replicas"}, indent=1))
    settings = {"nodes": args.nodes, "pass_ms": args.pass_ms, "memory_mb": args.memory, "limit": args.limit}
    found = {
        "environment": environment(),
        "settings": settings,
        "lag_ms": {"p50": float(np.percentile(lag, 50)), "most": max(lag)},
        "publish_us": micros,
        "traces": figures,
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
