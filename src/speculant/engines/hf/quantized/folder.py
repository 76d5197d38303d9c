"""Writes a model's quantised weights to a folder, which loads like any other model, on CPUs."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from speculant.core.errors import FileError, UnsupportedError
from speculant.engines.hf.quantized.checkpoint_files import find_file
from speculant.engines.hf.quantized.checkpoints.formats import PACKED
from speculant.engines.hf.quantized.loading import FILE, check_scheme, make_parts, open_empty
from speculant.engines.hf.quantized.making import QuantizeRequest
from speculant.engines.hf.quantized.packed_file import LAYOUT, save_packed
from speculant.engines.hf.quantized.summary import QuantizedSummary, summarize

_CONFIG = "config.json"
_BESIDE = (".json", ".jinja", ".model", ".txt", ".tiktoken")  # tokenizers, chat templates, generation configs, licences


def write_folder(asked: QuantizeRequest, folder: Path) -> QuantizedSummary:
    """Write a quantised checkpoint: config, tokenizer and packed weights, all or nothing.

    Args:
        asked: the checkpoint, and how to quantise it.
        folder: a new folder.

    Raises:
        FileError: the folder exists, or cannot be written.
        UnsupportedError, ModelNotFoundError: the checkpoint cannot be quantised or read.
    """
    if folder.exists():
        raise FileError(f"{folder} exists and is not overwritten. Name a new folder.")
    model, settings = open_empty(asked)
    scheme = check_scheme(asked.scheme, settings)
    if settings.get("quant_method") == PACKED:
        raise UnsupportedError(f"{asked.source} is in this format already; copy the folder.")
    made, loss = make_parts(asked, model, settings)
    config = find_file(asked.source, _CONFIG)
    facts: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    facts["quantization_config"] = {"quant_method": PACKED, "scheme": scheme, "layout": LAYOUT}
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.absolute().parent, prefix=f".{folder.name}.") as name:
            aside = Path(name) / folder.name
            aside.mkdir()
            for path in sorted(config.parent.iterdir()):
                if path.suffix in _BESIDE and path.is_file() and not path.name.endswith(f"{FILE}.index.json"):
                    shutil.copyfile(path, aside / path.name)
            (aside / _CONFIG).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
            save_packed(aside / FILE, made.parts, {"before": made.before})
            shutil.copymode(aside / _CONFIG, aside / FILE)  # temporary files are readable only by their owner
            os.rename(aside, folder)
    except OSError as error:
        raise FileError(
            f"cannot write {folder}: {error.strerror or error}. Name another folder that has room."
        ) from error
    return summarize(made.parts, scheme, before=made.before, loss=loss)
