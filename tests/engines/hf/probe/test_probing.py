"""What a model is probed for before its first draft, and how the result is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationMixin, MistralConfig, MistralForCausalLM

from architecture_matrix.catalogue import build
from models import DYNAMIC, PHI3, SHAPE, tiny_model
from passes import IDS, plain_text
from speculant import Speculator
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.probe import probing, tiny
from speculant.engines.hf.probe.class_checks import check_model, misreads_at_limit


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "speculant"


@pytest.mark.parametrize(
    ("name", "attention", "verdict"),
    [
        ("llama", "sdpa", "trees"),
        ("gpt_neo", "eager", "chains"),
        ("gpt_neo (global layers)", "eager", "trees"),
        ("llama4_text (full attention, temperature tuning)", "sdpa", "chains"),
        ("llama4_text (full attention)", "sdpa", "trees"),
        pytest.param("llama (rope: dynamic)", "sdpa", "trees", marks=DYNAMIC),
        pytest.param("phi3 (rope: longrope)", "sdpa", "trees", marks=PHI3),
        ("llama (a window left in its config)", "sdpa", "trees"),
        ("doge", "sdpa", "refused"),
        pytest.param("janus", "sdpa", "trees", marks=pytest.mark.slow),
        ("paligemma", "sdpa", "trees"),
    ],
)
def test_what_no_config_says_is_found(name: str, attention: str, verdict: str) -> None:
    """Guards losslessness: masks by cache slot or by content, and scales by slot, are seen in the logits."""
    model = build(name, attention)
    outcome = probing.examine(model, check_model(model))
    assert outcome.verdict == verdict
    assert bool(outcome.reason) == (verdict != "trees")
    assert outcome.notes == ()


def test_far_limits_are_reached_on_a_small_model() -> None:
    """Guards long windows: texts that cross a window of thousands of tokens take too long on the model itself."""
    config = MistralConfig(**SHAPE | {"max_position_embeddings": 32768}, sliding_window=4096)
    model = MistralForCausalLM(config).eval()
    shrunk, small = probing.build_tiny(model, check_model(model))
    assert small.window == 6
    assert shrunk.config.num_hidden_layers == 2
    assert shrunk.config.max_position_embeddings == 32
    assert type(shrunk) is type(model)
    assert model.config.sliding_window == 4096


def test_the_result_is_kept_and_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards start-up time: the second speculator of a model shape probes nothing."""
    first = probing.probe_outcome(tiny_model("llama"), check_model(tiny_model("llama")))
    [file] = folder.glob("probe-*.json")
    assert json.loads(file.read_text())["verdict"] == "trees"
    monkeypatch.setattr(probing, "examine", lambda *_: pytest.fail("probed again"))
    assert probing.probe_outcome(tiny_model("llama"), check_model(tiny_model("llama"))) == first
    monkeypatch.undo()


def test_models_of_one_architecture_share_the_tiny_ones_result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards start-up time: a model of another size is probed itself, but its tiny model is not probed again."""
    small, large = tiny_model("llama"), tiny_model("llama", hidden_size=64, vocab_size=90)
    probing.probe_outcome(small, check_model(small))
    monkeypatch.setattr(probing, "_examine_tiny", lambda *_: pytest.fail("probed again"))
    with pytest.raises(pytest.fail.Exception, match="probed again"):
        probing.probe_outcome(tiny_model("qwen2"), check_model(tiny_model("qwen2")))
    outcome = probing.probe_outcome(large, check_model(large))
    assert outcome.verdict == "trees"
    assert [len(list(folder.glob(names))) for names in ("probe-*.json", "tiny-probe-*.json")] == [2, 1]


def test_a_broken_result_is_probed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards files cut off by a crash or written by something else."""
    model, probed, first = tiny_model("llama"), list[Any](), probing.ProbeOutcome(verdict="trees")

    def examine(*given: Any, **_: Any) -> probing.ProbeOutcome:
        probed.append(given)
        return first

    monkeypatch.setattr(probing, "examine", examine)
    assert probing.probe_outcome(model, check_model(model)) == first
    [file] = folder.glob("probe-*.json")
    contents = (b"", b"{", b"[]", b'{"verdict": "perhaps", "notes": []}', b"\xff\xfe")
    for count, content in enumerate(contents, 2):
        file.write_bytes(content)
        assert probing.probe_outcome(model, check_model(model)) == first
        assert len(probed) == count
        assert json.loads(file.read_text())["verdict"] == "trees"


def test_a_folder_that_cannot_be_written_does_not_matter(folder: Path) -> None:
    """Guards read-only homes: a file is in the place of the folder."""
    folder.write_text("in the way")
    model = tiny_model("llama")
    assert probing.probe_outcome(model, check_model(model)).verdict == "trees"


