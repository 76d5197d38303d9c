"""The recipe of docs/scaling.md: two servers behind a balancer, of which one is killed and joins again under load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from queue import Queue
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("redis")

from balancers import CONVERSATION, HAPROXY, balancing, free_port
from redis_server import Server, needs_server, wait_for
from speculant.api.loading import load_model
from speculant.api.speculator import Speculator

pytestmark = [needs_server, pytest.mark.slow]
CLIENTS, TURNS, LAST, TOKENS = 16, 6, 2, 24  # the last turns are had once both replicas are there again
JSON = {"Content-Type": "application/json"}
STARTING = 240.0  # seconds; where drafting is compiled first, and the machine has other work
OPENINGS = ("Once upon a time", "Lily had a red", "The dog ran to", "One day, Tom and")


@contextmanager
def replica(port: int, store: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Serve the bundled model as the recipe says; the process is killed at the end, if it is there still."""
    command = [sys.executable, "-m", "speculant", "serve", "--port", str(port), "--per-request-metrics"]
    with (
        (folder / f"{port}.log").open("ab") as out,
        subprocess.Popen(command, stderr=out, env=os.environ | {"SPECULANT_SHARE": store}) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def healthy(port: int) -> bool:
    """Return whether a replica answers."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def ask(address: str, conversation: str, prompt: str, tries: Counter[str]) -> tuple[str, str]:
    """Return a streamed text, asked for again as the recipe says, and which replica wrote it."""
    body = {"model": "bundled", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": True}
    headers = JSON | {CONVERSATION: conversation}
    for _ in range(60):
        tries["all"] += 1
        try:
            text, ended = "", False
            with urlopen(
                Request(f"{address}/v1/completions", json.dumps(body).encode(), headers), timeout=60
            ) as answer:
                for line in answer:
                    data = line.removeprefix(b"data: ").strip()
                    ended = ended or data == b"[DONE]"
                    if data and not ended:
                        text += json.loads(data)["choices"][0]["text"]
                if ended:
                    return text, answer.headers.get("x-served-by", "")
        except HTTPError as error:
            if error.code not in (429, 502, 503, 504):
                raise
        except (OSError, HTTPException):
            pass  # the replica went away, before the answer or in the middle of it
        tries["again"] += 1
        time.sleep(0.25)
    raise AssertionError("no answer")


class Talks:
    """What the conversations of all clients tell the test, and wait for.

    Attributes:
        turns: (client, turn) of turns that have ended.
        joined: set once both replicas answer again.
        tries: how often texts were asked for, and again.
    """

    def __init__(self) -> None:
        self.turns, self.joined, self.tries = Queue[tuple[int, int]](), threading.Event(), Counter[str]()
        self._ended = Counter[int]()  # turns of each client

    def hold(self, address: str, number: int) -> tuple[list[str], list[str]]:
        """Have a conversation; return its texts and the replicas that wrote them."""
        texts, replicas, prompt = list[str](), list[str](), opening(number)
        for turn in range(TURNS):
            if turn == TURNS - LAST:
                assert self.joined.wait(STARTING)
            text, served_by = ask(address, f"conversation-{number}", prompt, self.tries)
            texts.append(text)
            replicas.append(served_by)
            prompt += text + " Then"
            self.turns.put((number, turn))
        return texts, replicas

    def wait_for_all(self) -> None:
        """Wait until each client has had a turn, but for those that have none left until both replicas are there."""
        seen = {number for number in range(CLIENTS) if self._ended[number] >= TURNS - LAST and not self.joined.is_set()}
        while len(seen) < CLIENTS:
            number, turn = self.turns.get(timeout=120)
            self._ended[number] = turn + 1
            seen.add(number)


def opening(number: int) -> str:
    """Return the first prompt of a conversation."""
    return f"{OPENINGS[number % len(OPENINGS)]} {number}"


def plain_texts(number: int, speculator: Speculator) -> list[str]:
    """Return the texts of a conversation by plain decoding."""
    texts, prompt = list[str](), opening(number)
    for _ in range(TURNS):
        texts.append(speculator.generate(prompt, plain=True, max_new_tokens=TOKENS).text)
        prompt += texts[-1] + " Then"
    return texts


def test_a_replica_is_killed_and_joins_again(tmp_path: Path) -> None:
    """Guards the recipe: 16 clients lose nothing, texts are those of plain decoding, conversations stay together."""
    store, ports, talks = Server(tmp_path), [free_port(), free_port()], Talks()
    try:
        with replica(ports[0], store.url, tmp_path) as first, replica(ports[1], store.url, tmp_path):
            wait_for(lambda: all(map(healthy, ports)), seconds=STARTING)
            with balancing(ports, tmp_path) as address, ThreadPoolExecutor(CLIENTS) as pool:
                held = [pool.submit(talks.hold, address, number) for number in range(CLIENTS)]
                talks.wait_for_all()
                first.kill()
                first.wait()
                talks.wait_for_all()
                with replica(ports[0], store.url, tmp_path):
                    wait_for(lambda: healthy(ports[0]), seconds=STARTING)
                    wait_for(lambda: steps(ports[0], opening(1)) < TOKENS / 3)  # it knows texts that others decoded
                    talks.joined.set()
                    found = [each.result() for each in held]
    finally:
        store.kill()
    model, tokenizer = load_model(None)
    plain = Speculator.from_transformers(model, tokenizer, method="none")
    for number, (texts, _) in enumerate(found):
        assert texts == plain_texts(number, plain), number
    assert talks.tries["all"] - talks.tries["again"] == CLIENTS * TURNS
    if HAPROXY:  # which says who answered
        ways = {tuple(replicas) for _, replicas in found}
        assert {way[0] for way in ways} == {"one", "two"}
        assert {way for way in ways if way[0] == "two"} == {("two",) * TURNS}
        assert all(way[-1] == "one" for way in ways if way[0] == "one")


def steps(port: int, prompt: str) -> int:
    """Return how many passes a text takes a replica."""
    body = {"model": "bundled", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    request = Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), JSON)
    with urlopen(request, timeout=60) as answer:
        return int(json.load(answer)["metrics"]["speculative_decoding"]["num_spec_steps"])
