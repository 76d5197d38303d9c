"""The requests of `serving_soak.py`: of every kind, a quarter of them misbehaving, and what their clients observe."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak_client import Answer, Client

CHAT, TEXTS = "/v1/chat/completions", "/v1/completions"
WAIT, UNREAD = 300, 60  # seconds to wait for an answer, and to leave one unread
STEP = 500  # requests between two calls of `look`
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


class Traffic:
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


def prompts_of(folder: Path | None) -> list[str]:
    """Return prompts: beginnings of instructions if there is a data folder, else those next to this file."""
    if folder is None:
        found: list[str] = json.loads((Path(__file__).parent / "short-prompts.json").read_text(encoding="utf-8"))
        return found
    lines = (folder / "prompts/spec-bench.jsonl").read_text(encoding="utf-8").splitlines()
    return [" ".join(json.loads(line)["turns"][0].split()[:40]) for line in lines]
