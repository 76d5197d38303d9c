"""Video files: PyAV decodes only the frames that the model's processor samples."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from speculant.core.errors import FileError, UnsupportedError

CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mjpeg")
FORMATS = "MP4, MOV, WebM, MKV and AVI"
_PREPARED = {"input_data_format", "do_convert_rgb", "do_sample_frames", "device", "video_metadata"}  # not for sampling
PADDING = 512  # pixels by which a frame may exceed its stated size: more than decoders add around a frame
_MICROSECONDS = 1e-6  # unit of a container's length


@dataclass(frozen=True, slots=True)
class Video:
    """Frames sampled from a video.

    Attributes:
        frames: UInt8[F, H, W, 3], RGB.
        metadata: fields of transformers' `VideoMetadata`, from which processors derive the times of frames.
    """

    frames: np.ndarray[Any, Any]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoLimits:
    """Limits for untrusted videos, since a few kilobytes can decode to gigabytes.

    Attributes:
        seconds: maximum length.
        frames: maximum number of frames; if more are sampled, this many of them are taken, evenly spaced.
        pixels: maximum pixels of a frame.
        all_pixels: maximum pixels of all frames together.
        decoding_seconds: maximum decoding time.
    """

    seconds: float
    frames: int
    pixels: int
    all_pixels: int
    decoding_seconds: float


def read_video(source: str | Path | BinaryIO, processor: Any, *, limits: VideoLimits | None = None) -> Video:
    """Read the frames of a video file that a processor samples, or all frames if it does not sample.

    Containers that can refer to other files or addresses, such as playlists, are not opened.

    Args:
        source: a path, or an open file.
        processor: the model's processor, whose video processor chooses the frames.
        limits: None for trusted files.

    Raises:
        FileError: the file does not exist, is not a readable video, or exceeds a limit.
        UnsupportedError: PyAV is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise UnsupportedError("videos are read by PyAV: pip install 'speculant[media]'.") from error
    named = str(source) if isinstance(source, str | Path) else "the video"
    try:
        if not isinstance(source, str | Path):
            return _Reader(av, source, limits).read(processor)
        with open(source, "rb") as file:
            return _Reader(av, file, limits).read(processor)
    except (av.error.FFmpegError, OSError, ValueError, MemoryError) as error:
        raise FileError(f"cannot read {named} as a video: {error}. {FORMATS} are supported.") from error


class _Reader:
    def __init__(self, av: Any, file: BinaryIO, limits: VideoLimits | None) -> None:
        self._av, self._file, self._limits = av, file, limits
        self._until = None if limits is None else time.monotonic() + limits.decoding_seconds
        self._format = _sniff(file.read(12))

    def read(self, processor: Any) -> Video:
        metadata = self._examine()
        indices = _sample(getattr(processor, "video_processor", None), metadata)
        limits, size = self._limits, metadata["width"] * metadata["height"]
        if limits is not None:
            if len(indices) > limits.frames:
                spaced = np.linspace(0, len(indices) - 1, limits.frames).round().astype(int)
                indices = [indices[place] for place in spaced]
            if len(indices) * size > limits.all_pixels:
                raise FileError(
                    f"{len(indices)} frames of {size} pixels are more than {limits.all_pixels} pixels together; send "
                    "smaller frames."
                )
        found = self._decode(set(indices), metadata)
        kept = [index for index in indices if index in found]
        if not kept:
            raise FileError("the video has no frames.")
        frames = np.stack([found[index] for index in kept])
        height, width = frames.shape[1:3]
        return Video(frames, {**metadata, "height": height, "width": width, "frames_indices": kept})

    def _open(self) -> Any:
        self._file.seek(0)
        return self._av.open(self._file, format=self._format)

    def _examine(self) -> dict[str, Any]:
        """Read sizes and times, and count the frames without decoding them."""
        with self._open() as container:
            if not container.streams.video:
                raise FileError("the file has no video track.")
            stream = container.streams.video[0]
            codec = stream.codec_context
            if codec is None or codec.codec.canonical_name not in CODECS:
                raise FileError(f"a video's codec is {', '.join(CODECS[:-1])} or {CODECS[-1]}.")
            width, height, limits = codec.width, codec.height, self._limits
            if limits is not None and width * height > limits.pixels:
                raise FileError(f"frames of {width} x {height} pixels are larger than {limits.pixels} pixels.")
            length = float(stream.duration * stream.time_base) if stream.duration else 0.0
            length = length or (container.duration or 0) * _MICROSECONDS
            rate, count = float(stream.average_rate or 0), 0
            for packet in container.demux(stream):
                self._check_time()
                count += packet.size > 0
        length = max(length, count / rate if rate else 0.0)
        if limits is not None and length > limits.seconds:
            raise FileError(f"it is {length:.0f} s long, and at most {limits.seconds:g} s are taken.")
        rate = rate or (count / length if length else 0.0) or 1.0
        return {
            "total_num_frames": count,
            "fps": rate,
            "width": width,
            "height": height,
            "duration": length,
            "video_backend": "pyav",
        }

    def _decode(self, wanted: set[int], metadata: Mapping[str, Any]) -> dict[int, np.ndarray[Any, Any]]:
        """Return the frames with these indices, upright, scaled before to the size stated by the file."""
        found, last = dict[int, np.ndarray[Any, Any]](), max(wanted, default=-1)
        size = {"width": metadata["width"], "height": metadata["height"]}
        with self._open() as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            if self._limits is not None:
                largest = (size["width"] + PADDING) * (size["height"] + PADDING)
                stream.codec_context.options = {"max_pixels": str(largest)}
            for place, frame in enumerate(container.decode(stream)):
                self._check_time()
                if place in wanted:
                    found[place] = _upright(frame.to_ndarray(format="rgb24", **size), frame)
                if place >= last:
                    break
        return found

    def _check_time(self) -> None:
        if self._until is not None and time.monotonic() > self._until:
            assert self._limits is not None
            raise FileError(f"decoding it takes longer than {self._limits.decoding_seconds:g} s.")


def _upright(pixels: np.ndarray[Any, Any], frame: Any) -> np.ndarray[Any, Any]:
    """Return pixels [H, W, 3] turned as the file says, which torchcodec, transformers' default, does as well."""
    turns = round(getattr(frame, "rotation", 0) / 90)  # counterclockwise; PyAV's first releases of 14 lack it
    return np.rot90(pixels, turns)


def _sniff(head: bytes) -> str:
    """Return FFmpeg's name of a container, given the file's first 12 bytes."""
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        return "mov"
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "avi"
    raise ValueError("its first bytes match no supported format")


def _sample(video_processor: Any, metadata: Mapping[str, Any]) -> Sequence[int]:
    """Return the indices of the frames that a video processor samples, with the options of its own `preprocess`."""
    everything = range(metadata["total_num_frames"])
    if not getattr(video_processor, "do_sample_frames", False) or not everything:
        return everything
    from transformers.video_utils import VideoMetadata

    known = [name for name in video_processor.valid_kwargs.__annotations__ if name not in _PREPARED]
    options = {name: getattr(video_processor, name, None) for name in known}
    try:
        found = video_processor.sample_frames(metadata=VideoMetadata(**metadata), **options)
    except ValueError:  # the video has fewer frames than are sampled
        return everything
    return [int(index) for index in found]
