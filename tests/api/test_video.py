"""Video files: the frames that a processor samples, within limits."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

pytest.importorskip("av", reason="needs the extra `media`")

from clips import ClipProcessor, make_clip, make_growing_clip, turned
from speculant.api.media_prompts import encode_messages
from speculant.api.video import VideoLimits, read_video
from speculant.core.errors import FileError

LIMITS = VideoLimits(seconds=3, frames=4, pixels=2000, all_pixels=4 * 1024, decoding_seconds=20)


@pytest.mark.parametrize(("container", "codec"), [("mp4", "mpeg4"), ("webm", "libvpx-vp9"), ("avi", "mpeg4")])
def test_frames_are_those_of_the_file(container: str, codec: str) -> None:
    """Guards containers, the frames' order and times, and that few frames are thinned out evenly."""
    file = io.BytesIO(make_clip(container=container, codec=codec))
    video = read_video(file, None)
    assert video.frames.shape == (10, 32, 32, 3)
    assert video.frames.mean((1, 2, 3)) == pytest.approx([20 * place for place in range(10)], abs=4)
    assert (video.metadata["fps"], video.metadata["duration"]) == (5, 2)
    file.seek(0)
    assert read_video(file, None, limits=LIMITS).metadata["frames_indices"] == [0, 3, 6, 9]


def test_processors_choose_the_frames(tmp_path: Path) -> None:
    """Guards sampling: by the processor, which is told what it sees; all frames where it asks for more than exist."""
    (tmp_path / "clip.mp4").write_bytes(make_clip(20))
    processor = ClipProcessor()
    part = {"type": "video", "video": tmp_path / "clip.mp4"}
    inputs = encode_messages(processor, [{"role": "user", "content": [part, {"type": "text", "text": "w7"}]}])
    assert inputs["video_grid_thw"].tolist() == [[2, 4, 4]]
    assert processor.seen[0]["frames_indices"] == [0, 6, 13, 19]
    processor.video_processor.fps = 6.0
    assert len(read_video(tmp_path / "clip.mp4", processor).frames) == 20


def test_turned_videos_are_upright() -> None:
    """Guards videos of phones, which are stored lying with the turn they are shown with: as torchcodec reads them."""
    clip = make_clip(2, (48, 32), corner=True)
    for quarters in range(4):
        video = read_video(io.BytesIO(turned(clip, quarters)), None)
        height, width = (48, 32) if quarters % 2 else (32, 48)
        assert video.frames.shape == (2, height, width, 3)
        assert (video.metadata["height"], video.metadata["width"]) == (height, width)
        halves = video.frames[0].mean(-1).reshape(2, height // 2, 2, width // 2).mean((1, 3))
        assert int(halves.argmax()) == [0, 1, 3, 2][quarters]  # the bright corner goes from the top left clockwise


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "first bytes"),
        (b"#EXTM3U\nfile:///etc/passwd\n", "first bytes"),
        (make_clip()[:200], "as a video"),
        (make_clip(20), "4 s long"),
        (make_clip(2, (64, 64)), "64 x 64"),
        (make_clip(10, (44, 44)), "together"),
        (make_growing_clip((640, 640)), "as a video"),
    ],
)
def test_limits(data: bytes, said: str) -> None:
    """Guards memory: what is damaged, refers elsewhere, or is larger than allowed or than it says is refused."""
    with pytest.raises(FileError, match=said):
        read_video(io.BytesIO(data), None, limits=LIMITS)


def test_decoding_takes_bounded_time() -> None:
    """Guards threads: decoding ends after the allowed time."""
    limits = VideoLimits(seconds=9, frames=99, pixels=2000, all_pixels=1 << 20, decoding_seconds=0)
    with pytest.raises(FileError, match="longer than 0 s"):
        read_video(io.BytesIO(make_clip()), None, limits=limits)
