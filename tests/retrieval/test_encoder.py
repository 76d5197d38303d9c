"""Vectors by sentence-transformers, from a tiny random model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from speculant.core.errors import ModelNotFoundError
from speculant.retrieval.dense import DenseRetriever
from speculant.retrieval.encoder import TextEncoder


def test_documents_and_queries_become_unit_vectors(tmp_path: Path) -> None:
    """Guards the way from a model's folder to a retriever, and folders that hold none."""
    pytest.importorskip("sentence_transformers")
    words = ["[UNK]", "[PAD]", "red", "kite", "boat", "lake"]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(tmp_path)
    config = BertConfig(vocab_size=6, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    BertModel(config).save_pretrained(tmp_path)
    encoder, documents = TextEncoder(str(tmp_path)), ["red kite", "boat lake", "lake"]
    retriever = DenseRetriever(documents, encoder.encode_queries, encode_documents=encoder.encode_documents)
    assert retriever.search([retriever.encode("boat lake")], 1).tolist() == [[1]]
    np.testing.assert_allclose(np.linalg.norm(retriever.encode("kite")), 1, rtol=1e-5)
    with pytest.raises(ModelNotFoundError, match="none"):
        TextEncoder(str(tmp_path / "none"))
