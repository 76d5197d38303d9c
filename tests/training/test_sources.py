"""Pairs of texts for encoder-decoders: written by the target, read from files, and in batches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoder_decoders import build_encoder_decoder
from models import tiny_model
from speculant.api.loading import load_tokenizer
from speculant.core.errors import FileError, SpeculantError, UsageError
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.training.answering import answer_sources
from speculant.training.batches import Groups
from speculant.training.continuing import TokenPrompt
from speculant.training.features import Features
from speculant.training.fingerprint import TargetIdentity
from speculant.training.preparing import fitting_sources
from speculant.training.reading import TrainData, read_data
from speculant.training.shards import read_shard, shard_file, write_shard
from speculant.training.sources import decoder_start
from speculant.training.texts import Texts, from_parts, join_texts
from speculant.training.writing import WritingSettings, write_texts
from trainings import tiny_identity, tiny_texts, tiny_training

TARGET = TargetIdentity("tiny", "tiny", "weights", "x", 4096)


def pairs(count: int = 6) -> Texts:
    """Return random texts, each with a source."""
    return replace(tiny_texts(count, prompts=1), sources=tiny_texts(count, seed=1))


def test_batches_have_the_model_s_states() -> None:
    """Guards padding of sources and texts: states of every pair are those that the model computes for it alone."""
    model, texts = build_encoder_decoder("t5"), pairs()
    features = Features(model, HFTargetParts(model), Groups(texts, size=3, anchors=4, depth=2, seed=0), (0, -1))
    batch = features.held_out_batch(1)
    assert batch.source is not None
    for row, index in enumerate(features.groups[1]):
        assert texts.sources is not None
        source, text = (torch.from_numpy(each[int(index)].astype(np.int64))[None] for each in (texts.sources, texts))
        with torch.no_grad():
            found = model(input_ids=source, decoder_input_ids=text, output_hidden_states=True)
        read, length = found.encoder_last_hidden_state[0], text.shape[1]
        assert batch.source.seen[row].tolist() == [place < len(read) for place in range(batch.source.seen.shape[1])]
        torch.testing.assert_close(batch.source.states[row, : len(read)], read, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(
            batch.hidden[row, :length, 0], found.decoder_hidden_states[1][0], atol=1e-4, rtol=1e-4
        )
        torch.testing.assert_close(batch.final[row, :length], found.decoder_hidden_states[-1][0], atol=1e-4, rtol=1e-4)


def test_answers_are_those_of_generate() -> None:
    """Guards texts written together: the greedy ones are the model's own, up to the token that ends them."""
    model = build_encoder_decoder("bart", forced_eos_token_id=2, num_beams=3)
    model.generation_config.eos_token_id = 2
    sources = [TokenPrompt([7, 9, 30, 8, 12], 0.0), TokenPrompt([40, 6, 9], 1.0), TokenPrompt([11, 90, 5], 0.0)]
    texts = answer_sources(model, sources, new_tokens=12, seed=[3])
    assert texts.sources is not None
    for index, source in enumerate(sources):
        assert texts.sources[index].tolist() == source.ids
        text = texts[index].tolist()
        assert text[0] == 2
        assert 2 not in text[1:-1]
        if not source.temperature:
            own = model.generate(torch.tensor([source.ids]), max_new_tokens=12, num_beams=1)
            assert text == own[0].tolist()
    again = answer_sources(model, sources, new_tokens=12, seed=[3])
    assert again.ids.tolist() == texts.ids.tolist()
    assert texts.prompts.tolist() == [1, 1, 1]


def test_shards_keep_sources(tmp_path: Path) -> None:
    """Guards `train data` with an encoder-decoder, and shards that are damaged."""
    model = build_encoder_decoder("t5")
    settings = WritingSettings(texts=4, rows=2, new_tokens=10)
    write_texts(model, [[7, 8, 9], [30, 4, 5, 6]], tmp_path, settings, tiny_identity(model))
    found = read_data([tmp_path], None, tiny_identity(model), start=decoder_start(model)).texts
    assert found.sources is not None
    assert sorted(map(len, (found.sources[row] for row in range(4)))) == [3, 3, 4, 4]
    path = shard_file(tmp_path, 0)
    write_shard(path, pairs())
    kept = read_shard(path, 61)
    assert kept.digest() == pairs().digest() != tiny_texts(6, prompts=1).digest()
    for name, lengths in (("add up", [4, 4]), ("2 sources of 6 texts", [4, 5])):
        arrays = {"ids": kept.ids, "lengths": kept.lengths, "source_ids": np.arange(9)}
        np.savez(path, **arrays, source_lengths=np.array(lengths))
        with pytest.raises(FileError, match=name):
            read_shard(path, 61)


