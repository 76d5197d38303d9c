"""The fingerprint tells tokenizers apart, and nothing else."""

from __future__ import annotations

from speculant.memory.fingerprint import tokenizer_fingerprint


class Words:
    """A tokenizer as far as its vocabulary goes."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self.vocabulary = vocabulary

    def get_vocab(self) -> dict[str, int]:
        return self.vocabulary


def test_same_vocabulary_same_fingerprint() -> None:
    """The order in which a tokenizer lists its tokens, and the padding of the model's ids, do not matter."""
    first = tokenizer_fingerprint(Words({"a": 0, "b": 1}), 2)
    assert first == tokenizer_fingerprint(Words({"b": 1, "a": 0}), 64)
    assert len(first) == 24


def test_other_vocabularies_other_fingerprints() -> None:
    """Swapped ids, another token, one more token: each is another tokenizer. Lone surrogates are no obstacle."""
    kinds = [{"a": 0, "b": 1}, {"a": 1, "b": 0}, {"a": 0, "c": 1}, {"a": 0, "b": 1, "c": 2}, {"a": 0, "\ud800": 1}]
    assert len({tokenizer_fingerprint(Words(kind), 2) for kind in kinds}) == len(kinds)


def test_without_a_tokenizer_the_number_of_ids_counts() -> None:
    """Bare token ids are tied to how many there are."""
    assert tokenizer_fingerprint(None, 50) != tokenizer_fingerprint(None, 51)
