"""Speech to text: transcripts are those of Whisper's own decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from encoder_decoders import count_encodings, noisy_copy
from models import tiny_model
from speculant import Speculator
from speculant.api.transcription import TranscriptPart, read_sound, transcribe
from speculant.cli.main import main
from speculant.core.errors import FileError, UnsupportedError, UsageError
from whispers import RATE, build_whisper

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of Whisper's own options


@pytest.fixture(scope="module")
def whisper() -> tuple[Any, Any]:
    """Return a tiny random model that hears a second at a time, and its processor."""
    return build_whisper()


def _sound(seconds: float) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).normal(0, 0.3, int(seconds * RATE)).astype(np.float32)


@pytest.mark.parametrize("seconds", [0.8, 1.6])
def test_transcripts_are_those_of_whisper(whisper: tuple[Any, Any], seconds: float) -> None:
    """Guards short and long form with fallbacks: tokens and times are the same, also window by window."""
    model, processor = whisper
    options = {"temperature": (0.0, 0.4), "logprob_threshold": -0.2, "compression_ratio_threshold": 1.35}
    options |= {"no_speech_threshold": 0.6}
    speculator = Speculator.from_transformers(model, method="mix", nodes=7, fast=False)
    own = model.generate
    plain = list[Any]()

    def generate(*args: Any, **given: Any) -> Any:
        given.pop("custom_generate")
        found = own(*args, **given)
        plain.append(found)
        return found

    torch.manual_seed(0)
    model.generate = generate
    try:
        expected = transcribe(speculator, processor, _sound(seconds), timestamps=True, options=options)
    finally:
        del model.generate
    own_members = dict(vars(model))
    for timestamps in (False, True, True):
        parts, decoded = list[TranscriptPart](), set[int]()

        def receive(part: TranscriptPart, parts: Any = parts, decoded: Any = decoded) -> None:
            parts.append(part)
            decoded.add(id(speculator.last_stats))

        torch.manual_seed(0)
        found = transcribe(
            speculator, processor, _sound(seconds), timestamps=timestamps, options=options, received=receive
        )
        assert found.segments == (expected.segments if timestamps else ())
        assert found.text == expected.text or (seconds < 1 and not timestamps)
        assert "".join(part.text for part in parts) == found.text
        assert tuple(each for part in parts for each in part.segments) == found.segments
        assert len(decoded) > 1 or seconds < 1
    assert vars(model) == own_members
    stats = speculator.last_stats
    assert stats is not None
    assert stats.mat > 1.5
    assert plain


def test_command(whisper: tuple[Any, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards the command: a file at another rate, text or JSON, and what is no model that hears."""
    model, processor = whisper
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    plain = Speculator.from_transformers(model, method="none", fast=False)
    file = tmp_path / "talk.wav"
    soundfile.write(file, np.stack([_sound(1.6)] * 2, axis=1), 44_100)
    command = ["transcribe", str(file), "--model", str(tmp_path), "--timestamps", "--json", "-", "--no-fast"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seconds"] == pytest.approx(1.6 * RATE / 44_100, abs=0.01)
    assert main(["transcribe", str(file), "--model", str(tmp_path), "--no-fast"]) == 0
    assert capsys.readouterr().out.strip() == transcribe(plain, processor, read_sound(file, RATE)).text
    assert main(command[:-3]) == 0
    assert [line[20:] for line in capsys.readouterr().out.splitlines()] == [
        each["text"].strip() for each in found["segments"]
    ]
    assert main(["transcribe", str(tmp_path / "none.wav"), "--model", str(tmp_path)]) == 1
    assert "no audio file" in capsys.readouterr().err


def test_a_draft_model_of_whisper(whisper: tuple[Any, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards draft models: the transcript is the same through windows and fallbacks, each window is encoded once."""
    model, processor = whisper
    options = {"temperature": (0.0, 0.4), "logprob_threshold": -0.2, "compression_ratio_threshold": 1.35}
    draft = noisy_copy(model, 0.02, encoder=True)

    def decode(speculator: Speculator) -> Any:
        torch.manual_seed(0)
        return transcribe(speculator, processor, _sound(1.6), timestamps=True, options=options)

    expected = decode(Speculator.from_transformers(model, method="none", fast=False))
    encodings, heard = count_encodings(draft), count_encodings(model)
    found = decode(
        Speculator.from_transformers(
            model, method="draft-model", draft_model=draft, verifier="sample-then-follow", nodes=5, fast=False
        )
    )
    assert (found.text, found.segments) == (expected.text, expected.segments)
    assert len(encodings) < len(heard)  # a fallback decodes a window again
    assert found.stats is not None
    assert found.stats.accepted > 0
    for name, each in (("target", model), ("draft", draft)):
        each.save_pretrained(tmp_path / name)
        processor.save_pretrained(tmp_path / name)
    soundfile.write(tmp_path / "talk.wav", _sound(0.8), RATE)
    command = ["transcribe", str(tmp_path / "talk.wav"), "--model", str(tmp_path / "target"), "--no-fast"]
    assert main(command) == 0
    expected = capsys.readouterr().out
    assert main([*command, "--draft-model", str(tmp_path / "draft")]) == 0
    assert capsys.readouterr().out == expected
    config = tmp_path / "draft" / "config.json"
    config.write_text(config.read_text("utf-8").replace('"num_mel_bins": 8', '"num_mel_bins": 80'), "utf-8")
    assert main([*command, "--draft-model", str(tmp_path / "draft")]) == 2
    assert "8 mel bins and the draft model's 80" in capsys.readouterr().err


def test_faults(whisper: tuple[Any, Any], tmp_path: Path) -> None:
    """Guards messages: what is no sound, no task, or no model that hears says so."""
    (tmp_path / "text.wav").write_text("not sound")
    with pytest.raises(FileError, match="as audio"):
        read_sound(tmp_path / "text.wav", RATE)
    model, processor = whisper
    speculator = Speculator.from_transformers(model, method="mix", fast=False)
    with pytest.raises(UsageError, match="not 'sing'"):
        transcribe(speculator, processor, _sound(0.5), task="sing")
    with pytest.raises(UnsupportedError, match="Whisper"):
        transcribe(Speculator.from_transformers(tiny_model("llama"), method="mix"), processor, _sound(0.5))
