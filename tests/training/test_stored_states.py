"""Hidden states that vLLM and speculators stored, as training data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models import deep_model
from speculant.core.errors import FileError, UnsupportedError
from speculant.training.features import Features
from speculant.training.fingerprint import TargetIdentity
from speculant.training.hidden_files import find_hidden_files, read_hidden_folder
from speculant.training.reading import read_data
from speculant.training.texts import Texts, join_texts
from trainings import tiny_features, tiny_texts, tiny_training

TARGET = TargetIdentity("tiny", "tiny", "weights", "ids-61", 61)


def boundaries(model: Any, ids: Tensor) -> Tensor:
    """Return what is at every boundary [T, L + 1, D] of a model, the last one before the final norm, as in vLLM."""
    found = [model.get_input_embeddings()(ids)]
    hooks = [
        layer.register_forward_hook(lambda _m, _i, out: found.append(out[0] if isinstance(out, tuple) else out))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(ids[None])
    for hook in hooks:
        hook.remove()
    return torch.stack([found[0], *(each[0] for each in found[1:])], 1).detach()


def stored(folder: Path, model: Any, texts: Texts, slots: list[int], *, numbered: bool = False) -> Path:
    """Write the states of texts at boundaries, in bfloat16, as vLLM does, or by number as speculators does."""
    inner = folder / "hidden_states" if numbered else folder
    inner.mkdir(parents=True, exist_ok=True)
    for index in range(len(texts)):
        ids = torch.from_numpy(texts[index]).long()
        tensors = {"token_ids": ids, "hidden_states": boundaries(model, ids)[:, slots].bfloat16().contiguous()}
        name = f"hs_{index}" if numbered else f"cmpl-{97 * index % 41:03d}"
        save_file(tensors, inner / f"{name}.safetensors")
    return folder


def texts_file(features: Features, index: int) -> Path | None:
    return features.groups.texts.files[int(index)]


def opened(model: Any, texts: Texts, taps: tuple[int, ...] = (0, 1)) -> Features:
    return tiny_features(model, texts, taps=taps)


@pytest.mark.parametrize("slots", [[1, 2, 3], [3, 1, 2], [0, 1, 2, 3]])
@pytest.mark.parametrize("numbered", [False, True])
def test_stored_states_are_those_of_their_layers(tmp_path: Path, slots: list[int], numbered: bool) -> None:
    """Guards against states off by a layer: whatever the order in the files, each tap gets its own, as if computed."""
    model, texts = deep_model("llama"), tiny_texts(6)
    read = read_hidden_folder(stored(tmp_path, model, texts, slots, numbered=numbered), 61)
    assert sorted(map(tuple, (read[i].tolist() for i in range(6)))) == sorted(
        map(tuple, (texts[i].tolist() for i in range(6)))
    )
    if numbered:
        assert [read[i].tolist() for i in range(6)] == [texts[i].tolist() for i in range(6)]
    features = opened(model, read)
    assert features.stored is not None
    plain = opened(model, Texts(read.ids, read.starts, read.prompts))
    for group in range(len(features.groups)):
        found, want = (each.held_out_batch(group) for each in (features, plain))
        rows = torch.arange(found.ids.shape[1]) < found.lengths[:, None]
        torch.testing.assert_close(found.hidden[rows], want.hidden[rows], atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(found.final[rows], want.final[rows], atol=3e-2, rtol=3e-2)
        assert not torch.equal(found.hidden[rows], want.hidden[rows])  # read, not computed


def test_texts_are_cut_chosen_and_mixed_with_others(tmp_path: Path) -> None:
    """Guards the way from a file to its text: cut texts read its beginning, texts without files are computed."""
    model, texts = deep_model("llama"), tiny_texts(4)
    held = read_hidden_folder(stored(tmp_path, model, texts, [1, 2, 3]), 61)
    both = join_texts([held, tiny_texts(3, seed=5)]).cut(15)
    assert [file is not None for file in both.files] == [True] * 4 + [False] * 3
    chosen = both.select(torch.tensor([5, 1, 3]).numpy())
    assert chosen.files == (None, held.files[1], held.files[3])
    features, plain = opened(model, chosen), opened(model, Texts(chosen.ids, chosen.starts, chosen.prompts))
    found, want = features.held_out_batch(0), plain.held_out_batch(0)
    rows = torch.arange(found.ids.shape[1]) < found.lengths[:, None]
    torch.testing.assert_close(found.hidden[rows], want.hidden[rows], atol=2e-2, rtol=2e-2)
    assert chosen.digest() != Texts(chosen.ids, chosen.starts, chosen.prompts).digest()


def test_a_head_is_trained_on_a_folder_of_states(tmp_path: Path) -> None:
    """Guards `train --data FOLDER`: read as data, with a note, and trained on to the end."""
    model = deep_model("llama")
    data = read_data([stored(tmp_path / "states", model, tiny_texts(12), [1, 2, 3])], None, TARGET)
    assert len(data.texts) == 12
    assert "hidden states" in data.notes[0]
    record = tiny_training(tmp_path / "head", kind="eagle3", model=model, data=data)
    assert record is not None
    assert record["steps"] == 6


def write_dataset(folder: Path, rows: dict[str, Any]) -> None:
    """Write columns as the package `datasets` saves them."""
    import pyarrow

    table = pyarrow.table(rows)
    with pyarrow.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "0", "_format_columns": None}
    state |= {"_format_kwargs": {}, "_format_type": None, "_output_all_columns": False, "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({}))


@pytest.mark.filterwarnings("ignore")  # of the packages that the dataset is written with
def test_the_dataset_of_speculators_says_what_prompts_are(tmp_path: Path) -> None:
    """Guards anchors: no token in front of the first that has a loss is trained; other texts are refused."""
    pytest.importorskip("datasets")
    model, texts = deep_model("llama"), tiny_texts(3)
    rows = {
        "input_ids": [texts[i].tolist() for i in range(3)],
        "loss_mask": [[0] * (3 + i) + [1] * (len(texts[i]) - 3 - i) for i in range(3)],
        "seq_len": [len(texts[i]) for i in range(3)],
    }
    write_dataset(tmp_path, rows)
    stored(tmp_path, model, texts, [1, 3], numbered=True)
    assert read_hidden_folder(tmp_path, 61).prompts.tolist() == [3, 4, 5]
    assert read_hidden_folder(tmp_path / "hidden_states", 61).prompts.tolist() == [3, 4, 5]
    stored(tmp_path, model, tiny_texts(3, seed=9), [1, 3], numbered=True)
    with pytest.raises(FileError, match="different texts"):
        read_hidden_folder(tmp_path, 61)


def test_states_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Guards against training on another model's states, on other layers, and behind the final norm."""
    model, texts = deep_model("llama"), tiny_texts(3)
    other = deep_model("llama")
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn_like(weight) * weight.std())
    wrong = stored(tmp_path / "model", other, texts, [1, 2, 3])
    with pytest.raises(UnsupportedError, match="equals none, none, none"):
        opened(model, read_hidden_folder(wrong, 61))
    fewer = stored(tmp_path / "layers", model, texts, [1, 3])
    with pytest.raises(UnsupportedError, match=r"boundaries 1, 2, 3 it lacks 2, since .* equals 1, 3 "):
        opened(model, read_hidden_folder(fewer, 61))
    normed = stored(tmp_path / "norm", model, texts, [1, 2, 3])
    for file in find_hidden_files(normed):
        held = load_file(file)
        held["hidden_states"][:, 2] = model.model.norm(held["hidden_states"][:, 2].float()).detach().bfloat16()
        save_file(held, file)
    with pytest.raises(UnsupportedError, match="equals 1, 2, none"):
        opened(model, read_hidden_folder(normed, 61))
    wide = deep_model("llama", hidden_size=64)
    with pytest.raises(UnsupportedError, match="size 32, and the target's have 64"):
        opened(wide, read_hidden_folder(stored(tmp_path / "size", model, texts, [1, 2, 3]), 61))


