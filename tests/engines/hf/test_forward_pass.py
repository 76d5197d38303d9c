"""The runner of passes: where its model lies."""

from __future__ import annotations

import torch
from torch import nn

from models import tiny_model
from speculant.engines.hf.engine import HFEngine


def test_the_device_is_that_of_the_current_weights() -> None:
    """Guards models whose embeddings are replaced and which are moved: ids must go where the weights are."""
    model = tiny_model("llama")
    engine = HFEngine(model)
    engine.probe()
    old = model.get_input_embeddings()
    model.set_input_embeddings(nn.Embedding(old.num_embeddings, old.embedding_dim))
    engine.probe()
    model.to("meta")
    assert engine._runner.device == torch.device("meta")
