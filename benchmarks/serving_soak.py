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
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak_client import Answer, Client
from speculant import Speculator
from speculant.api.loading import load_model
from speculant.cli.env import environment
from speculant.drafters.mix.memory import describe
from speculant.memory.file import read_any_memory

CHAT, TEXTS = "/v1/chat/completions", "/v1/completions"
OPTIONS = ["--prefix-cache", "8MiB", "--memory-limit", "16MiB", "--max-queue", "512", "--save-seconds", "5"]
LIMITS = {"SPECULANT_STALL_SECONDS": "1", "SPECULANT_BODY_SECONDS": "5"}
WAIT, UNREAD = 300, 60  # seconds to wait for an answer, and to leave one unread
STEP = 500  # requests between two looks at the process's memory
COURSE = ("rss_bytes", "speculant_memory_bytes", "speculant_prefix_cache_bytes")
NODES = 64  # maximum per draft; a memory learns all of them even if a stop string cuts them off
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Tom", "Sue"]}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
BAD: list[tuple[str, Any, int]] = [
    (CHAT, b"{", 400),
    (CHAT, b'{"messages": "\xff"}', 400),
    (TEXTS, {"prompt": 5}, 400),
    (TEXTS, {"prompt": [None] * 20_000}, 400),
    (TEXTS, {"prompt": "word " * 100_000}, 400),
    (TEXTS, {"prompt": "a", "max_token": 5}, 400),
    (TEXTS, {"prompt": "a", "structured_outputs": {"regex": "(a|aa){2000}"}}, 400),
    (CHAT, {"messages": [], "model": "bundled"}, 400),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "temperature": -1}, 400),
    (TEXTS, {"prompt": "a", "model": "other"}, 404),
    (TEXTS, b" " * 2_000_000, 413),
    ("/detokenize", {"tokens": [-1]}, 400),
]
GARBAGE = [b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 20_000 + b"\r\n", b"HELLO\r\n\r\n"]
WEIGHTS = {
    "greedy": 34, "sampled": 12, "choices": 6, "stop": 6, "logprobs": 6, "schema": 6, "prediction": 5, "slow reader": 2,
    "unread": 0.5, "cancelled": 7, "reset": 4, "half a request": 2, "bad": 8, "garbage": 1,
}  # fmt: skip


