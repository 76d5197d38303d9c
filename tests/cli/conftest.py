"""Small models on disk for the commands to load."""

from __future__ import annotations

from pathlib import Path

import pytest

from models import tiny_model
from speculant.api.loading import load_tokenizer


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a random model of 48 positions, with the bundled tokenizer but no chat template."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = load_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    tiny_model("llama", vocab_size=4096, max_position_embeddings=48).save_pretrained(folder)
    return folder
