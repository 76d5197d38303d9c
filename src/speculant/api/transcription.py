"""Speech-to-text with drafts: Whisper's own long-form decoding, with drafts in every pass over a segment.

Segments, timestamps, forced language and task tokens, suppressed tokens and the fallback to higher temperatures are
those of transformers' `generate`, which calls the speculator in place of its decoding loop. So the text is that of
plain decoding, while a memory learns recurring phrases of speakers and transcripts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from speculant.core.errors import FileError, UnsupportedError, UsageError
from speculant.core.stats import Stats

if TYPE_CHECKING:
    import numpy as np

    from speculant.api.speculator import Speculator

TASKS = ("transcribe", "translate")
RATES, MAX_CHANNELS = (1000, 384_000), 8  # limits for recordings of bounded length


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a transcript, from `start` to `end` seconds of the recording."""

    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The transcript of a recording.

    Attributes:
        text: the whole text.
        segments: segments with their times; empty if no timestamps were requested.
        seconds: length of the recording.
        stats: decoding statistics of the last segment; None if nothing was decoded.
    """

    text: str
    segments: tuple[Segment, ...]
    seconds: float
    stats: Stats | None


def transcribe(
    speculator: Speculator,
    processor: Any,
    sound: np.ndarray[Any, Any],
    *,
    language: str | None = None,
    task: str | None = None,
    timestamps: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Transcript:
    """Return the transcript of a recording of any length.

    Args:
        speculator: a speculator of a Whisper model.
        processor: the model's processor, with its feature extractor.
        sound: Float32[N], samples at the rate of the feature extractor.
        language: such as "en" or "german"; None to detect it.
        task: "transcribe", or "translate" into English; None for the model's default.
        timestamps: whether to return segments; recordings longer than a window always use timestamps internally.
        options: further keywords of Whisper's `generate`, such as `temperature`, `logprob_threshold`,
            `compression_ratio_threshold`, `no_speech_threshold`, `condition_on_prev_tokens`.

    Raises:
        UnsupportedError: the model is not a speech model.
        UsageError: Whisper refuses an option.
    """
    model, extractor = speculator.model, getattr(processor, "feature_extractor", None)
    if model.main_input_name != "input_features" or extractor is None or not hasattr(model, "generate_with_fallback"):
        raise UnsupportedError("this model does not transcribe audio; name a Whisper model, such as whisper-small.")
    if task not in (None, *TASKS):
        raise UsageError(f"a task must be {' or '.join(TASKS)}, not '{task}'.")
    rate, window = int(extractor.sampling_rate), int(extractor.n_samples)
    features = extractor(
        sound,
        sampling_rate=rate,
        return_tensors="pt",
        return_attention_mask=True,
        **({"truncation": False, "padding": "longest"} if len(sound) > window else {}),
    ).to(model.device, model.dtype)
    asked = {name: value for name, value in (("language", language), ("task", task)) if value is not None}
    try:
        found = model.generate(
            **features,
            **asked,
            **(options or {}),
            return_timestamps=timestamps or len(sound) > window,
            return_segments=True,
            custom_generate=speculator,
        )
    except (ValueError, TypeError) as error:
        raise UsageError(f"Whisper refuses this: {error}") from error
    decode = processor.tokenizer.decode
    pieces = tuple(
        Segment(float(each["start"]), float(each["end"]), decode(each["tokens"], skip_special_tokens=True))
        for each in found["segments"][0]
    )
    text = decode(found["sequences"][0], skip_special_tokens=True).strip()
    return Transcript(
        text=text, segments=pieces if timestamps else (), seconds=len(sound) / rate, stats=speculator.last_stats
    )


def read_sound(source: str | Path | BinaryIO, rate: int, *, max_seconds: float | None = None) -> np.ndarray[Any, Any]:
    """Read an audio file as samples Float32[N] of one channel at a rate.

    Args:
        source: a path, or an open file.
        rate: samples per second.
        max_seconds: longer recordings are refused before they are decoded; None for any length.

    Raises:
        FileError: there is no such file, it is not readable audio, or it is too long.
        UnsupportedError: the packages that read it are not installed.
    """
    if isinstance(source, str | Path) and not Path(source).is_file():
        raise FileError(f"there is no audio file at {source}.")
    try:
        import soundfile
        import soxr
    except (ImportError, OSError) as error:
        raise UnsupportedError("audio files are read by packages: pip install 'speculant[media]'.") from error
    try:
        with soundfile.SoundFile(str(source) if isinstance(source, Path) else source) as file:
            own, frames = file.samplerate, -1
            if max_seconds is not None:
                frames = int(max_seconds * own)
                if file.frames > frames or not RATES[0] <= own <= RATES[1] or file.channels > MAX_CHANNELS:
                    raise FileError(
                        f"the recording has {file.frames / own:.0f} s, {own} Hz and {file.channels} channels; at most "
                        f"{max_seconds:g} s, {RATES[1]} Hz and {MAX_CHANNELS} channels are allowed."
                    )
            samples = file.read(frames, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError, OSError) as error:
        name = source if isinstance(source, str | Path) else "the recording"
        raise FileError(f"cannot read {name} as audio: {error}. WAV, FLAC, OGG and MP3 are supported.") from error
    one: np.ndarray[Any, Any] = samples.mean(axis=1)
    return one if own == rate else soxr.resample(one, own, rate)