def test_another_attention_is_another_result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the key of the result."""
    monkeypatch.setattr(probing, "examine", lambda *_, **__: probing.ProbeOutcome(verdict="trees"))
    for attention in ("sdpa", "eager"):
        model = tiny_model("llama", attention)
        probing.probe_outcome(model, check_model(model))
    assert len(list(folder.glob("probe-*.json"))) == 2


def test_random_streams_are_left_as_they_were(folder: Path) -> None:
    """Guards sampling: a text must not depend on whether the model was probed before it."""
    model = tiny_model("llama")
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    probing.probe_outcome(model, check_model(model))
    assert torch.equal(torch.rand(3), expected)


def test_a_refused_model_says_why_and_is_decoded_plainly() -> None:
    """Guards Doge, whose masks go by the content of a pass: alone and in batches, with a method and with none."""
    model = build("doge", "sdpa")
    strict = Speculator.from_transformers(model, method="lookup", fast=False, strict=True)
    with pytest.raises(UnsupportedError, match="DogeForCausalLM cannot verify drafts: in a random text"):
        strict.generate([5, 6, 7], max_new_tokens=20)
    expected = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=20, do_sample=False)[0, 3:].tolist()
    for method in ("lookup", "none"):
        speculator = Speculator.from_transformers(model, method=method, fast=False)
        results = speculator.generate_batch([[5, 6, 7], [5, 6, 7]], max_new_tokens=20, temperature=0)
        assert [result.ids for result in results] == [expected] * 2
        assert "decoded plainly, without drafts" in results[0].stats.notes[0]


@pytest.mark.parametrize("method", ["lookup", pytest.param("none", marks=pytest.mark.slow)])
def test_two_windows_are_told_apart(method: str) -> None:
    """Guards Doge with both of its windows: small models have to keep the order of their sizes."""
    config = build("doge", "sdpa").config
    config.keep_window_size, config.sliding_window, config.max_position_embeddings = 16, 24, 256
    model = tiny.tiny_model(type(build("doge", "sdpa")), config, attention="sdpa")
    expected = plain_text(model, IDS, 60)
    result = Speculator.from_transformers(model, method=method, fast=False).generate(
        IDS, max_new_tokens=60, temperature=0, eos_token_id=None
    )
    assert result.ids == expected
    small, _ = probing.build_tiny(model, check_model(model))
    assert small.config.keep_window_size < small.config.sliding_window < 36


def test_chains_are_noted() -> None:
    """Guards the user's view: `stats.notes` gives the reason."""
    speculator = Speculator.from_transformers(build("gpt_neo", "eager"), method="lookup", nodes=4, fast=False)
    notes = speculator.generate([5, 6, 7], max_new_tokens=4, temperature=0).stats.notes
    assert any("verified as chains" in note for note in notes)
    assert not speculator.engine.capabilities.trees


def test_a_config_that_requires_an_end_token_is_made_small() -> None:
    """Guards Qwen3-ASR, whose config refuses to have no end: the small one's is no token of any text."""
    config = pytest.importorskip("transformers.models.qwen3_asr").Qwen3ASRConfig()
    assert tiny.tiny_config(config).eos_token_id == tiny.VOCABULARY


def test_any_token_may_end_texts() -> None:
    """Guards small vocabularies: the random texts of a probe hold ends, at which `generate` would stop."""
    model = tiny_model("llama")
    model.generation_config.eos_token_id = list(range(2, 30))
    assert probing.examine(model, check_model(model)).verdict == "trees"


def test_what_cannot_be_built_small_is_probed_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards remote code: a class that fails with a small config is probed with short texts, and a note says so."""

    def failing(*_: Any, **__: Any) -> Any:
        raise TypeError("no such size")

    monkeypatch.setattr(probing, "tiny_model", failing)
    model = tiny_model("llama")
    outcome = probing.examine(model, check_model(model))
    assert outcome.verdict == "trees"
    assert "beyond its limits" in outcome.notes[0]


@pytest.mark.parametrize("release", ["before 5.4", "5.23"])
def test_a_release_that_decodes_the_class_wrongly_is_named(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards Phi-3 before transformers 5.4, and Phi-4-multimodal: beyond the limit no right text is there to equal."""

    def masked_as_one(self: Any, input_ids: Any, cache_position: Any = None) -> Any:
        return self.config.original_max_position_embeddings, input_ids, cache_position

    def last_token_alone(self: Any, input_ids: Any, **given: Any) -> Any:
        limit = self.config.original_max_position_embeddings
        return limit, GenerationMixin.prepare_inputs_for_generation(self, input_ids, **given)

    model = tiny_model("phi3", original_max_position_embeddings=14)
    prepare = masked_as_one if release == "before 5.4" else last_token_alone
    monkeypatch.setattr(type(model), "prepare_inputs_for_generation", prepare)
    outcome = probing.examine(model, check_model(model))
    assert outcome.verdict == "refused"
    assert "wrong in this release of transformers" in outcome.reason
    model.config.original_max_position_embeddings = model.config.max_position_embeddings  # as of Phi-3-mini-4k
    assert not misreads_at_limit(model)
