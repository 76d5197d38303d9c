"""Heads of encoder-decoders: trained on pairs, their drafts are accepted, and the text is that of `generate`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

from encoder_decoders import SOURCE, build_encoder_decoder
from heads import random_head
from models import tiny_model
from speculant import Speculator
from speculant.api.heads import open_head
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.kinds import HEAD_KINDS
from speculant.engines.hf.prompt import slices_by_length
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.training.answering import answer_sources
from speculant.training.continuing import TokenPrompt
from speculant.training.reading import TrainData
from trainings import tiny_training

pytestmark = pytest.mark.skipif(not slices_by_length(), reason="this release prepares such passes otherwise")
SOURCES = [SOURCE[0].tolist(), SOURCE[0, :6].tolist(), SOURCE[0, 3:].tolist()]
LENGTH = 16
FURTHER = ("medusa", "hydra++", "mlp", "eagle", "eagle3", "p-eagle", "dflash")
PAIRS = [
    ("t5", "specdec"),
    ("bart", "blockwise"),
    *(pytest.param(*pair, marks=pytest.mark.slow) for pair in (("t5", "blockwise"), ("bart", "specdec"))),
    *(pytest.param("t5" if place % 2 else "bart", kind, marks=pytest.mark.slow) for place, kind in enumerate(FURTHER)),
]


@cache
def trained(name: str, kind: str) -> tuple[Any, Path, dict[str, Any]]:
    """Return a tiny model, the folder of a head that has learned its answers to some sources, and its figures."""
    model, out = build_encoder_decoder(name), Path(mkdtemp()) / "head"
    prompts = [TokenPrompt(source, temperature) for source in SOURCES for temperature in (0.0, 0.0, 1.0)]
    texts = answer_sources(model, prompts, new_tokens=LENGTH + 4, seed=[1])
    options = {"files": {"options": {"encoder": 1}}} if kind == "specdec" else {}
    record = tiny_training(
        out,
        kind=kind,
        model=model,
        data=TrainData(texts, ("answers",), ()),
        steps=40,
        depth=3,
        lr=1e-2,
        loss="ce",
        texts=8,
        anchors=16,
        held_out=1,
        evaluate_every=20,
        **options,
    )
    assert record is not None
    return model, out, record


def _generate(model: Any, source: list[int], **options: Any) -> list[int]:
    torch.manual_seed(1)
    settings: dict[str, Any] = {"max_new_tokens": LENGTH, "do_sample": False} | options
    ids: list[int] = model.generate(torch.tensor([source]), **settings)[0, 1:].tolist()
    return ids


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_texts_are_those_of_generate(name: str, kind: str) -> None:
    """Guards chains and trees, greedy and sampled, alone and in a batch; the head has learned, and drafts are right."""
    model, folder, record = trained(name, kind)
    losses = [sum(entry["losses"]) for entry in record["history"][1:]]
    assert losses[-1] < losses[0]
    method = "eagle2" if kind == "eagle" else "hydra" if kind == "hydra++" else kind
    expected, sampled = [_generate(model, source) for source in SOURCES], {"do_sample": True, "top_k": 0}
    drawn = _generate(model, SOURCES[1], **sampled)
    for tree in ("chain", "dynamic"):
        speculator = Speculator.from_transformers(
            model, head=str(folder), method=method, nodes=5, fast=False, settings={"tree": tree}
        )
        assert _generate(model, SOURCES[0], custom_generate=speculator) == expected[0]
        assert [
            each.ids for each in speculator.generate_batch(SOURCES, max_new_tokens=LENGTH, temperature=0)
        ] == expected
        assert speculator.last_stats is not None
        assert speculator.last_stats.mat > 1.3
        assert _generate(model, SOURCES[1], custom_generate=speculator, **sampled) == drawn


def test_heads_unite_with_memories() -> None:
    """Guards `mix-head`: the memory copies from the source, the head reads its states."""
    model, folder, _ = trained("t5", "specdec")
    speculator = Speculator.from_transformers(model, head=str(folder), nodes=5, fast=False)
    for source in SOURCES:
        assert speculator.generate(source, max_new_tokens=LENGTH, temperature=0).ids == _generate(model, source)
    assert speculator.method == "mix-head"


def test_drafts_end_at_the_decoder_s_last_position() -> None:
    """Guards tables of positions: they bound the decoder's text, however long the source is."""
    torch.manual_seed(4)
    model = build_encoder_decoder("bart", max_position_embeddings=20)
    speculator = Speculator.from_transformers(
        model, head=random_head(model, "medusa"), method="medusa", nodes=5, fast=False
    )
    source = torch.randint(5, 120, (20,)).tolist()
    assert speculator.generate(source, max_new_tokens=19, temperature=0).ids == _generate(
        model, source, max_new_tokens=19
    )


def test_heads_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Guards messages: a head of another target, one for a target without an encoder, and kinds that cannot draft."""
    _, folder, _ = trained("t5", "specdec")
    with pytest.raises(UnsupportedError, match=r"reads encoder states of size 32, .* has no encoder states"):
        open_head(folder, tiny_model("llama", vocab_size=128))
    tiny_training(tmp_path / "head", kind="specdec", model=tiny_model("llama", vocab_size=128), steps=1)
    with pytest.raises(UnsupportedError, match=r"reads no encoder states, .* has encoder states of size 32"):
        open_head(tmp_path / "head", build_encoder_decoder("t5"))
    with pytest.raises(UnsupportedError, match="vocabulary of 128 tokens, but the target's has 90"):
        open_head(folder, build_encoder_decoder("t5", vocab_size=90))
    with pytest.raises(UnsupportedError, match="cannot learn online"):
        Speculator.from_transformers(trained("t5", "specdec")[0], head=str(folder), method="specdec", online=True)
    tiny_training(tmp_path / "exit", kind="exit", model=tiny_model("llama", vocab_size=128), steps=1)
    with pytest.raises(UnsupportedError, match=r"an encoder-decoder, for which heads of kind exit .* first layers"):
        open_head(tmp_path / "exit", build_encoder_decoder("bart"))


def test_a_state_is_opened_with_the_source() -> None:
    """Guards SpecDec's head for an encoder-decoder: without the encoder's states it does not draft blindly."""
    model, folder, _ = trained("t5", "specdec")
    loaded: Any = open_head(folder, model)
    with pytest.raises(UnsupportedError, match="not given them"):
        loaded.head.open_text([0], HFTargetParts(model), None)


def test_kinds_say_why_they_need_a_decoder_only_target() -> None:
    """Guards the table: kinds that draft for encoder-decoders are those tested above."""
    able = {kind.name for kind in HEAD_KINDS if not kind.decoder_only}
    assert able == {"blockwise", "specdec", "hydra", *FURTHER}
