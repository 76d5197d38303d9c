"""Recordings through the official client: texts and times are those of the library."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile
import torch
from openai import APIError, AsyncOpenAI, BadRequestError

from encoder_decoders import noisy_copy
from servers import MODEL, client_of, make_app, running
from speculant import Speculator
from speculant.api.transcription import transcribe
from speculant.cli.loading import load_speculator
from speculant.core.errors import UsageError
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions
from speculant.serving.lenience import UNUSED
from speculant.serving.transcriber import Asked, Transcriber
from whispers import RATE, build_whisper

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore")]  # transformers warns of Whisper's own options


def recording(seconds: float, kind: str = "WAV") -> bytes:
    """Return a file of noise."""
    file = io.BytesIO()
    soundfile.write(file, sound(seconds), RATE, format=kind, subtype="FLOAT" if kind == "WAV" else None)
    return file.getvalue()


def sound(seconds: float) -> Any:
    """Return samples Float32[N]."""
    return np.random.default_rng(1).normal(0, 0.3, int(seconds * RATE)).astype(np.float32)


@pytest.fixture(scope="module")
def hearing() -> Speculator:
    """Return a speculator of a tiny Whisper."""
    model, processor = build_whisper()
    return Speculator.from_transformers(model, processor, method="mix", nodes=6, fast=False)


async def test_the_official_client_gets_the_text_in_every_form(hearing: Speculator) -> None:
    """Guards the forms of an answer, streams, and that nobody else's recording changes a text."""
    expected = transcribe(hearing, hearing.processor, sound(1.6), timestamps=True)
    short = transcribe(hearing, hearing.processor, sound(0.8))
    app = make_app(hearing)
    async with running(app), client_of(app) as http:
        client = AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http)
        create: Any = client.audio.transcriptions.create
        named = ("a.wav", recording(1.6))
        found = await create(model=MODEL, file=named, response_format="verbose_json")
        assert found.text == expected.text
        assert [(each.start, each.end, each.text) for each in found.segments] == [
            (each.start, each.end, each.text) for each in expected.segments
        ]
        assert round(found.duration, 1) == 1.6
        srt = await create(model=MODEL, file=named, response_format="srt")
        assert srt.startswith("1\n00:00:00")
        assert srt.count(" --> ") == len(expected.segments)
        vtt = await create(model=MODEL, file=named, response_format="vtt")
        assert vtt.startswith("WEBVTT\n\n00:00:00.")
        texts = await asyncio.gather(*(create(model=MODEL, file=("a.wav", recording(0.8))) for _ in range(3)))
        assert {each.text for each in texts} == {short.text}
        assert (await create(model=MODEL, file=("a.wav", recording(0.8)), response_format="text")).strip() == short.text
        events = [event async for event in await create(model=MODEL, file=named, stream=True)]
        *deltas, done = events
        assert {event.type for event in deltas} == {"transcript.text.delta"}
        assert len(deltas) > 1
        assert "".join(event.delta for event in deltas) == done.text == expected.text
        assert (done.type, done.usage.seconds) == ("transcript.text.done", 2)
        timed = await create(model=MODEL, file=named, stream=True, response_format="verbose_json")
        segments = [event async for event in timed if event.type == "transcript.text.segment"]
        assert [(each.start, each.end, each.text) for each in segments] == [
            (each.start, each.end, each.text) for each in expected.segments
        ]
        card = (await client.models.list()).data[0]
        assert card.model_dump()["modalities"] == ["transcription"]


async def test_a_draft_model_changes_no_text(tmp_path: Path) -> None:
    """Guards `serve --draft-model`: transcripts and translations of several windows are those of plain decoding."""
    model, processor = build_whisper(multilingual=True)
    model.generation_config.max_length = 24
    for name, each in (("target", model), ("draft", noisy_copy(model, 0.02, encoder=True))):
        each.save_pretrained(tmp_path / name)
        processor.save_pretrained(tmp_path / name)
    loaded = load_speculator(
        ModelOptions(model=str(tmp_path / "target"), fast=False),
        DraftingOptions(
            method="draft-model", draft_model=(str(tmp_path / "draft"),), verifier="sample-then-follow", nodes=3
        ),
    )
    plain = Speculator.from_transformers(model, processor, method="none", fast=False)
    app, heard = make_app(loaded.speculator), sound(1.2)
    async with running(app), client_of(app) as http:
        client = AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http)
        asked: dict[str, Any] = {"model": MODEL, "file": ("a.wav", recording(1.2))}
        written = await client.audio.transcriptions.create(**asked, language="de", response_format="verbose_json")
        expected = transcribe(plain, processor, heard, language="de", task="transcribe", timestamps=True)
        assert written.text == expected.text
        assert [(each.start, each.end, each.text) for each in written.segments or ()] == [
            (each.start, each.end, each.text) for each in expected.segments
        ]
        translated = await client.audio.translations.create(**asked)
        assert translated.text == transcribe(plain, processor, heard, task="translate").text != written.text
        assert loaded.speculator.last_stats is not None
        assert loaded.speculator.last_stats.accepted > 0
        torch.manual_seed(4)
        drawn = await client.audio.transcriptions.create(**asked, language="de", temperature=0.7)
        torch.manual_seed(4)
        options = {"do_sample": True, "temperature": 0.7}
        assert drawn.text == transcribe(plain, processor, heard, language="de", options=options).text


