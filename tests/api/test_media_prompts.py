"""Chat messages with images and other media, through a model's processor."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers.image_utils import load_image

from media_models import build_media_model, make_processor
from models import tiny_model
from speculant import Speculator
from speculant.api.media_prompts import encode_messages, has_media, split_processor, upright
from speculant.core.errors import FileError, PromptError, UnsupportedError


def _image() -> Image.Image:
    return Image.new("RGB", (8, 8), (200, 30, 90))


def _messages(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [part, {"type": "text", "text": "w7 w8 w9"}]}]


def test_messages_with_an_image(tmp_path: Path) -> None:
    """Guards the whole way: paths, images and data URLs give one text, that of `generate` on the processor's inputs."""
    model, _ = build_media_model("llava")
    processor, path = make_processor(), tmp_path / "red.png"
    _image().save(path)
    buffer = io.BytesIO()
    _image().save(buffer, format="PNG")
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    inputs = encode_messages(processor, _messages({"type": "image", "image": _image()}))
    expected = model.generate(**inputs, max_new_tokens=16, do_sample=False)[0, inputs["input_ids"].shape[1] :].tolist()
    speculator = Speculator.from_transformers(model, processor, method="mix", nodes=6)
    for prompt in (
        inputs,
        _messages({"type": "image", "image": str(path)}),
        _messages({"type": "image_url", "image_url": {"url": url}}),
    ):
        result = speculator.generate(prompt, max_new_tokens=16, temperature=0)
        assert result.ids == expected
        assert not any("plainly" in note for note in result.stats.notes)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_images_are_upright(tmp_path: Path, orientation: int) -> None:
    """Guards photos of phones, which are stored lying: they are read as transformers reads their files."""
    image, exif, path = Image.new("RGB", (8, 4)), Image.Exif(), tmp_path / "photo.png"
    image.putpixel((1, 0), (255, 255, 255))
    exif[0x0112] = orientation
    image.save(path, exif=exif)
    with Image.open(path) as stored:
        assert upright(stored).tobytes() == load_image(str(path)).tobytes()
        assert upright(stored).size == load_image(str(path)).size


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_turns_nothing() -> None:
    """Guards images whose EXIF is damaged: they are read as they are stored."""
    file = io.BytesIO()
    _image().save(file, format="JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01\x03\0\xff")
    with Image.open(file) as stored:
        assert upright(stored).size == (8, 8)


def test_a_batch_of_images_and_texts() -> None:
    """Guards passes over several sequences, of which some have media: each yields what it yields alone."""
    model, inputs = build_media_model("qwen3_vl")
    speculator = Speculator.from_transformers(model, method="mix", nodes=6)
    prompts: list[Any] = [inputs, inputs["input_ids"][0, :6].tolist(), inputs]
    alone = [speculator.generate(prompt, max_new_tokens=16, temperature=0).ids for prompt in prompts]
    batch = speculator.generate_batch(prompts, size=3, max_new_tokens=16, temperature=0)
    assert [result.ids for result in batch] == alone


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [
        ({"type": "image", "image": "https://example.com/a.png"}, PromptError, "nothing is fetched"),
        ({"type": "image", "image": "missing.png"}, FileError, "cannot read missing.png"),
        ({"type": "image"}, PromptError, "has no"),
        ({"type": "audio", "audio": "missing.wav"}, FileError, "no audio file at missing.wav"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,%%"}}, PromptError, "base64"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, FileError, "as an image"),
        ({"type": "smell", "smell": "roses"}, PromptError, "not 'smell'"),
    ],
)
def test_what_cannot_be_read_is_refused(part: dict[str, Any], error: type[Exception], message: str) -> None:
    """Guards messages from clients: each fails with its reason, and nothing is fetched."""
    with pytest.raises(error, match=message):
        encode_messages(make_processor(), _messages(part))


def test_models_of_text_and_models_without_a_processor_say_so() -> None:
    """Guards silence: media that nothing can read are an error, not an empty prompt."""
    model, inputs = build_media_model("llava")
    with pytest.raises(UnsupportedError, match="processor"):
        Speculator.from_transformers(model, method="mix").generate(_messages({"type": "image", "image": _image()}))
    with pytest.raises(UnsupportedError, match="text only"):
        Speculator.from_transformers(tiny_model("llama"), method="mix").generate(inputs)
    with pytest.raises(PromptError, match="input_ids"):
        Speculator.from_transformers(model, method="mix").generate({"pixel_values": torch.zeros(1)})


def test_a_processor_brings_its_tokenizer() -> None:
    """Guards the argument that takes either."""
    processor = make_processor()
    assert split_processor(processor) == (processor.tokenizer, processor)
    assert split_processor(processor.tokenizer) == (processor.tokenizer, None)
    assert split_processor(None) == (None, None)
    assert has_media(_messages({"type": "image", "image": ""}))
    assert not has_media([{"role": "user", "content": "w1"}])


def test_a_saved_model_brings_its_processor(tmp_path: Path) -> None:
    """Guards `from_pretrained`: images work without naming a processor."""
    model, _ = build_media_model("llava")
    model.save_pretrained(tmp_path)
    make_processor().save_pretrained(tmp_path)
    speculator = Speculator.from_pretrained(str(tmp_path), method="mix")
    prompt = _messages({"type": "image", "image": _image()})
    assert len(speculator.generate(prompt, max_new_tokens=4, temperature=0).ids) == 4