@dataclass(slots=True)
class Findings:
    """Observations of the clients.

    Attributes:
        kinds: number of requests of each kind.
        statuses: number of answers with each HTTP status.
        complete: requests that the server received completely, so that it must have counted them.
        blind: those of them that were reset before any answer, which the server may not have seen.
        cut_off: unread answers whose connection the server closed; the kernel may buffer others completely.
        finished: texts that ended.
        stopped: those of them that a stop string may have ended.
        greedy: request and text of each finished greedy text.
        problems: unexpected answers.
        longest_refusal: seconds until the slowest answer to a bad request.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    complete: int = 0
    blind: int = 0
    cut_off: int = 0
    finished: int = 0
    stopped: int = 0
    greedy: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    longest_refusal: float = 0


class Soak:
    """Requests of every kind, generated from one seed."""

    def __init__(self, client: Client, prompts: list[str], *, seed: int) -> None:
        self.client, self.found = client, Findings()
        self._prompts, self._random = prompts, random.Random(seed)

    async def run(
        self,
        requests: int,
        concurrency: int,
        *,
        until: float = math.inf,
        look: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Send `requests` requests, `concurrency` at a time.

        Args:
            requests, concurrency: how many, in all and at a time.
            until: time of the clock after which no more are sent.
            look: called after every `STEP` requests.
        """
        kinds = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=requests)
        waiting = iter(enumerate(kinds, start=1))

        async def work() -> None:
            for place, kind in waiting:
                if time.monotonic() > until:
                    return
                self.found.kinds[kind] += 1
                try:
                    await asyncio.wait_for(self._make(kind), WAIT)
                except Exception as error:
                    self.found.problems.append(f"{kind}: {type(error).__name__}: {error}")
                if place % 50 == 0:
                    print(f"{place} of {requests}, {len(self.found.problems)} problems", flush=True)
                if look is not None and place % STEP == 0:
                    await look()

        await asyncio.gather(*(work() for _ in range(concurrency)))

    async def _make(self, kind: str) -> None:
        pick, found = self._random, self.found
        path, body = self._body()
        stream = pick.random() < 0.5
        if kind == "garbage":
            said = await self.client.garbage(pick.choice(GARBAGE))
            if said[:12] not in (b"HTTP/1.1 400", b""):
                found.problems.append(f"garbage: {said[:80]!r}")
            return
        if kind == "half a request":
            await self.client.send_half(path, body)
            found.complete += 1  # the server received its head, so it must have counted it
            return
        found.complete += 1
        if kind == "bad":
            path, wrong, status = pick.choice(BAD)
            began = time.monotonic()
            answer = await self.client.ask(path, wrong)
            found.longest_refusal = max(found.longest_refusal, time.monotonic() - began)
            found.statuses[answer.status] += 1
            if answer.status != status:
                found.problems.append(f"bad: {answer.status} instead of {status}: {str(answer.body)[:200]}")
        elif kind in ("cancelled", "reset"):
            body |= {"stream": stream, "max_tokens": 100}
            after = pick.choice([0, 500, 2000]) if stream else 0
            found.blind += kind == "reset" and not after
            await self.client.leave(path, body, after=after, reset=kind == "reset")
        elif kind == "unread":
            prompt = pick.choice(self._prompts)
            body = {"prompt": prompt, "n": 16, "max_tokens": 200, "logprobs": 20, "stream": stream}
            found.cut_off += await self.client.stall(TEXTS, body, seconds=UNREAD)
        else:
            await self._ask(kind, path, body, stream=stream)

    async def _ask(self, kind: str, path: str, body: dict[str, Any], *, stream: bool) -> None:
        pick, found = self._random, self.found
        if kind == "sampled":
            body |= {"temperature": pick.choice([0.7, 1.0]), "top_p": 0.9, "top_k": 50, "seed": pick.randrange(1 << 40)}
        elif kind == "choices":
            body |= {"n": pick.choice([2, 3]), "temperature": 1, "seed": pick.randrange(1 << 40)}
        elif kind == "stop":
            body |= {"stop": pick.choice([["."], ["!", "?"], [" was"], ["\n", "never there"]])}
        elif kind == "logprobs":
            body |= {"logprobs": True, "top_logprobs": 3} if path == CHAT else {"logprobs": 3}
        elif kind == "schema":
            path, body = CHAT, {key: value for key, value in body.items() if key != "prompt"}
            body["messages"] = body.get("messages") or [{"role": "user", "content": "Who?"}]
            schema = {"name": "person", "schema": SCHEMA}
            body |= {"response_format": {"type": "json_schema", "json_schema": schema}, "max_tokens": 60}
        elif kind == "prediction":
            path, body = CHAT, {key: value for key, value in body.items() if key != "prompt"}
            body["messages"] = [{"role": "user", "content": pick.choice(self._prompts)}]
            body["prediction"] = {"type": "content", "content": " ".join(pick.sample(self._prompts, 3))}
        asked = body | {"stream": stream, "model": "bundled"}
        answer = await self.client.ask(path, asked, stream=stream, pause=0.02 if kind == "slow reader" else 0)
        found.statuses[answer.status] += 1
        texts = texts_of(answer, stream=stream)
        if answer.status != 200 or not answer.whole or len(texts) != body.get("n", 1):
            found.problems.append(f"{kind}: {answer.status} {str(answer.body or answer.events[-1:])[:300]}")
            return
        found.finished += len(texts)
        found.stopped += len(texts) * ("stop" in body)
        if kind == "schema":
            value = json.loads(texts[0])
            if value["name"] not in ("Tom", "Sue") or not 1 <= value["age"] <= 99:
                found.problems.append(f"schema: {texts[0]}")
        elif body["temperature"] == 0:
            found.greedy.append((body, texts[0]))

    def _body(self) -> tuple[str, dict[str, Any]]:
        """Return an endpoint and the body of a greedy request for it."""
        pick = self._random
        options = {"temperature": 0, "max_tokens": pick.choice([8, 16, 24, 32])}
        prompt = pick.choice(self._prompts)
        if pick.random() < 0.5:
            return TEXTS, {"prompt": prompt} | options
        messages = [{"role": "user", "content": prompt}]
        if pick.random() < 0.3:
            messages = [{"role": "system", "content": "You tell short stories to small children."}, *messages]
        return CHAT, {"messages": messages} | options


