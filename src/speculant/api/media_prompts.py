"""Prompts with images, audio or video: chat messages with such parts, encoded by the model's processor.

Parts are written as in transformers or in OpenAI's API:

| part | content |
|---|---|
| `{"type": "text", "text": ...}` | text |
| `{"type": "image", "image": ...}` | a path, an image of Pillow, or an array |
| `{"type": "image_url", "image_url": {"url": ...}}` | a path or a data: URL, in OpenAI's form |
| `{"type": "audio", "audio": ...}` | a path or an array of samples at the rate of the model's feature extractor |
| `{"type": "input_audio", "input_audio": {"data": ...}}` | base64 of an audio file |
| `{"type": "video", "video": ...}` | a path, a `Video`, or a list of frames |
| `{"type": "video_url", "video_url": {"url": ...}}` | a path or a data: URL, as in vLLM |

Nothing is fetched: a prompt with a network address is refused.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from speculant.api.video import Video, read_video
from speculant.core.errors import FileError, PromptError, UnsupportedError
from speculant.engines.hf.media import KINDS

URLS = {"image_url": ("image", "url"), "input_audio": ("audio", "data"), "video_url": ("video", "url")}
_NETWORK = ("http://", "https://", "ftp://")


def split_processor(given: Any) -> tuple[Any, Any]:
    """Split an argument into tokenizer and processor: it is a tokenizer, without a processor, or a processor."""
    tokenizer = getattr(given, "tokenizer", None)
    if tokenizer is None or not callable(getattr(given, "apply_chat_template", None)):
        return given, None
    return tokenizer, given


def has_media(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a message has content parts that are not text."""
    return any(part.get("type") != "text" for message in messages for part in _parts(message))


def media_kinds(processor: Any) -> tuple[str, ...]:
    """Return the kinds of media that a processor supports, in the order of `KINDS`."""
    readers = {"image": "image_processor", "audio": "feature_extractor", "video": "video_processor"}
    return tuple(kind for kind in KINDS if getattr(processor, readers[kind], None) is not None)


def encode_messages(processor: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Tensor]:
    """Return the model's inputs for chat messages, `input_ids` Int64[1, T] among them, ready for the next answer.

    Args:
        processor: processor of the model; None if there is none.
        messages: {"role", "content"}, where content may be a list of parts.
        options: options of the chat template, such as `tools`.

    Raises:
        UnsupportedError: there is no processor, or it has no chat template.
        FileError: a file cannot be read.
        PromptError: a part is not understood, or is a network address.
    """
    if processor is None:
        raise UnsupportedError(
            "images and other media need the model's processor, and there is none: models without one read text alone. "
            "In Python, give AutoProcessor.from_pretrained(...) where a tokenizer is given."
        )
    if not getattr(processor, "chat_template", None):
        raise UnsupportedError("the model's processor has no chat template; give the inputs that it makes as a dict.")
    read = [{**message, "content": [_read(part, processor) for part in _parts(message)]} for message in messages]
    options |= _place_videos(part for message in read for part in message["content"] if part["type"] == "video")
    try:
        inputs = processor.apply_chat_template(
            read, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt", **options
        )
    except Exception as error:  # processors raise many kinds of errors
        raise PromptError(f"the model's processor refuses these messages: {error}") from error
    return dict(inputs)


def check_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs created by a processor.

    Raises:
        PromptError: they have no token ids.
    """
    if not isinstance(inputs.get("input_ids"), Tensor):
        raise PromptError(
            "a prompt given as a dict must hold what a processor returns: 'input_ids' as a tensor, and media. Give "
            "`return_tensors='pt'` to a tokenizer or processor."
        )
    return dict(inputs)


def _place_videos(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Replace videos that were read from files by their frames; return the options that say when these are shown."""
    given = [*parts]
    if not any(isinstance(part["video"], Video) for part in given):
        return {}
    metadata = list[dict[str, Any]]()
    for part in given:
        video = part["video"]
        if isinstance(video, Video):
            part["video"] = video.frames
            metadata.append({**video.metadata})
        else:
            metadata.append({"total_num_frames": len(video), "frames_indices": [*range(len(video))]})
    return {"processor_kwargs": {"videos_kwargs": {"video_metadata": metadata, "do_sample_frames": False}}}


def _parts(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, Sequence) and all(isinstance(part, Mapping) for part in content):
        return [*content]
    return []


def _read(part: Mapping[str, Any], processor: Any) -> dict[str, Any]:
    """Return a part as processors accept it, with images and video files decoded."""
    kind = part.get("type")
    if kind == "text":
        return dict(part)
    if kind in URLS:
        kind, name = URLS[kind]
        value = part.get(part["type"])
        value = value.get(name) if isinstance(value, Mapping) else value
        if kind == "audio" and isinstance(value, str):
            _decode(value)
            return {"type": kind, kind: value}  # in transformers' form
    elif kind in KINDS:
        value = next((part[name] for name in (kind, "path", "url") if name in part), None)
    else:
        raise PromptError(f"a part of a message must be text, {', '.join((*KINDS, *URLS))}, not {kind!r}.")
    if value is None:
        raise PromptError(f"a part of the type '{kind}' has no '{kind}': write {{'type': '{kind}', '{kind}': PATH}}.")
    if isinstance(value, str) and value.startswith(_NETWORK):
        raise PromptError(f"nothing is fetched from the network: load {value:.80} yourself, and give the file.")
    if kind == "image":
        return {"type": kind, kind: _open_image(value)}
    if kind == "audio":
        return {"type": kind, kind: _check_file(value, kind)}
    if isinstance(value, str) and value.startswith("data:"):
        value = io.BytesIO(_decode(value.partition(",")[2]))
    if isinstance(value, str | Path | io.BytesIO):
        value = read_video(_check_file(value, kind), processor)
    return {"type": kind, kind: value}


def _open_image(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("data:"):
        value = io.BytesIO(_decode(value.partition(",")[2]))
    if not isinstance(value, str | Path | io.BytesIO):
        return value  # an image, or an array of one
    name = "an image in the prompt" if isinstance(value, io.BytesIO) else str(value)
    try:
        from PIL import Image

        with Image.open(value) as image:
            return upright(image)
    except ImportError as error:
        raise UnsupportedError("images are read by Pillow: pip install 'speculant[media]'.") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise FileError(f"cannot read {name} as an image: {error}.") from error


def upright(image: Any) -> Any:
    """Return a file's image in RGB, turned as its EXIF says, as transformers reads files of phones and cameras."""
    from PIL import ImageOps

    with contextlib.suppress(Exception):  # Pillow names no class for errors of damaged EXIF, which says nothing then
        image = ImageOps.exif_transpose(image)
    return image.convert("RGB")


def _check_file(value: Any, kind: str) -> Any:
    if isinstance(value, str | Path):
        if not Path(value).is_file():
            raise FileError(f"there is no {kind} file at {value}.")
        return str(value)
    return value


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PromptError(f"media in the prompt are not valid base64: {error}.") from error
