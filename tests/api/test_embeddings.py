"""Embeddings: those of the model's own hidden states, however texts share passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from models import hybrid_model, tiny_model
from speculant import Speculator
from speculant.api.embeddings import EmbeddedText, Embedder, Pooling, shorten
from speculant.core.errors import UnsupportedError, UsageError

IDS = [[5, 6, 7], [9], list(range(40)), [8, 8, 1, 2], [7 * place % 50 for place in range(87)]]


def made(family: str = "llama", **options: Any) -> tuple[Any, Any]:
    """Return a tiny model and its engine."""
    model = hybrid_model() if family == "hybrid" else tiny_model(family)
    return model, Speculator.from_transformers(model, method="none", **options).engine


def own(model: Any, ids: list[int], pooling: Pooling) -> torch.Tensor:
    """Return the model's own embedding of a text."""
    with torch.no_grad():
        states = model.base_model(torch.tensor([ids])).last_hidden_state[0]
    pooled = states.mean(0) if pooling == "mean" else states[-1]
    return torch.nn.functional.normalize(pooled, dim=0)


def read(embedder: Embedder, texts: list[EmbeddedText]) -> list[EmbeddedText]:
    """Read texts; return them in the order in which they were read."""
    embedder.add(texts)
    order = list[EmbeddedText]()
    while len(embedder):
        order += embedder.step()
    return order


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize(
    ("family", "fast"), [("llama", False), ("llama", True), ("gpt2", False), ("gemma3", False), ("hybrid", False)]
)
def test_embeddings_are_those_of_the_model(family: str, fast: bool, pooling: Pooling) -> None:
    """Guards final norm, pooling, shared passes and chunks, against the model's own last hidden state."""
    model, engine = made(family, fast=fast)
    texts = [EmbeddedText(ids, pooling) for ids in IDS]
    read(Embedder(engine, chunk=16), texts)
    for text, ids in zip(texts, IDS, strict=True):
        assert text.error is None
        assert text.vector is not None
        torch.testing.assert_close(text.vector, own(model, ids, pooling), atol=2e-5, rtol=1e-4)
        assert text.cache is None


def test_many_texts_do_not_hold_up_a_few() -> None:
    """Guards turns: texts that come later take turns with those that wait, as if they had come first."""
    _, engine = made()
    embedder = Embedder(engine, chunk=4)
    many = [EmbeddedText([1, 2, 3, 4], "mean") for _ in range(8)]
    embedder.add(many)
    order = [*embedder.step(), *embedder.step()]
    late = [EmbeddedText([5, 6, 7, 8], "mean") for _ in range(2)]
    order += read(embedder, late)
    assert [order.index(text) for text in late] == [2, 4]
    assert [text for text in order if text not in late] == many


def test_a_text_that_fails_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the others of a pass; what is cached of a failed text is freed."""
    model, engine = made()
    prefill = type(engine).prefill

    def failing(self: Any, batch: Any, needs: Any) -> Any:
        if any(cache.unread == 1 for cache, _ in batch):
            raise ZeroDivisionError("a fault")
        return prefill(self, batch, needs)

    monkeypatch.setattr(type(engine), "prefill", failing)
    texts = [EmbeddedText(ids, "mean") for ids in IDS[:2] + IDS[3:4]]
    read(Embedder(engine, chunk=64), texts)
    assert [type(text.error) for text in texts] == [type(None), ZeroDivisionError, type(None)]
    assert all(text.cache is None for text in texts)
    assert texts[2].vector is not None
    torch.testing.assert_close(texts[2].vector, own(model, IDS[3], "mean"), atol=2e-5, rtol=1e-4)


def test_a_long_text_that_fails_late_ends() -> None:
    """Guards the thread that reads from texts that fail behind their first chunk: they are not begun for ever."""
    _, engine = made()
    text = EmbeddedText([*range(40), 10_000_000], "mean")
    assert read(Embedder(engine, chunk=16), [text]) == [text]
    assert isinstance(text.error, Exception)
    assert text.cache is None


def test_removed_texts_are_not_read() -> None:
    """Guards requests whose client has gone, in the middle of a text too."""
    _, engine = made()
    embedder = Embedder(engine, chunk=16)
    texts = [EmbeddedText(IDS[4], "mean"), EmbeddedText(IDS[0], "mean")]
    embedder.add(texts)
    assert embedder.step() == []
    embedder.remove(texts[:1])
    assert embedder.step() == texts[1:]
    assert texts[0].cache is None
    assert len(embedder) == 0


def test_what_cannot_be_embedded_is_refused() -> None:
    """Guards engines without hidden states, and empty texts."""
    _, engine = made()
    with pytest.raises(UsageError, match="empty"):
        Embedder(engine).add([EmbeddedText([], "mean")])
    engine._runner.capabilities = replace(engine.capabilities, hidden_layers=0)
    with pytest.raises(UnsupportedError, match="no hidden states"):
        Embedder(engine)


def test_shorter_vectors_have_length_one() -> None:
    """Guards `dimensions`."""
    found = shorten(torch.tensor([3.0, 4.0, 12.0]), 2)
    torch.testing.assert_close(found, torch.tensor([0.6, 0.8]))