def test_sources_stay_with_their_texts() -> None:
    """Guards selections, cuts and joins."""
    texts = pairs()
    assert texts.sources is not None
    chosen = join_texts([texts.select(np.array([4, 1])).cut(9), texts])
    assert chosen.sources is not None
    assert chosen.sources[0].tolist() == texts.sources[4].tolist()
    assert chosen.sources[3].tolist() == texts.sources[1].tolist()
    assert len(chosen[0]) == 9


def test_pairs_are_read_from_files(tmp_path: Path) -> None:
    """Guards .jsonl of pairs: the decoder's text begins with its own first token; other files are refused by name."""
    tokenizer, path = load_tokenizer(), tmp_path / "pairs.jsonl"
    rows = [{"source": "A dog ran ran.", "target": "A dog ran."}, {"source": "Cat.", "target": "The cat sat."}]
    path.write_text("\n".join(map(json.dumps, rows)))
    texts = read_data([path], tokenizer, TARGET, start=5).texts
    assert texts.sources is not None
    for index, row in enumerate(rows):
        assert texts[index].tolist() == [5, *tokenizer(row["target"])["input_ids"]]
        assert texts.sources[index].tolist() == tokenizer(row["source"])["input_ids"]
    path.write_text('{"text": "A dog ran."}')
    with pytest.raises(FileError, match=r'jsonl:1: a row \{"source", "target"\}'):
        read_data([path], tokenizer, TARGET, start=5)
    (tmp_path / "a.txt").write_text("A dog ran.")
    with pytest.raises(UsageError, match="without sources"):
        read_data([tmp_path / "a.txt"], tokenizer, TARGET, start=5)


def test_texts_of_the_other_kind_are_refused() -> None:
    """Guards targets: pairs for encoder-decoders alone, and only those whose sources its encoder has positions for."""
    model, notes = build_encoder_decoder("bart", max_position_embeddings=20), list[str]()
    with pytest.raises(UsageError, match="have no sources, and the target is an encoder-decoder"):
        fitting_sources(tiny_texts(), model, notes.append)
    with pytest.raises(UsageError, match="have sources, and the target is decoder-only"):
        fitting_sources(pairs(), tiny_model("llama"), notes.append)
    texts = replace(from_parts([np.arange(9, dtype=np.int32)] * 3), sources=from_parts(_sources(0, 20, 21)))
    assert len(fitting_sources(texts, model, notes.append)) == 1
    assert notes == ["2 of 3 texts have a source that is empty or too long, and are left out."]


def _sources(*lengths: int) -> list[Any]:
    return [np.arange(length, dtype=np.int32) for length in lengths]


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("glide", {}, r"for which heads of kind glide do not draft: .* rotated keys"),
        ("mtp", {}, r"heads of kind mtp do not draft: its layers"),
        ("pass", {}, r"heads of kind pass do not draft: .* embeddings of its own"),
        ("draft-model", {}, r"draft models do not draft: .* decoder-only"),
        ("medusa", {"joint": True}, r"not trained together with its heads"),
    ],
)
def test_trainings_without_a_result_are_refused(kind: str, changes: Any, message: str, tmp_path: Path) -> None:
    """Guards kinds that need a decoder-only target: their training ends before it begins, with the reason."""
    model = build_encoder_decoder("t5")
    with pytest.raises(SpeculantError, match=message):
        tiny_training(tmp_path / "head", kind=kind, model=model, data=TrainData(pairs(), ("x",), ()), **changes)
    assert not (tmp_path / "head").exists()


def test_encoders_of_sound_are_refused() -> None:
    """Guards Whisper, whose sources are no texts."""
    with pytest.raises(UsageError, match="reads input_features"):
        decoder_start(build_encoder_decoder("whisper"))
    assert decoder_start(build_encoder_decoder("bart")) == 2
    assert decoder_start(tiny_model("llama")) is None
