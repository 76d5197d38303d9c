"""What passes between a request's coroutine and the thread that decodes: jobs one way, deltas the other.

An `Exchange` belongs to one HTTP request and holds its texts, one `Ticket` each (several with `n` or several prompts).
Everything here but `Ticket.take` runs on the event loop.
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
        options: of `Speculator.prepare`.
        inputs: what the model's processor made of media, beside the ids.
        media_tokens: how many of the ids stand for media, by their kind.
        stop: strings that end the text and are left out of it.
        marks: texts of special tokens that are part of the text, by their ids.
        tenant: whose memory drafts for it; "" for the shared one.
        prediction: token ids that the text is expected to resemble, or ().
        plain: whether to decode without drafts, and to learn nothing.
        prompt_only: whether the text is left out of the answer, which is about the prompt.
        watched: whether its pieces hold the drafts of their rounds.
        priority: the lower, the earlier it leaves the queue, among the texts of its tenant.
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
        """The prompt as `Speculator.prepare` takes it."""
        if not self.inputs:
            return self.prompt
        from torch import tensor

        return {"input_ids": tensor([list(self.prompt)]), **self.inputs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What a round added to a text.

    Attributes:
        text: that may be sent.
        tokens: how many were committed.
        finish_reason: "stop" or "length" in the last one, else None.
        error: why the text ended early, or None.
        piece: what the batch returned, with the tokens' ids and sources; a stop string may have cut it, so only the
            first `tokens` of it are in the text.
    """

    text: str = ""
    tokens: int = 0
    finish_reason: str | None = None
    error: BaseException | None = None
    piece: Piece | None = None

    @property
    def ids(self) -> list[int]:
        """The tokens."""
        return [] if self.piece is None else list(self.piece.tokens[: self.tokens])

    @property
    def last(self) -> bool:
        """Whether nothing follows."""
        return self.finish_reason is not None or self.error is not None


class Ticket:
    """One text of a request.

    Attributes:
        job, index: what is decoded, and the place of its choice in the answer.
        exchange: where its deltas go.
        submitted, admitted, first_token, last_token: when, in seconds of the clock; 0 if it has not happened.
        deadline: when it is cancelled.
        slot, number: its place among the texts decoded together, and its number of all that were; -1 while it waits.
        stats: of its decoding, once that has begun.
        prompt_logprobs: of its prompt, complete with its first delta; None where they are not recorded.
        finish_reason: how the text ended; None where it has not, or by an error.
        finished: whether the decoding thread is done with it.
        cancelled: whether that is because nobody waits for it.
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
        """The stop string that ended the text, None where none has."""
        return self._filter.found

    def take(self, generation: Generation, piece: Piece, *, last: bool) -> Delta:
        """Return what a piece adds; on the thread that decodes. A stop string in it ends the text.

        Args:
            generation: the text.
            piece: of it.
            last: whether no other piece of the text is known yet.
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
        """Return how many tokens of a piece are in the text, and the text that may be sent."""
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
        places: texts that there is room for.
        lengths: tokens of the texts that have ended well; the decoding thread's.
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
        """Hold places for texts; `EngineLoop.open` is the way in.

        Args:
            submit, cancel: take a ticket to the thread that decodes.
            release: gives back places that were not used.
            places: texts that there is room for.
            seconds: that each may take.
            buffer_tokens: of all of them that may wait to be read.
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
        """Have a text decoded."""
        ticket = Ticket(job, len(self.tickets), self, seconds=self._seconds)
        self.tickets.append(ticket)
        self._submit(ticket)
        return ticket

    def put(self, ticket: Ticket, delta: Delta) -> None:
        """Take a delta for the reader; where it has left too much unread, the request ends."""
        if self._closed:
            return
        self._deltas.append((ticket.index, delta))
        self._buffered += delta.tokens
        if self._buffered > self._maximum:
            self.fail(ApiError(408, "the client reads its answer too slowly.", code="slow_client"))
        self._arrived.set()

    def fail(self, error: ApiError) -> None:
        """End what is decoded; the reader gets the error next."""
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
            if self._closed:  # a reader whose cancellation was lost, as `asyncio.wait_for` did before Python 3.12
                raise ApiError(499, "the client closed the connection.", code="client_closed")
            self._arrived.clear()
            await self._arrived.wait()
        index, delta = self._deltas.popleft()
        self._buffered -= delta.tokens
        if delta.error is not None:
            raise api_error(delta.error) from delta.error
        return index, delta

    def close(self) -> None:
        """End what is still decoded and give back the places."""
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