async def test_a_failing_stream_ends_with_an_error(hearing: Speculator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards streams: what fails before the first event has a status, later ones an event; the next one is decoded."""
    app, windows, fails_at = make_app(hearing), 0, 1
    own = type(hearing.model).generate_with_fallback

    def failing(*given: Any, **named: Any) -> Any:
        nonlocal windows
        windows += 1
        if windows == fails_at:
            raise UsageError("this window fails.")
        return own(*given, **named)

    monkeypatch.setattr(type(hearing.model), "generate_with_fallback", failing)
    async with running(app), client_of(app) as http:
        client = AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http, max_retries=0)
        create: Any = client.audio.transcriptions.create
        asked: dict[str, Any] = {"model": MODEL, "file": ("a.wav", recording(1.6)), "stream": True}
        with pytest.raises(BadRequestError, match="window fails"):
            await create(**asked)
        windows, fails_at = 0, 2
        stream, found = await create(**asked), list[str]()

        async def read() -> None:
            async for event in stream:
                found.append(event.type)

        with pytest.raises(APIError, match="window fails"):
            await read()
        assert found == ["transcript.text.delta"]
        fails_at = 0
        assert (await create(**{**asked, "stream": False})).text


async def test_a_client_that_leaves_ends_its_decoding(hearing: Speculator) -> None:
    """Guards the model's thread: a stream that is closed early does not occupy it."""
    transcriber = Transcriber(hearing, queue=4, seconds=60)
    asked = Asked(task="transcribe", language=None, prompt="", temperature=0, form="json", stream=True)
    stream = transcriber.stream(sound(60), asked)
    await stream.begin()
    assert transcriber.busy
    stream.close()
    with pytest.raises(asyncio.CancelledError):
        await stream.whole()
    assert not transcriber.busy
    assert (await transcriber.transcribe(sound(0.8), asked)).text
    transcriber.close()


async def test_what_cannot_be_heard_is_refused(hearing: Speculator) -> None:
    """Guards bad recordings and options: each is a 400 with the reason, and good ones go on."""
    app = make_app(hearing, max_audio_seconds=3, max_media_bytes=300_000)

    async with running(app), client_of(app) as client:

        async def send(data: bytes | None, **form: str) -> httpx2.Response:
            files = {} if data is None else {"file": ("a.wav", data)}
            return await client.post("/v1/audio/transcriptions", files=files, data=form)

        for answer, said in [
            (await send(b""), "cannot read"),
            (await send(b"RIFF not sound"), "cannot read"),
            (await send(recording(4)), "at most 3 s"),
            (await send(bytes(400_000)), "larger"),
            (await send(None), "file"),
            (await send(recording(0.5), model="another"), "no model"),
            (await send(recording(0.5), response_format="xml"), "response_format"),
            (await send(recording(0.5), language="de"), "English"),
            (await send(recording(0.5), **{"timestamp_granularities[]": "word"}), "words"),
            (await send(recording(0.5), keywords="dog"), "no parameter 'keywords'"),
            (await send(recording(0.5), stream="true", response_format="srt"), "not srt"),
            (await send(recording(0.5), stream="true", language="de"), "English"),
            (await client.post("/v1/audio/translations", files={"file": ("a.wav", recording(0.5))}), "English"),
            (
                await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "w1"}]}),
                "speech",
            ),
        ]:
            assert answer.status_code in (400, 404), answer.text
            assert said in answer.json()["error"]["message"], answer.text
        assert (await send(recording(0.5))).status_code == 200
    app = make_app(hearing, lenient=True)
    async with running(app), client_of(app) as client:
        answer = await send(recording(0.5), keywords="dog")
        assert (answer.status_code, answer.headers[UNUSED]) == (200, "keywords")
        assert (await client.get("/props")).json()["modalities"] == {"vision": False, "audio": True}


async def test_other_models_hear_nothing(speculator: Speculator) -> None:
    """Guards text models: the error says what to serve."""
    app = make_app(speculator)
    async with running(app), client_of(app) as client:
        answer = await client.post("/v1/audio/transcriptions", files={"file": ("a.wav", recording(0.1))})
    assert answer.status_code == 400
    assert "whisper" in answer.json()["error"]["message"]
