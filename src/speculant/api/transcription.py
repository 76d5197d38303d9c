"""Speech-to-text with drafts: Whisper's own long-form decoding, with drafts in every pass over a segment.

Segments, timestamps, forced language and task tokens, suppressed tokens and the fallback to higher temperatures are
those of transformers' `generate`, which calls the speculator in place of its decoding loop. So the text is that of
plain decoding, while a memory learns recurring phrases of speakers and transcripts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from speculant.api.detokenizer import Detokenizer
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


@dataclass(frozen=True, slots=True)
class TranscriptPart:
    """The part of a transcript that one decoded window of a recording adds.

    Attributes:
        text: the transcript's text is that of all parts, joined.
        segments: as in the transcript; empty if no timestamps were requested.
    """

    text: str
    segments: tuple[Segment, ...]


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
    received: Callable[[TranscriptPart], object] | None = None,
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
        received: function called with each window's part, once no fallback can change it.

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
    view, heard = copy.copy(model), _Heard(model.get_encoder())  # the model itself is unchanged
    view.get_encoder = heard.get
    parts = None if received is None else _WindowParts(processor.tokenizer, timestamps, received)
    if parts is not None:
        parts.watch(view)
    try:
        found = view.generate(
            **features,
            **asked,
            **(options or {}),
            return_timestamps=timestamps or len(sound) > window,
            return_segments=True,
            custom_generate=lambda _, *given, **inputs: speculator.bind(source=heard.inputs)(model, *given, **inputs),
        )
    except (ValueError, TypeError) as error:
        raise UsageError(f"Whisper refuses this: {error}") from error
    text = processor.tokenizer.decode(found["sequences"][0], skip_special_tokens=True).strip()
    segments = tuple(_segments(processor.tokenizer, found["segments"][0])) if timestamps else ()
    if parts is not None:
        parts.end(text, segments)
    return Transcript(text=text, segments=segments, seconds=len(sound) / rate, stats=speculator.last_stats)


class _Heard:
    """Notes what the encoder reads, window by window, for draft models with an encoder of their own."""

    def __init__(self, encoder: Any) -> None:
        self._encoder, self.forward = encoder, encoder.forward  # `generate` looks at its parameters
        self.inputs: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def get(self, modality: str | None = None) -> _Heard:
        """Return itself in place of the encoder; see transformers' `get_encoder`."""
        return self

    def __call__(self, **inputs: Any) -> Any:
        self.inputs = inputs
        return self._encoder(**inputs)


class _WindowParts:
    """Passes on the part of a transcript that each window adds."""

    def __init__(self, tokenizer: Any, timestamps: bool, received: Callable[[TranscriptPart], object]) -> None:
        self._tokenizer, self._timestamps, self._received = tokenizer, timestamps, received
        self._detokenizer = Detokenizer(tokenizer)
        self._text, self._sent, self._segments = "", 0, 0  # numbers of characters and segments passed on so far

    def watch(self, view: Any) -> None:
        """Let a shallow copy of a model report the segments of each window.

        If another release of transformers obtains segments differently, all text is passed on at the end.
        """
        retrieve = getattr(view, "_retrieve_segment", None)

        def show(*given: Any, **named: Any) -> Any:
            assert retrieve is not None
            segments, offset = retrieve(*given, **named)
            self._add(segments)
            return segments, offset

        if retrieve is not None:
            view._retrieve_segment = show

    def _add(self, segments: Sequence[Mapping[str, Any]]) -> None:
        found = tuple(_segments(self._tokenizer, segments))
        self._text += "".join(self._detokenizer.push(int(token)) for each in segments for token in each["tokens"])
        self._text = self._text if self._sent else self._text.lstrip()
        self._pass(self._text.rstrip(), found if self._timestamps else ())

    def end(self, text: str, segments: tuple[Segment, ...]) -> None:
        """Pass on the rest of the text, such as a character that was never completed."""
        self._pass(text, segments[self._segments :])

    def _pass(self, text: str, segments: tuple[Segment, ...]) -> None:
        new = text[self._sent :]
        self._sent, self._segments = max(self._sent, len(text)), self._segments + len(segments)
        if new or segments:
            self._received(TranscriptPart(new, segments))


def _segments(tokenizer: Any, found: Sequence[Mapping[str, Any]]) -> Iterator[Segment]:
    for each in found:
        text = tokenizer.decode(each["tokens"], skip_special_tokens=True)
        yield Segment(float(each["start"]), float(each["end"]), text)


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
