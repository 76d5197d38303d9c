"""Short videos, made when a test runs, and a processor that reads them."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np
import torch

from media_models import BEGIN, PLACES, make_processor


def make_clip(
    frames: int = 10,
    size: tuple[int, int] = (32, 32),
    *,
    rate: int = 5,
    container: str = "mp4",
    codec: str = "mpeg4",
    corner: bool = False,
) -> bytes:
    """Return a file of grey frames, each brighter by 20 than the one before; size is (W, H).

    With `corner`, the upper left quarter is white.
    """
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=rate)
        (stream.width, stream.height), stream.pix_fmt = size, "yuv420p"
        for place in range(frames):
            output.mux(stream.encode(_frame(size, 20 * place, corner=corner)))
        output.mux(stream.encode())
    return file.getvalue()


def turned(clip: bytes, quarters: int) -> bytes:
    """Return an MP4 file that is shown turned clockwise by this many quarters, as phones store what they record."""
    at = clip.index(b"tkhd") + 44  # the matrix of its track: fixed-point numbers, three a row
    a, b = [(1, 0), (0, 1), (-1, 0), (0, -1)][quarters % 4]
    return clip[:at] + struct.pack(">9i", a << 16, b << 16, 0, -b << 16, a << 16, 0, 0, 0, 1 << 30) + clip[at + 36 :]


def make_growing_clip(size: tuple[int, int]) -> bytes:
    """Return a file that states frames of 32 x 32 pixels, the last of which has another size (W, H)."""
    file = io.BytesIO()
    with av.open(file, "w", format="avi") as output:
        stream: Any = output.add_stream("mjpeg", rate=5)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuvj420p"
        large: Any = av.CodecContext.create("mjpeg", "w")
        (large.width, large.height), large.pix_fmt, large.time_base = size, "yuvj420p", Fraction(1, 5)
        output.mux(stream.encode(_frame((32, 32), 0)))
        frame = _frame(size, 0).reformat(format="yuvj420p")
        frame.pts, frame.time_base = 1, large.time_base
        for packet in large.encode(frame) + large.encode(None):
            packet.stream, packet.pts, packet.dts = stream, 1, 1
            output.mux(packet)
    return file.getvalue()


def _frame(size: tuple[int, int], grey: int, *, corner: bool = False) -> Any:
    pixels = np.full((*size[::-1], 3), grey % 256, np.uint8)
    if corner:
        pixels[: size[1] // 2, : size[0] // 2] = 255
    return av.VideoFrame.from_ndarray(pixels, format="rgb24")


class ClipProcessor:
    """Stands in for the processor of "qwen2_vl", whose own needs torchvision: two frames become four tokens."""

    chat_template = "{% for m in messages %}{{ m }}{% endfor %}"

    def __init__(self) -> None:
        self.tokenizer = make_processor().tokenizer
        self.tokenizer.chat_template = None
        self.video_processor = _Sampler()
        self.seen = list[dict[str, Any]]()

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        processor_kwargs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> dict[str, torch.Tensor]:
        """Return the inputs of messages with texts and at most one video."""
        ids, pixels, grid = [1], list[torch.Tensor](), list[list[int]]()
        for part in (part for message in messages for part in message["content"]):
            if part["type"] == "text":
                ids += self.tokenizer(part["text"], add_special_tokens=False)["input_ids"]
                continue
            assert processor_kwargs is not None
            self.seen += processor_kwargs["videos_kwargs"]["video_metadata"]
            frames = torch.tensor(part["video"][:, :16, :16], dtype=torch.float32) / 255
            assert len(frames) % 2 == 0
            pixels.append(frames.reshape(-1, 3 * 2 * 4 * 4))
            grid.append([len(frames) // 2, 4, 4])
            ids += [BEGIN, *[PLACES["video_token_id"]] * (2 * len(frames)), PLACES["vision_end_token_id"]]
        found = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        if pixels:
            kinds = 2 * (found["input_ids"] == PLACES["video_token_id"]).long()
            found |= {"pixel_values_videos": torch.cat(pixels), "video_grid_thw": torch.tensor(grid)}
            found |= {"mm_token_type_ids": kinds}
        return found


class _Sampler:
    """Samples a frame per second, as a processor of transformers does."""

    do_sample_frames = True
    fps = 1.0

    class valid_kwargs:  # noqa: N801  (transformers' name)
        fps: float
        do_sample_frames: bool

    def sample_frames(self, metadata: Any, fps: float) -> np.ndarray[Any, Any]:
        count = round(metadata.duration * fps)
        if count > metadata.total_num_frames:
            raise ValueError("there are too few frames")
        return np.linspace(0, metadata.total_num_frames - 1, count).round().astype(int)
