"""The target's states, computed and cached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gemmas import gemma
from models import deep_model
from speculant.core.errors import FileError, UnsupportedError
from speculant.training.feature_cache import FeatureCache
from speculant.training.features import Features
from trainings import tiny_features, tiny_texts


def open_cache(folder: Path, features: Features, *, limit: int = 1 << 20, about: str = "x") -> FeatureCache:
    """Return a cache for features."""
    lengths = features.groups.texts.lengths
    rows = [int(lengths[features.groups[group]].sum()) for group in range(len(features.groups))]
    return FeatureCache(folder, rows=rows, shape=features.shape, limit=limit, about={"of": about})


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "gemma4"])
def test_states_are_those_of_each_text_alone(name: str) -> None:
    """Guards taps, the final norm, padding, which no text may see, and layers that share keys."""
    model = gemma("shared") if name == "gemma4" else deep_model(name)
    taps = (1, 0, -1)
    features = tiny_features(model, tiny_texts(), taps=taps)
    batch = features.batch(1, features.groups.anchors(1, 0))
    for row, index in enumerate(features.groups[1]):
        ids = torch.from_numpy(features.groups.texts[int(index)].astype(np.int64))[None]
        assert batch.ids[row, : ids.shape[1]].tolist() == ids[0].tolist()
        with torch.no_grad():
            states = model(input_ids=ids, output_hidden_states=True).hidden_states
            logits = model.get_output_embeddings()(batch.final[row, : ids.shape[1]])
            torch.testing.assert_close(logits, model(input_ids=ids).logits[0], atol=1e-4, rtol=1e-4)
        for place, tap in enumerate(taps[:2]):
            torch.testing.assert_close(
                batch.hidden[row, : ids.shape[1], place], states[tap + 1][0], atol=1e-4, rtol=1e-4
            )


def test_cached_states_are_rounded_the_first_time_too(tmp_path: Path) -> None:
    """Guards resuming: a batch is the same whether its states were just computed or are read from disk."""
    model = deep_model("llama")
    features = tiny_features(model, tiny_texts())
    plain = features.batch(0, features.groups.anchors(0, 0)).final
    features.cache = open_cache(tmp_path, features)
    first = features.batch(0, features.groups.anchors(0, 0))
    again = features.batch(0, features.groups.anchors(0, 0))
    assert torch.equal(first.final, again.final)
    rows = torch.arange(plain.shape[1]) < first.lengths[:, None]
    torch.testing.assert_close(first.final[rows], plain[rows], atol=1e-2, rtol=1e-2)
    assert not torch.equal(first.final[rows], plain[rows])


def test_a_cache_is_found_again_and_that_of_another_target_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards reuse across runs, and against the states of another model."""
    features = tiny_features(deep_model("llama"), tiny_texts())
    features.cache = open_cache(tmp_path, features)
    first = features.batch(0, features.groups.anchors(0, 0)).final
    features.flush()
    features.cache = open_cache(tmp_path, features)
    assert features.cache.is_filled(0)
    assert not features.cache.is_filled(1)

    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(features, "_compute", never)
    assert torch.equal(features.batch(0, features.groups.anchors(0, 0)).final, first)
    assert not open_cache(tmp_path, features, about="other").is_filled(0)


def test_the_limit_is_kept(tmp_path: Path) -> None:
    """Guards the byte budget: groups that fit are cached, the others are computed every time."""
    features = tiny_features(deep_model("llama"), tiny_texts(20))
    whole = open_cache(tmp_path / "whole", features)
    features.cache = open_cache(tmp_path / "part", features, limit=whole.bytes // 2)
    assert 0 < len(features.cache) < len(features.groups)
    assert features.cache.bytes <= whole.bytes // 2
    for group in range(len(features.groups)):
        features.batch(group, features.groups.anchors(group, 0))
    features.flush()
    assert (tmp_path / "part" / "states.f16").stat().st_size == features.cache.bytes
    assert len(open_cache(tmp_path / "none", features, limit=0)) == 0


def test_states_beyond_float16_are_refused(tmp_path: Path) -> None:
    """Guards against infinities in the cache, with the way out."""
    features = tiny_features(deep_model("llama"), tiny_texts())
    cache = open_cache(tmp_path, features)
    with pytest.raises(UnsupportedError, match="--cache"):
        cache.put(0, torch.full((int(features.groups.texts.lengths[features.groups[0]].sum()), 1, 32), 1e6))


def test_a_full_disk_is_refused_before_it_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against SIGBUS: writing to a mapped file on a full disk would kill the process."""
    features = tiny_features(deep_model("llama"), tiny_texts())
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: type("Usage", (), {"free": 10})())
    with pytest.raises(FileError, match="no room"):
        open_cache(tmp_path, features)
