"""Texts excluded from a corpus, with everything that shares an n-gram of tokens with them (`--exclude`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from speculant.corpus.documents import read_values
from speculant.corpus.rows import batches, is_text
from speculant.memory.ngrams import NgramSet

ID_NAMES = ("ids", "prompt_ids", "output_ids")


class Exclusions:
    """The n-grams of excluded texts, in tokens of one tokenizer.

    Ids are split at special tokens, which templates put between messages, and n-grams of the template itself are
    ignored: all conversations of a model share them.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Start without texts."""
        self._tokenizer, self._ngrams = tokenizer, NgramSet()
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = {i for i, token in added.items() if token.special} | set(tokenizer.all_special_ids)

    @property
    def length(self) -> int:
        """The number of tokens per n-gram."""
        return self._ngrams.length

    def __len__(self) -> int:
        return len(self._ngrams)

    def add(self, documents: Sequence[str | list[int]]) -> None:
        """Add texts and documents of token ids."""
        texts = [document for document in documents if isinstance(document, str)]
        encoded = self._tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
        for ids in [*encoded, *(document for document in documents if not isinstance(document, str))]:
            for part in self._parts(ids):
                self._ngrams.add(part)

    def share(self, ids: Sequence[int]) -> bool:
        """Return whether a document of ids has an n-gram of an excluded text."""
        return any(map(self._ngrams.shares, self._parts(ids)))

    def drop_template(self) -> None:
        """Drop the n-grams of the tokenizer's chat template itself."""
        if not getattr(self._tokenizer, "chat_template", None):
            return
        try:
            chat = [{"role": "user", "content": ""}]
            text = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        except Exception:  # a template that rejects empty messages; its words are then compared
            return
        for part in self._parts(self._tokenizer(text, add_special_tokens=False)["input_ids"]):
            self._ngrams.remove(part)

    def _parts(self, ids: Sequence[int]) -> list[list[int]]:
        parts: list[list[int]] = [[]]
        for token in ids:
            if token in self._special:
                parts.append([])
            else:
                parts[-1].append(token)
        return parts


def read_exclusions(
    paths: Sequence[Path], tokenizer: Any, *, advance: Callable[[int], object], reject: Callable[[str], object]
) -> Exclusions:
    """Read exclusions from files: text, or rows of any form, using every string and the token ids.

    Args:
        paths: paths of the files.
        tokenizer: tokenizer of the corpus; ids in rows are assumed to be its own, as in recordings of its model.
        advance: called with the number of bytes read.
        reject: called with the reason for what cannot be read.

    Raises:
        FileError: a file cannot be read.
    """
    found = Exclusions(tokenizer)
    for path in paths:
        rows = read_values(path, advance=advance, reject=reject)
        documents = (document for _, row in rows for document in texts_of(row))
        for batch in batches(documents, len):
            found.add(batch)
    found.drop_template()
    return found


def texts_of(value: Any) -> Iterator[str | list[int]]:
    """Yield every string in a JSON value, and the token ids of rows that have them."""
    match value:
        case str() if is_text(value):
            yield value
        case [*entries]:
            for entry in entries:
                yield from texts_of(entry)
        case dict():
            named = (value.get(name) for name in ID_NAMES)
            ids = [i for part in named if isinstance(part, list) for i in part if type(i) is int and 0 <= i < 1 << 31]
            if ids:
                yield ids
            for entry in value.values():
                yield from texts_of(entry)
