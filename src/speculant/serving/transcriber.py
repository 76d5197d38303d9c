"""Transcription of the recordings of all clients.

Recordings are decoded one after the other, on a separate thread that is the only user of the model: Whisper's long-form
decoding is that of transformers and processes a recording to its end, see `speculant.api.transcription`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from speculant.core.errors import UsageError
from speculant.serving.errors import SERVER, ApiError, queue_full

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator
    from speculant.api.transcription import Transcript, TranscriptPart

Form_ = Literal["json", "text", "srt", "verbose_json", "vtt"]
TIMED = ("srt", "vtt", "verbose_json")
HEARS = "this model turns speech into text; send recordings to /v1/audio/transcriptions."


def hears(speculator: Speculator) -> bool:
    """Return whether a model is a speech-to-text model and nothing else."""
    model, processor = speculator.model, speculator.processor
    return (
        getattr(model, "main_input_name", "") == "input_features"
        and hasattr(model, "generate_with_fallback")
        and getattr(processor, "feature_extractor", None) is not None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The parameters of a transcription request.

    Attributes:
        task: "transcribe" or "translate".
        language: language of the speech; None to detect it.
        prompt: text that the transcript continues; "" for none.
        temperature: 0 for greedy decoding.
        form: format of the response.
        stream: whether the response is streamed as events.
    """

    task: str
    language: str | None
    prompt: str
    temperature: float
    form: Form_
    stream: bool


class Transcriber:
    """Transcribes the recordings of all clients.

    Attributes:
        works: whether the model can transcribe at all.
    """

    def __init__(self, speculator: Speculator, *, queue: int, seconds: float) -> None:
        """Create the transcriber.

        Args:
            speculator: the model, which nothing else may use at the same time.
            queue: maximum number of recordings being decoded or waiting.
            seconds: maximum time of a recording, including waiting.
        """
        self._speculator, self._queue, self._seconds = speculator, queue, seconds
        self.works = hears(speculator)
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="speculant-transcriber")

    @property
    def busy(self) -> bool:
        """Whether recordings are being decoded or wait."""
        return self._waiting > 0

    def close(self) -> None:
        """Stop the thread, once its current recording has ended."""
        self._thread.shutdown(cancel_futures=True)

    def stream(self, sound: Any, asked: Asked) -> TranscriptStream:
        """Start transcribing samples Float32[N], part by part; see `transcribe`."""
        return TranscriptStream(lambda received: self.transcribe(sound, asked, received))

    async def transcribe(
        self, sound: Any, asked: Asked, received: Callable[[TranscriptPart], object] | None = None
    ) -> Transcript:
        """Return the transcript of samples Float32[N]; decoding ends if this is cancelled.

        Args:
            sound: the samples, at the rate of the model's feature extractor.
            asked: parameters of the request.
            received: function called on another thread with the part that each window adds.

        Raises:
            ApiError: the queue is full, it took too long, or the model refuses an option.
        """
        if self._waiting >= self._queue:
            raise queue_full(self._queue, "recordings")
        self._waiting += 1
        ended = threading.Event()
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._thread, self._decode, sound, asked, received, ended, time.monotonic() + self._seconds
            )
        finally:
            ended.set()
            self._waiting -= 1

    def _decode(
        self,
        sound: Any,
        asked: Asked,
        received: Callable[[TranscriptPart], object] | None,
        ended: threading.Event,
        until: float,
    ) -> Transcript:
        from transformers import StoppingCriteria, StoppingCriteriaList

        from speculant.api.transcription import transcribe

        class _While(StoppingCriteria):  # type: ignore[misc]
            def check(self) -> None:
                if ended.is_set():
                    raise ApiError(499, "the client closed the connection.", code="client_closed")
                if time.monotonic() > until:
                    message = "the recording took longer than the server allows. Send a shorter one."
                    raise ApiError(504, message, type=SERVER, code="timeout")

            def __call__(self, ids: Any, scores: Any, **_: Any) -> Any:
                self.check()
                return ids.new_zeros(len(ids)).bool()

        going = _While()
        going.check()
        options: dict[str, Any] = {"stopping_criteria": StoppingCriteriaList([going])}
        processor = self._speculator.processor
        if asked.prompt:
            options["prompt_ids"] = processor.get_prompt_ids(asked.prompt, return_tensors="pt")
        if asked.temperature:
            options |= {"do_sample": True, "temperature": asked.temperature}
        multilingual = getattr(self._speculator.model.generation_config, "is_multilingual", False)
        if not multilingual and (asked.language not in (None, "en", "english") or asked.task == "translate"):
            raise UsageError("this model knows English alone: leave 'language' out, and transcribe.")
        return transcribe(
            self._speculator,
            processor,
            sound,
            language=asked.language if multilingual else None,
            task=asked.task if multilingual else None,
            timestamps=asked.form in TIMED,
            options=options,
            received=received,
        )


class TranscriptStream:
    """A transcript that is being decoded part by part, whether or not the parts are read."""

    def __init__(self, decode: Callable[[Callable[[TranscriptPart], object]], Coroutine[Any, Any, Transcript]]) -> None:
        """Start decoding; `decode` takes the callback for parts, which it may call on any thread."""
        loop = asyncio.get_running_loop()
        self._parts: asyncio.Queue[TranscriptPart | None] = asyncio.Queue()  # None at the end
        self._begun = asyncio.Event()
        self._decoding = loop.create_task(decode(lambda part: loop.call_soon_threadsafe(self._put, part)))
        self._decoding.add_done_callback(self._end)

    def _put(self, part: TranscriptPart | None) -> None:
        self._parts.put_nowait(part)
        self._begun.set()

    def _end(self, decoding: asyncio.Task[Transcript]) -> None:
        if not decoding.cancelled():
            decoding.exception()  # marks it as retrieved, since the client may have left
        self._put(None)

    async def begin(self) -> None:
        """Wait for the first part.

        Raises:
            ApiError, SpeculantError: decoding failed, see `Transcriber.transcribe`.
        """
        await self._begun.wait()
        if self._decoding.done():
            self._decoding.result()

    async def parts(self) -> AsyncIterator[TranscriptPart]:
        """Yield the parts until the transcript ends or decoding fails."""
        while (part := await self._parts.get()) is not None:
            yield part

    async def whole(self) -> Transcript:
        """Return the transcript, or raise why decoding failed."""
        return await self._decoding

    def close(self) -> None:
        """Stop decoding, if it has not ended."""
        self._decoding.cancel()
