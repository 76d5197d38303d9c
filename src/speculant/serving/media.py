"""Images, audio and video in requests: checked against limits, then decoded on threads off the event loop.

A file of a few kilobytes can decode to gigabytes, so sizes and lengths are read from its header and checked first, and
only common formats are opened at all.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from speculant.api.media_prompts import URLS, media_kinds, upright
from speculant.api.video import VideoLimits, read_video
from speculant.core.errors import SpeculantError
from speculant.options.serving import ServingOptions
from speculant.serving.errors import ApiError
from speculant.serving.fetching import Fetcher

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # image formats that are opened
THREADS = 2
DETAILS = (None, "auto", "low", "high")
DECODING_SECONDS = 30.0  # for one video
WANTED = {"url": '{"url": ...}', "data": '{"data": base64, "format": ...}'}


class MediaReader:
    """Reads the media of one model's requests.

    Attributes:
        kinds: those of "image", "audio" and "video" that the model takes in chats.
        rate: sampling rate of the model's audio input; None if it takes none.
    """

    def __init__(self, speculator: Speculator, settings: ServingOptions) -> None:
        """Determine what the model takes."""
        processor, capabilities = speculator.processor, speculator.engine.capabilities
        self.kinds = media_kinds(processor) if processor is not None and capabilities.media else ()
        self._processor = processor
        extractor = getattr(processor, "feature_extractor", None)
        self.rate = None if extractor is None else int(getattr(extractor, "sampling_rate", 16_000))
        self._max_files, self._max_bytes = settings.max_media, settings.max_media_bytes
        self._max_pixels, self._max_seconds = settings.max_pixels, settings.max_audio_seconds
        self._video_limits = VideoLimits(
            seconds=settings.max_video_seconds,
            frames=settings.max_video_frames,
            pixels=settings.max_pixels,
            all_pixels=settings.max_pixels * max(1, settings.max_media),
            decoding_seconds=DECODING_SECONDS,
        )
        self._fetcher = Fetcher(settings.media_hosts, settings.max_media_bytes, settings.fetch_seconds)
        self._workers = ThreadPoolExecutor(THREADS, thread_name_prefix="speculant-media")

    def close(self) -> None:
        """Stop the threads."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    async def read(self, parts: Sequence[tuple[Mapping[str, Any], str]]) -> list[dict[str, Any]]:
        """Decode parts of messages to images, samples and frames, for `api.media_prompts`.

        Args:
            parts: OpenAI's `image_url` and `input_audio` parts, and `video_url` parts in the same form, each with its
                location in the request.

        Raises:
            ApiError: there are too many, the model does not take their kind, or one cannot be read.
        """
        if len(parts) > self._max_files:
            message = f"the request has {len(parts)} files, and at most {self._max_files} are taken."
            raise ApiError(400, message, param=parts[self._max_files][1], code="invalid_media")
        for part, param in parts:
            self._check(part, param)
        loop = asyncio.get_running_loop()
        return list(
            await asyncio.gather(
                *(loop.run_in_executor(self._workers, self._read, part, param) for part, param in parts)
            )
        )

    async def sound(self, data: bytes, *, param: str = "file") -> Any:
        """Decode the samples of a recording, Float32[N].

        Raises:
            ApiError: it is too large or too long, or cannot be read.
        """
        if len(data) > self._max_bytes:
            raise _error(f"it is larger than {self._max_bytes} bytes", param)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, self._decode_sound, data, param)

    def _check(self, part: Mapping[str, Any], param: str) -> None:
        """Check a part as far as possible before it is read."""
        kind, member = URLS.get(str(part.get("type")), (None, ""))
        if kind is None or kind not in self.kinds:
            taken = " and ".join(["text", *self.kinds])
            message = f"content of type '{str(part.get('type'))[:40]}' is not supported: this model reads {taken}."
            raise ApiError(400, message, param=param, code="unsupported_content")
        named = part.get(str(part["type"]))
        value = named.get(member) if isinstance(named, Mapping) else None
        if not isinstance(value, str) or not value:
            raise _error(f"a part of the type {part['type']} holds {WANTED[member]}", param)
        if isinstance(named, Mapping) and kind == "image" and named.get("detail") not in DETAILS:
            raise _error("'detail' is auto, low or high", param)
        if len(value) > self._max_bytes * 4 // 3 + 100:
            raise _error(f"it is larger than {self._max_bytes} bytes", param)

    def _read(self, part: Mapping[str, Any], param: str) -> dict[str, Any]:
        kind, member = URLS[part["type"]]
        if kind == "audio":
            return {"type": kind, kind: self._decode_sound(_decode(part["input_audio"]["data"], param), param)}
        url = part[part["type"]][member]
        if url[:5].lower() == "data:":
            data = _decode(url.partition(",")[2], param)
        else:
            data = self._fetcher.fetch(url, kind=kind, param=param)
        if kind == "video":
            return {"type": kind, kind: self._decode_video(data, param)}
        return {"type": kind, kind: self._decode_image(data, param)}

    def _decode_image(self, data: bytes, param: str) -> Any:
        """Decode an image to RGB."""
        try:
            from PIL import Image
        except ImportError as error:
            raise ApiError(400, "images need the packages of speculant[media] on the server.", param=param) from error
        try:
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                width, height = image.size
                if width * height > self._max_pixels:
                    raise _error(f"{width} x {height} pixels are more than {self._max_pixels}", param)
                return upright(image)
        except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
            raise _error(f"it cannot be read as an image ({', '.join(FORMATS)}): {error}", param) from error

    def _decode_sound(self, data: bytes, param: str) -> Any:
        from speculant.api.transcription import read_sound

        try:
            return read_sound(io.BytesIO(data), self.rate or 16_000, max_seconds=self._max_seconds)
        except SpeculantError as error:
            raise _error(str(error).rstrip("."), param) from error

    def _decode_video(self, data: bytes, param: str) -> Any:
        try:
            return read_video(io.BytesIO(data), self._processor, limits=self._video_limits)
        except SpeculantError as error:
            raise _error(str(error).rstrip("."), param) from error


def _decode(text: str, param: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _error(f"it is not valid base64 ({error})", param) from error


def _error(reason: str, param: str) -> ApiError:
    return ApiError(400, f"the file of '{param}' is not taken: {reason}.", param=param, code="invalid_media")
