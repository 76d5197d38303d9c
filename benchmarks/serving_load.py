"""The clients of `serving.py`: streaming requests to an OpenAI-compatible server, and their figures.

A client sends its next request when its last answer has ended. Received bytes are stored with their arrival time and
parsed after all answers have ended, so that the clients take little CPU time from a server on the same machine.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

PERCENTILES = (50, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A greedy completion.

    Attributes:
        model: the model's name on the server.
        prompt: the prompt text.
        max_tokens: maximum tokens of the answer.
    """

    model: str
    prompt: str
    max_tokens: int

    def encoded(self, host: str) -> bytes:
        """Return the HTTP request."""
        body = {
            "model": self.model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + data


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a request.

    Attributes:
        text: the completion.
        tokens: number of tokens, as counted by the server.
        began: when the request was sent, in seconds of `time.perf_counter` of the measuring process.
        arrivals: when each piece of the text arrived, on the same clock.
    """

    text: str
    tokens: int
    began: float
    arrivals: Sequence[float]


async def ask_all(port: int, requests: Sequence[Request], *, clients: int) -> list[Answer]:
    """Return the answers to requests in the same order, sending up to `clients` requests at a time.

    Raises:
        RuntimeError: if a request failed, with the server's message.
    """
    waiting, found = deque(enumerate(requests)), dict[int, Answer]()

    async def client() -> None:
        while waiting:
            place, request = waiting.popleft()
            found[place] = await ask(port, request)

    await asyncio.gather(*(client() for _ in range(clients)))
    return [found[place] for place in range(len(requests))]


async def ask(port: int, request: Request) -> Answer:
    """Return the answer to a request.

    Raises:
        RuntimeError: if the request failed, with the server's message.
    """
    host = f"127.0.0.1:{port}"
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request.encoded(host))
        status = (await reader.readline()).split(maxsplit=2)[1]
        chunked = False
        while (line := (await reader.readline()).strip().lower()) != b"":
            chunked |= line.startswith(b"transfer-encoding:") and line.endswith(b"chunked")
        if status != b"200" or not chunked:
            raise RuntimeError(f"the server answered {status.decode()}: {(await reader.read()).decode()[:400]}")
        parts = [(time.perf_counter(), part) async for part in _chunks(reader)]
    finally:
        writer.close()
    return _parsed(parts, began)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the chunks of a body (RFC 9112, section 7.1)."""
    while size := int(await reader.readline(), 16):
        yield (await reader.readexactly(size + 2))[:-2]


def _parsed(parts: Sequence[tuple[float, bytes]], began: float) -> Answer:
    """Return the answer contained in server-sent events; an event arrives with its last byte."""
    text, tokens, arrivals, left = "", 0, list[float](), b""
    for arrived, part in parts:
        *events, left = (left + part).split(b"\n\n")
        pieces = [json.loads(event[6:]) for event in events if event.startswith(b"data: {")]
        if any("error" in piece for piece in pieces):
            raise RuntimeError(f"the server ended a stream: {pieces}"[:400])
        added = "".join(choice["text"] or "" for piece in pieces for choice in piece["choices"])
        if added:
            text += added
            arrivals.append(arrived)
        for piece in pieces:
            tokens = (piece.get("usage") or {}).get("completion_tokens", tokens)
    return Answer(text=text, tokens=tokens, began=began, arrivals=arrivals)


def figures(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return throughput, and percentiles of latencies in milliseconds.

    Time to first token counts from sending the request. Inter-token latency is the time between two pieces of a text,
    which hold several tokens if drafts are accepted. Time per output token is the time of a text after its first piece,
    divided by the number of tokens after the first.
    """
    began, ended = min(each.began for each in answers), max(each.arrivals[-1] for each in answers)
    tokens = sum(each.tokens for each in answers)
    first = [each.arrivals[0] - each.began for each in answers]
    between = [gap for each in answers for gap in np.diff(each.arrivals)]
    each_token = [(each.arrivals[-1] - each.arrivals[0]) / (each.tokens - 1) for each in answers if each.tokens > 1]
    return {
        "tokens": tokens,
        "seconds": round(ended - began, 4),
        "tokens_per_second": round(tokens / (ended - began), 3),
        "time_to_first_token_ms": percentiles(first),
        "inter_token_latency_ms": percentiles(between),
        "time_per_output_token_ms": percentiles(each_token),
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return percentiles in milliseconds; empty if there are no values."""
    if not seconds:
        return {}
    return {f"p{share}": round(1e3 * float(np.percentile(seconds, share)), 3) for share in PERCENTILES}
