"""`speculant generate --image`: an image before the prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from media_models import build_media_model, make_processor
from speculant.cli.main import main


def test_an_image_before_the_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards the way from the command line to the processor, and files that are missing, which are told at once."""
    model, _ = build_media_model("llava")
    model.save_pretrained(tmp_path)
    make_processor().save_pretrained(tmp_path)
    Image.new("RGB", (8, 8), (200, 30, 90)).save(tmp_path / "red.png")
    named = ["--model", str(tmp_path), "--max-new-tokens", "6", "--no-fast"]
    assert main(["generate", "w7 w8", "--image", str(tmp_path / "red.png"), *named]) == 0
    assert capsys.readouterr().out.strip()
    assert main(["generate", "w7", "--image", str(tmp_path / "none.png"), *named]) == 1
    assert "none.png" in capsys.readouterr().err
    assert main(["generate", "w7", "--image", str(tmp_path / "red.png"), "--compare", *named]) == 2
