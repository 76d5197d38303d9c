"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`, for speech-to-text models."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import FastAPI, File, Form, Request, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from speculant.serving.access import note
from speculant.serving.bounds import UnknownMemberError
from speculant.serving.errors import ApiError, unknown_member
from speculant.serving.lenience import unused_members
from speculant.serving.openapi import DECODING, errors
from speculant.serving.streams import EventStream, event, while_connected
from speculant.serving.transcriber import Asked, Form_, TranscriptStream

if TYPE_CHECKING:
    from speculant.api.transcription import Segment, Transcript
    from speculant.serving.model_pool import ModelPool

TRANSLATED = ("file", "model", "prompt", "response_format", "temperature", "stream")
TRANSCRIBED = (*TRANSLATED, "language", "timestamp_granularities[]")
STREAMED = ("json", "text", "verbose_json")  # response formats of streams; the last one adds segments
READS = "this model does not turn speech into text; serve a Whisper model, such as openai/whisper-small."


def add_audio_routes(app: FastAPI, models: ModelPool) -> None:
    """Add the endpoints for recordings."""

    async def answer(request: Request, file: UploadFile, model: str | None, asked: Asked) -> Response:
        _check_fields(await request.form(), TRANSCRIBED if asked.task == "transcribe" else TRANSLATED)
        if asked.stream and asked.form not in STREAMED:
            message = f"a stream is {', '.join(STREAMED[:-1])} or {STREAMED[-1]}, not {asked.form}."
            raise ApiError(400, message, param="response_format", code="unsupported_parameter")
        async with models.lend(model, request) as lent:
            if not lent.transcriber.works:
                raise ApiError(400, READS, code="unsupported")
            sound = await lent.service.media.sound(await file.read())
            if not len(sound):
                raise ApiError(400, "the recording is empty.", param="file", code="invalid_media")
            note(request, audio_seconds=round(len(sound) / (lent.service.media.rate or 1), 1))
            if not asked.stream:
                return _respond(await while_connected(request, lent.transcriber.transcribe(sound, asked)), asked)
            stream = lent.transcriber.stream(sound, asked)
            try:
                await while_connected(request, stream.begin())
            except BaseException:
                stream.close()
                raise
            return EventStream(_events(stream), stream, failed=lambda error: event(error.body()))

    @app.post("/v1/audio/transcriptions", responses=errors(*DECODING))
    async def transcriptions(
        request: Request,
        file: Annotated[UploadFile, File()],
        model: Annotated[str | None, Form()] = None,
        language: Annotated[str | None, Form(max_length=32)] = None,
        prompt: Annotated[str, Form(max_length=4096)] = "",
        response_format: Annotated[Form_, Form()] = "json",
        temperature: Annotated[float, Form(ge=0, le=2)] = 0.0,
        stream: Annotated[bool, Form()] = False,
        granularities: Annotated[
            list[Literal["segment", "word"]] | None, Form(alias="timestamp_granularities[]")
        ] = None,
    ) -> Response:
        """Transcribe a recording in its own language."""
        if "word" in (granularities or ()):
            message = "times of words are not supported; ask for those of segments."
            raise ApiError(400, message, param="timestamp_granularities", code="unsupported_parameter")
        asked = Asked(
            task="transcribe",
            language=language or None,
            prompt=prompt,
            temperature=temperature,
            form=response_format,
            stream=stream,
        )
        return await answer(request, file, model, asked)

    @app.post("/v1/audio/translations", responses=errors(*DECODING))
    async def translations(
        request: Request,
        file: Annotated[UploadFile, File()],
        model: Annotated[str | None, Form()] = None,
        prompt: Annotated[str, Form(max_length=4096)] = "",
        response_format: Annotated[Form_, Form()] = "json",
        temperature: Annotated[float, Form(ge=0, le=2)] = 0.0,
        stream: Annotated[bool, Form()] = False,
    ) -> Response:
        """Translate a recording into English text."""
        asked = Asked(
            task="translate",
            language=None,
            prompt=prompt,
            temperature=temperature,
            form=response_format,
            stream=stream,
        )
        return await answer(request, file, model, asked)


def _check_fields(form: Iterable[str], known: Sequence[str]) -> None:
    """Refuse unknown fields of a form, or ignore them if the server is lenient."""
    unused = unused_members()
    for name in form:
        if name in known:
            continue
        if not (unused and unused.lenient):
            raise unknown_member(UnknownMemberError(name, known), name)
        unused.name(name)


def _respond(found: Transcript, asked: Asked) -> Response:
    if asked.form == "text":
        return PlainTextResponse(found.text + "\n")
    if asked.form == "srt":
        return PlainTextResponse(_subtitles(found.segments, mark=","))
    if asked.form == "vtt":
        return PlainTextResponse("WEBVTT\n\n" + _subtitles(found.segments, mark="."), media_type="text/vtt")
    body: dict[str, Any] = {"text": found.text, "usage": _usage(found)}
    if asked.form == "verbose_json":
        segments = [
            {"id": place, "start": each.start, "end": each.end, "text": each.text}
            for place, each in enumerate(found.segments)
        ]
        body |= {"task": asked.task, "language": asked.language or "", "duration": found.seconds, "segments": segments}
    return JSONResponse(body)


async def _events(stream: TranscriptStream) -> AsyncIterator[bytes]:
    """Yield OpenAI's events, including events of segments (without speakers) if their times were requested."""
    places = count(1)
    async for part in stream.parts():
        for each in part.segments:
            named = {"type": "transcript.text.segment", "id": f"seg_{next(places)}", "speaker": ""}
            yield event({**named, "start": each.start, "end": each.end, "text": each.text})
        if part.text:
            yield event({"type": "transcript.text.delta", "delta": part.text})
    found = await stream.whole()
    yield event({"type": "transcript.text.done", "text": found.text, "usage": _usage(found)})


def _usage(found: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(found.seconds)}


def _subtitles(segments: tuple[Segment, ...], *, mark: str) -> str:
    """Return segments as SubRip (comma before the milliseconds, numbered) or WebVTT (full stop)."""
    lines = []
    for place, each in enumerate(segments, 1):
        number = f"{place}\n" if mark == "," else ""
        lines.append(f"{number}{_time(each.start, mark)} --> {_time(each.end, mark)}\n{each.text.strip()}\n\n")
    return "".join(lines)


def _time(seconds: float, mark: str) -> str:
    whole = round(seconds * 1000)
    return f"{whole // 3_600_000:02}:{whole // 60_000 % 60:02}:{whole // 1000 % 60:02}{mark}{whole % 1000:03}"
