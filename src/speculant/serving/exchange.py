"""Communication between a request's coroutine and the decoding thread: jobs one way, deltas the other.

An `Exchange` belongs to one HTTP request and holds its texts, one `Ticket` each (several with `n` or several prompts).
Everything here except `Ticket.take` runs on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from speculant.serving.errors import ApiError, api_error
from speculant.serving.stops import StopFilter

if TYPE_CHECKING:
    from speculant.api.result import Generation, Piece
    from speculant.core.logprobs import TokenLogprobs
    from speculant.core.stats import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A text to decode.

    Attributes:
        prompt: token ids.
        options: options of `Speculator.prepare`.
        inputs: outputs of the model's processor for media, besides the ids.
        media_tokens: number of ids that stand for media, by kind.
        stop: strings that end the text and are not part of it.
        marks: texts of special tokens that are part of the text, by token id.
        tenant: whose memory to draft from; "" for the shared one.
        prediction: token ids that the text is expected to resemble, or ().
        plain: whether to decode without drafts and without learning.
        prompt_only: whether the text is omitted from the response, which is about the prompt.
        watched: whether its pieces include the drafts of their rounds.
        priority: texts of a tenant with lower values leave the queue earlier.
    """

    prompt: Sequence[int]
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    media_tokens: Mapping[str, int] = field(default_factory=dict)
    stop: Sequence[str] = ()
    marks: Mapping[int, str] = field(default_factory=dict)
    tenant: str = ""
    prediction: Sequence[int] = ()
    plain: bool = False
    prompt_only: bool = False
    watched: bool = False
    priority: int = 0

    @property
    def given(self) -> Any:
        """The prompt in the form that `Speculator.prepare` takes."""
        if not self.inputs:
            return self.prompt
        from torch import tensor

        return {"input_ids": tensor([list(self.prompt)]), **self.inputs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The tokens and text that a round added.

    Attributes:
        text: text that may be sent.
        tokens: number of committed tokens.
        finish_reason: "stop" or "length" in the last one, else None.
        error: why the text ended early, or None.
        piece: the batch's output, with token ids and sources; if a stop string truncated it, only its first `tokens`
            tokens are part of the text.
    """

    text: str = ""
    tokens: int = 0
    finish_reason: str | None = None
    error: BaseException | None = None
    piece: Piece | None = None

    @property
    def ids(self) -> list[int]:
        """Ids of the tokens."""
        return [] if self.piece is None else list(self.piece.tokens[: self.tokens])

    @property
    def last(self) -> bool:
        """Whether nothing follows."""
        return self.finish_reason is not None or self.error is not None


class Ticket:
    """One text of a request.

    Attributes:
        job, index: what to decode, and the index of its choice in the response.
        exchange: receives its deltas.
        submitted, admitted, first_token, last_token: times of these events, in seconds of the clock; 0 if not yet.
        deadline: time at which it is cancelled.
        slot, number: its slot among the texts decoded together, and its running number; -1 while it waits.
        stats: statistics, once decoding has begun.
        prompt_logprobs: log-probabilities of its prompt, complete with its first delta; None if not recorded.
        finish_reason: how the text ended; None if it has not, or ended with an error.
        finished: whether the decoding thread is done with it.
        cancelled: whether it was cancelled because nobody waits for it.
    """

    def __init__(self, job: Job, index: int, exchange: Exchange, *, seconds: float) -> None:
        self.job, self.index, self.exchange = job, index, exchange
        self.submitted = time.monotonic()
        self.deadline = self.submitted + seconds
        self.admitted = self.first_token = self.last_token = 0.0
        self.slot = self.number = -1
        self.stats: Stats | None = None
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self.finish_reason: str | None = None
        self.finished = self.cancelled = False
        self._filter = StopFilter(job.stop)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._filter.found

    def take(self, generation: Generation, piece: Piece, *, last: bool) -> Delta:
        """Convert a piece to a delta, on the decoding thread; a stop string in it ends the text.

        Args:
            generation: the text's generation.
            piece: a piece of it.
            last: whether it is the last piece of the text available so far.
        """
        if self.job.prompt_only and generation.error is None:
            return Delta(finish_reason="length")
        count, text = len(piece.tokens), piece.text
        if self.job.stop:
            count, text = self._filter_piece(piece)
            if self._filter.stopped:
                return Delta(text=text, tokens=count, finish_reason="stop", piece=piece)
        if last and generation.error is not None:
            return Delta(text=text, tokens=count, error=generation.error, piece=piece)
        if last and generation.done:
            reason = generation.result.finish_reason
            return Delta(text=text + self._filter.flush(), tokens=count, finish_reason=reason, piece=piece)
        return Delta(text=text, tokens=count, piece=piece)

    def _filter_piece(self, piece: Piece) -> tuple[int, str]:
        """Return how many tokens of a piece are part of the text, and the text that may be sent."""
        text = ""
        for count, each in enumerate(piece.texts, start=1):
            text += self._filter.push(each)
            if self._filter.stopped:
                return count, text
        return len(piece.tokens), text


class Exchange:
    """The texts of one HTTP request.

    Attributes:
        tickets: its texts, in the order of the choices.
        places: maximum number of its texts.
        lengths: numbers of tokens of the texts that ended without error; written by the decoding thread.
    """

    def __init__(
        self,
        submit: Callable[[Ticket], None],
        cancel: Callable[[Ticket], None],
        release: Callable[[int], None],
        *,
        places: int,
        seconds: float,
        buffer_tokens: int,
    ) -> None:
        """Reserve places for texts; use `EngineLoop.open` to create one.

        Args:
            submit, cancel: pass a ticket to the decoding thread.
            release: releases unused places.
            places: maximum number of texts.
            seconds: maximum time of each text.
            buffer_tokens: maximum number of unread tokens of all texts.
        """
        self._submit, self._cancel, self._release = submit, cancel, release
        self.places, self._seconds, self._maximum = places, seconds, buffer_tokens
        self._deltas: deque[tuple[int, Delta]] = deque()
        self._buffered = 0
        self._arrived = asyncio.Event()
        self._closed = False
        self.tickets: list[Ticket] = []
        self.lengths: list[int] = []

    def submit(self, job: Job) -> Ticket:
        """Submit a text for decoding."""
        ticket = Ticket(job, len(self.tickets), self, seconds=self._seconds)
        self.tickets.append(ticket)
        self._submit(ticket)
        return ticket

    def put(self, ticket: Ticket, delta: Delta) -> None:
        """Queue a delta for the reader; if too much is unread, the request ends."""
        if self._closed:
            return
        self._deltas.append((ticket.index, delta))
        self._buffered += delta.tokens
        if self._buffered > self._maximum:
            self.fail(ApiError(408, "the client reads its answer too slowly.", code="slow_client"))
        self._arrived.set()

    def fail(self, error: ApiError) -> None:
        """Cancel the texts; the reader gets the error next."""
        if self._closed:
            return
        self._deltas.clear()
        self._deltas.append((0, Delta(error=error)))
        self._end_tickets()
        self._arrived.set()

    async def get(self) -> tuple[int, Delta]:
        """Return the next delta and the index of its choice.

        Raises:
            ApiError: a text failed, or the exchange is closed.
        """
        while not self._deltas:
            if self._closed:  # for a reader whose cancellation was lost, as in `asyncio.wait_for` before Python 3.12
                raise ApiError(499, "the client closed the connection.", code="client_closed")
            self._arrived.clear()
            await self._arrived.wait()
        index, delta = self._deltas.popleft()
        self._buffered -= delta.tokens
        if delta.error is not None:
            raise api_error(delta.error) from delta.error
        return index, delta

    def close(self) -> None:
        """Cancel texts that are still being decoded and release the places."""
        if self._closed:
            return
        self._closed = True
        self._deltas.clear()
        self._arrived.set()
        self._end_tickets()
        self._release(self.places - len(self.tickets))

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_tickets(self) -> None:
        for ticket in self.tickets:
            if not ticket.finished:
                self._cancel(ticket)
