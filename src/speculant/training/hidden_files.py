"""Folders of a target's hidden states stored by other programs, one file per text.

vLLM's extraction (`extract_hidden_states` with its ExampleHiddenStatesConnector) writes REQUEST.safetensors; the data
generation of vllm-project/speculators writes hs_N.safetensors in `hidden_states` next to a dataset whose row N is that
text. A file has `token_ids` Int64[T] and `hidden_states` [T, S, D]: S layer boundaries of the target, the last one
before the final norm. It does not name the boundaries; see `stored_states`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from speculant.core.errors import FileError
from speculant.core.packages import check_packages
from speculant.training.texts import Int32, Texts, from_parts

TOKENS, STATES = "token_ids", "hidden_states"
_NUMBERED, _DATASET = "hs_", "dataset_info.json"


def find_hidden_files(folder: Path) -> list[Path]:
    """Return the files of a folder, or of its `hidden_states`, sorted by number or else by name."""
    inner = folder / STATES
    files = [*(inner if inner.is_dir() else folder).glob("*.safetensors")]
    return sorted(files, key=lambda file: (-1 if (number := _number(file)) is None else number, file.name))


def read_hidden_folder(folder: Path, vocabulary: int) -> Texts:
    """Read the texts of a folder, each with its file.

    Args:
        folder: a folder with files of hidden states.
        vocabulary: vocabulary size V of the target.

    Raises:
        FileError: a file is damaged or of another kind, or has tokens that the target lacks.
    """
    files = find_hidden_files(folder)
    parts = [_token_ids(file, vocabulary) for file in files]
    texts = from_parts(parts, _prompts(folder, files, parts))
    return Texts(texts.ids, texts.starts, texts.prompts, tuple(files))


def _token_ids(file: Path, vocabulary: int) -> Int32:
    try:
        with safe_open(file, framework="np") as opened:
            missing = {TOKENS, STATES} - set(opened.keys())
            if missing:
                raise FileError(
                    f"{file} has no {' and no '.join(sorted(missing))}: it holds no hidden states of a text, as vLLM "
                    "and speculators store them."
                )
            ids, shape = opened.get_tensor(TOKENS), list(opened.get_slice(STATES).get_shape())
    except (OSError, SafetensorError, ValueError) as error:
        raise FileError(f"{file} cannot be read: {error}. It may be truncated, or be written still.") from error
    if ids.ndim != 1 or len(shape) != 3 or shape[0] != len(ids):
        raise FileError(
            f"{file} has hidden_states of shape {shape} beside token_ids of shape {list(ids.shape)}; [tokens, layers, "
            "size] beside [tokens] was expected."
        )
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary:
        raise FileError(
            f"{file} has token ids from {ids.min()} to {ids.max()}, and the target's vocabulary has {vocabulary}: its "
            "states are of another model."
        )
    found: Int32 = ids.astype(np.int32)
    return found


def _prompts(folder: Path, files: list[Path], parts: list[Int32]) -> list[int]:
    """Return the prompt length of each text: the tokens before the first one with a loss.

    Raises:
        FileError: the dataset of the files is damaged, or has other texts.
    """
    places = [each for each in (folder, folder.parent) if (each / _DATASET).exists()]
    if not places or any(_number(file) is None for file in files):
        return [0] * len(files)
    check_packages(["datasets"], what=f"the dataset in {places[0]}", extra="datasets")
    import datasets

    try:
        rows = datasets.load_from_disk(str(places[0])).with_format(None)
        found = []
        for file, ids in zip(files, parts, strict=True):
            row = rows[_number(file)]
            if list(row["input_ids"]) != ids.tolist():
                raise FileError(f"{file} and the dataset in {places[0]} hold different texts; make the states anew.")
            mask = np.asarray(row["loss_mask"], bool)
            found.append(int(mask.argmax()) if mask.any() else len(mask))
    except (OSError, KeyError, IndexError, ValueError, TypeError) as error:
        raise FileError(f"the dataset in {places[0]} cannot be read: {error!r}. Make it anew.") from error
    return found


def _number(file: Path) -> int | None:
    number = file.stem.removeprefix(_NUMBERED)
    return int(number) if file.stem.startswith(_NUMBERED) and number.isdigit() else None
