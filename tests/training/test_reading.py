"""What --data names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import tiny_model
from speculant.api.loading import load_tokenizer
from speculant.core.errors import FileError, UsageError
from speculant.training.fingerprint import TargetIdentity, identify
from speculant.training.reading import read_data
from speculant.training.shards import shard_file, write_manifest, write_shard
from trainings import tiny_texts

TARGET = TargetIdentity("tiny", "tiny", "weights", "ids-61", 61)


def folder_of_texts(folder: Path, **changes: Any) -> Path:
    """Write two shards and their manifest."""
    write_manifest(folder, {"target": TARGET.record() | changes, "shards": 2})
    for number in range(2):
        write_shard(shard_file(folder, number), tiny_texts(5, seed=number, prompts=2))
    return folder


def test_a_folder_s_texts_are_read_in_order(tmp_path: Path) -> None:
    """Guards shards: ids, lengths and prompts come back."""
    found = read_data([folder_of_texts(tmp_path)], None, TARGET)
    assert len(found.texts) == 10
    assert found.texts[7].tolist() == tiny_texts(5, seed=1)[2].tolist()
    assert set(found.texts.prompts.tolist()) == {2}
    assert found.notes == ()


def test_texts_of_another_tokenizer_are_refused_and_of_another_model_noted(tmp_path: Path) -> None:
    """Guards against ids that mean other words."""
    with pytest.raises(UsageError, match="another tokenizer"):
        read_data([folder_of_texts(tmp_path / "one", tokenizer="ids-60")], None, TARGET)
    found = read_data([folder_of_texts(tmp_path / "two", model="others")], None, TARGET)
    assert "not written by this target" in found.notes[0]


def test_shards_without_a_manifest_are_read_with_a_note(tmp_path: Path) -> None:
    """Guards arrays of other programs: ids of any integer type and lengths."""
    np.savez(tmp_path / "a.npz", ids=np.arange(3, 23, dtype=np.int16), lengths=np.array([8, 12]))
    found = read_data([tmp_path], None, TARGET)
    assert found.texts.lengths.tolist() == [8, 12]
    assert "no data.json" in found.notes[0]


def test_an_interrupted_folder_is_read_with_a_note(tmp_path: Path) -> None:
    """Guards data that is still being written: half-written shards are passed over."""
    folder_of_texts(tmp_path)
    shard_file(tmp_path, 1).rename(tmp_path / ".texts-00001.npz.0123.saving")
    found = read_data([tmp_path], None, TARGET)
    assert len(found.texts) == 5
    assert "1 of 2 shards" in found.notes[0]


def test_damaged_shards_are_refused_by_name(tmp_path: Path) -> None:
    """Guards truncated archives, lengths that do not add up, and ids that the target does not have."""
    path = shard_file(folder_of_texts(tmp_path), 1)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(FileError, match=r"texts-00001\.npz cannot be read.*delete it"):
        read_data([tmp_path], None, TARGET)
    np.savez(path, ids=np.arange(9), lengths=np.array([4, 4]))
    with pytest.raises(FileError, match="add up"):
        read_data([tmp_path], None, TARGET)
    np.savez(path, ids=np.arange(70), lengths=np.array([70]))
    with pytest.raises(FileError, match="vocabulary has 61"):
        read_data([tmp_path], None, TARGET)


def test_text_files_are_tokenised(tmp_path: Path) -> None:
    """Guards .txt, cut at separators, and .jsonl of texts and of messages in the chat template."""
    tokenizer = load_tokenizer()
    target = TargetIdentity("tiny", "tiny", "weights", "x", 4096)
    (tmp_path / "a.txt").write_text("Once upon a time.\n<|endoftext|>\nTom had a dog.<|endoftext|>One day")
    rows = [{"text": "The cat sat."}, {"messages": [{"role": "user", "content": "Hi."}]}]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    found = read_data([tmp_path / "a.txt", tmp_path / "b.jsonl"], tokenizer, target)
    texts = ["Once upon a time.", "Tom had a dog.", "One day", "The cat sat."]
    assert [found.texts[i].tolist() for i in range(4)] == tokenizer(texts)["input_ids"]
    assert "Hi." in tokenizer.decode(found.texts[4])
    assert len(found.notes) == 2
    assert "train data" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", '{"text": "Hi."}\n{"tex', r"a\.jsonl:2.*truncated"),
        ("a.jsonl", '{"prompt": "Hi."}', r"a\.jsonl:1.*expected"),
        ("a.csv", "text", r"\.jsonl file was expected"),
        ("a.txt", "  \n", "no text in the data"),
        ("a.txt", b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_files_that_are_no_data_are_refused(tmp_path: Path, name: str, content: str | bytes, reason: str) -> None:
    """Guards messages about files and lines."""
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((FileError, UsageError), match=reason):
        read_data([tmp_path / name], load_tokenizer(), TARGET)


def test_paths_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    """Guards misspelled and empty folders."""
    with pytest.raises(FileError, match="no data at"):
        read_data([tmp_path / "missing"], None, TARGET)
    with pytest.raises(FileError, match="no shards"):
        read_data([tmp_path], None, TARGET)


def test_a_target_is_identified_by_weights_and_vocabulary() -> None:
    """Guards the fingerprint: the same in bfloat16, another for other weights."""
    one, other = tiny_model("llama"), tiny_model("llama")
    other.lm_head.weight.data[0, 0] += 1
    found = [identify(model, None, name="x", source="x") for model in (one, one.bfloat16().float(), other)]
    assert found[0] == found[1]
    assert found[0].model != found[2].model
    assert found[0].tokenizer == "ids-61"