DAMAGES: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "no states": ({"hidden_states": None}, "no hidden_states"),
    "no tokens": ({"token_ids": None}, "no token_ids"),
    "flat": ({"hidden_states": torch.zeros(12, 96)}, "shape"),
    "fewer rows": ({"hidden_states": torch.zeros(3, 3, 32)}, "shape"),
    "foreign tokens": ({"token_ids": torch.full((12,), 99)}, "vocabulary has 61"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files_are_refused_by_name(tmp_path: Path, name: str) -> None:
    """Guards truncated, foreign and unfinished files: the file is named, with what is wrong."""
    changes, words = DAMAGES[name]
    tensors = {"token_ids": torch.arange(12), "hidden_states": torch.zeros(12, 3, 32)} | changes
    save_file({key: value for key, value in tensors.items() if value is not None}, tmp_path / "a.safetensors")
    with pytest.raises(FileError, match=rf"a\.safetensors.*{words}"):
        read_hidden_folder(tmp_path, 61)


def test_cut_off_files_and_numbers_that_are_none(tmp_path: Path) -> None:
    """Guards a file that is still being written, and states that overflowed."""
    model, texts = deep_model("llama"), tiny_texts(3)
    folder = stored(tmp_path, model, texts, [1, 2, 3])
    features, last = opened(model, read_hidden_folder(folder, 61)), find_hidden_files(folder)[-1]
    held = load_file(last)
    held["hidden_states"][2, 0, 0] = torch.nan
    save_file(held, last)
    group = next(
        i for i in range(len(features.groups)) if last in [texts_file(features, j) for j in features.groups[i]]
    )
    with pytest.raises(FileError, match="no numbers"):
        features.held_out_batch(group)
    last.write_bytes(last.read_bytes()[:40])
    with pytest.raises(FileError, match="may be truncated"):
        read_hidden_folder(folder, 61)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text(json.dumps({}))
    with pytest.raises(FileError, match="hidden states"):
        read_data([tmp_path / "empty"], None, TARGET)
