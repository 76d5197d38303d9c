"""Images in chats: the text is that of the library, with drafts, and its tokens are counted."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI, BadRequestError
from PIL import Image

from media_models import build_media_model, make_processor
from servers import MODEL, client_of, make_app, running
from speculant import Speculator
from speculant.options.serving import ServingOptions
from speculant.serving.media import MediaReader

pytestmark = pytest.mark.anyio


def picture(color: tuple[int, int, int], kind: str = "PNG") -> str:
    """Return a data: URL of an image."""
    file = io.BytesIO()
    Image.new("RGB", (9, 8), color).save(file, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def messages(url: str, text: str = "w7 w8 w9") -> list[dict[str, Any]]:
    """Return a chat about an image."""
    parts = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


@pytest.fixture(scope="module")
def seeing() -> Speculator:
    """Return a speculator of a tiny model that takes images."""
    model, _ = build_media_model("llava")
    return Speculator.from_transformers(model, make_processor(), method="mix", nodes=6, fast=False)


async def test_the_official_client_sends_images(seeing: Speculator) -> None:
    """Guards texts with images: whole and streamed as the library decodes them, other images giving other texts."""
    app, texts = make_app(seeing), []
    async with running(app), client_of(app) as http:
        client = AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http)
        for color in ((250, 20, 20), (10, 10, 240), (250, 20, 20)):
            asked: Any = {"model": MODEL, "messages": messages(picture(color)), "max_tokens": 12, "temperature": 0}
            whole = await client.chat.completions.create(**asked)
            stream = await client.chat.completions.create(**asked, stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            texts.append(whole.choices[0].message.content)
            assert "".join(pieces) == texts[-1]
            details: Any = whole.usage and whole.usage.prompt_tokens_details
            assert (details.image_tokens, details.cached_tokens) == (4, 0)
        card = (await client.models.list()).data[0]
        assert card.model_dump()["modalities"] == ["text", "image"]
    assert texts[0] == texts[2] != texts[1]
    alone = Speculator.from_transformers(seeing.model, make_processor(), method="none", fast=False)
    expected = alone.generate(messages(picture((250, 20, 20))), max_new_tokens=12, temperature=0)
    assert texts[0] == expected.text


async def test_images_and_texts_are_decoded_together(seeing: Speculator) -> None:
    """Guards batches: requests with and without images at once yield what each yields alone."""
    import asyncio

    app = make_app(seeing)
    asked = [messages(picture((200, 200, 0))), [{"role": "user", "content": "w3 w4"}], messages(picture((0, 99, 0)))]
    async with running(app), client_of(app) as http:
        client = AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http)

        async def text(given: Any) -> str | None:
            answer = await client.chat.completions.create(
                model=MODEL, messages=given, max_tokens=16, temperature=0.8, seed=3
            )
            return answer.choices[0].message.content

        alone = [await text(each) for each in asked]
        assert await asyncio.gather(*map(text, asked)) == alone


def test_memories_learn_no_placeholders(seeing: Speculator) -> None:
    """Guards memories: tokens that stand for an image are no text, while the model reads them all."""
    generation = seeing.prepare(messages(picture((1, 2, 3))), max_new_tokens=2)
    assert generation.sequence.start.prompt.tolist() == [7, 8, 9]
    assert generation.sequence.stats.prompt_tokens == 4 + 3


async def test_a_model_of_text_says_so(speculator: Speculator) -> None:
    """Guards clients of other models: the error says what the model reads."""
    app = make_app(speculator)
    async with running(app), client_of(app) as http:
        client = AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http)
        with pytest.raises(BadRequestError, match="reads text"):
            await client.chat.completions.create(model=MODEL, messages=messages(picture((1, 2, 3))))  # type: ignore
        assert (await client.models.list()).data[0].model_dump()["modalities"] == ["text"]


async def test_videos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards videos: data: URLs and fetched ones give the library's text, drafted; what exceeds a limit is refused."""
    from clips import ClipProcessor, make_clip
    from speculant.serving.fetching import Fetcher

    model, _ = build_media_model("qwen2_vl")
    speculator = Speculator.from_transformers(model, ClipProcessor(), method="mix", nodes=6, fast=False)
    clip = make_clip(20)
    url = f"data:video/mp4;base64,{base64.b64encode(clip).decode()}"

    def asked(address: str) -> list[dict[str, Any]]:
        text = {"type": "text", "text": "w7 w8 w9"}
        return [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": address}}, text]}]

    alone = Speculator.from_transformers(model, ClipProcessor(), method="none", fast=False)
    expected = alone.generate(asked(url), max_new_tokens=12, temperature=0).text
    fetched = list[tuple[str, str]]()

    def fetch(self: Fetcher, address: str, *, kind: str, param: str) -> bytes:
        fetched.append((address, kind))
        return clip

    monkeypatch.setattr(Fetcher, "fetch", fetch)
    app = make_app(speculator, max_video_seconds=5)
    async with running(app), client_of(app) as client:

        async def answer(address: str) -> Any:
            body = {"messages": asked(address), "max_tokens": 12, "temperature": 0}
            return (await client.post("/v1/chat/completions", json=body)).json()

        for address in (url, "https://example.com/a.mp4"):
            found = await answer(address)
            assert found["choices"][0]["message"]["content"] == expected
            assert found["usage"]["prompt_tokens_details"]["video_tokens"] == 8
        assert fetched == [("https://example.com/a.mp4", "video")]
        long = await answer(f"data:video/mp4;base64,{base64.b64encode(make_clip(30)).decode()}")
        assert (long["error"]["code"], long["error"]["param"]) == ("invalid_media", "messages.0.content.0")
        assert "6 s long" in long["error"]["message"]
        assert "as a video" in (await answer("data:video/mp4;base64,AAAA"))["error"]["message"]
        assert (await client.get("/v1/models")).json()["data"][0]["modalities"] == ["text", "video"]


async def test_turned_photos_are_upright(seeing: Speculator) -> None:
    """Guards photos of phones in requests: they are turned as their EXIF says."""
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 4)).save(file, "JPEG", exif=exif)
    url = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
    reader = MediaReader(seeing, ServingOptions())
    [part] = await reader.read([({"type": "image_url", "image_url": {"url": url}}, "messages")])
    reader.close()
    assert part["image"].size == (4, 8)


def test_samples_are_read_from_bytes() -> None:
    """Guards recordings in requests: a file in memory is read as one on disk."""
    import soundfile

    from speculant.api.transcription import read_sound

    file = io.BytesIO()
    soundfile.write(file, np.zeros((800, 2), np.float32), 8000, format="WAV")
    file.seek(0)
    assert read_sound(file, 16_000, max_seconds=1).shape == (1600,)