def texts_of(answer: Answer, *, stream: bool) -> list[str]:
    """Return the texts of all choices in an answer."""
    if answer.status != 200:
        return []
    if not stream:
        return [each["text"] if "text" in each else each["message"]["content"] for each in answer.body["choices"]]
    texts: dict[int, str] = {}
    for event in answer.events:
        for choice in event.get("choices", ()):
            part = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + part
    return [texts[index] for index in sorted(texts)]


async def metrics_of(client: Client) -> dict[str, float]:
    """Return the server's metrics, summed over all labels except statuses."""
    sums = dict[str, float]()
    for line in (await client.get("/metrics")).splitlines():
        name, _, value = line.rpartition(" ")
        family = name.partition("{")[0]
        own = 'path="/metrics"' in name  # requests of this function itself
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


def prompts_of(folder: Path | None) -> list[str]:
    """Return prompts: beginnings of instructions if there is a data folder, else those next to this file."""
    if folder is None:
        found: list[str] = json.loads((Path(__file__).parent / "short-prompts.json").read_text(encoding="utf-8"))
        return found
    lines = (folder / "prompts/spec-bench.jsonl").read_text(encoding="utf-8").splitlines()
    return [" ".join(json.loads(line)["turns"][0].split()[:40]) for line in lines]


async def soak(args: argparse.Namespace, process: subprocess.Popen[str], address: str) -> dict[str, Any]:
    """Run the soak and return the observations of the clients and the server's metrics."""
    host, port = address.removeprefix("http://").split(":")
    client = Client(host, int(port))
    data = os.environ.get("SPECULANT_DATA")
    run = Soak(client, prompts_of(Path(data) if data else None), seed=args.seed)
    course, began = list[dict[str, float]](), time.monotonic()

    def note(figures: dict[str, float]) -> dict[str, float]:
        course.append({"requests": run.found.kinds.total()} | {name: figures[name] for name in COURSE})
        return figures

    async def look() -> None:
        note(await inspect(client, process.pid))

    await run.run(args.warm_up, args.concurrency)
    warm = note(await settled(client, process.pid))
    until = began + 60 * args.minutes
    await run.run(args.requests - args.warm_up, args.concurrency, until=until, look=look)
    end = note(await settled(client, process.pid))
    return {"found": run.found, "warm": warm, "end": end, "course": course, "seconds": time.monotonic() - began}


def start(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a server; return it and its address once it accepts requests."""
    log = (folder / "log").open("w+", encoding="utf-8")
    memory = str(folder / "memory.speculant")
    command = [sys.executable, "-m", "speculant", "serve", "--served-model-name", "bundled", "--port", "0"]
    process = subprocess.Popen([*command, "--memory", memory, *OPTIONS], stderr=log, text=True, env=os.environ | LIMITS)
    while process.poll() is None:
        time.sleep(0.2)
        text = (folder / "log").read_text(encoding="utf-8")
        if found := re.search(r"^API +(http://[^/]+)", text, re.MULTILINE):
            return process, found.group(1)
    raise SystemExit((folder / "log").read_text(encoding="utf-8"))


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
        process, address = start(folder)
        try:
            seen = asyncio.run(soak(args, process, address))
            process.send_signal(signal.SIGTERM)
            code = process.wait(120)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        learned = describe(read_any_memory(folder / "memory.speculant"))["tokens learned"]
        files = sorted(each.name for each in folder.iterdir())
        errors = [line for line in (folder / "log").read_text(encoding="utf-8").splitlines() if "level=error" in line]
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
