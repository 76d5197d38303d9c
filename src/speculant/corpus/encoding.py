"""Encodes the rows of a corpus: conversations by the chat template, skipping rows with excluded texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from speculant.core.errors import TokenizerError, UnsupportedError
from speculant.corpus.exclusions import Exclusions
from speculant.corpus.rows import CorpusRow, Message

Ids = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRow:
    """The ids of a row's documents, and whether it is skipped because it shares an n-gram with an excluded text."""

    documents: list[Ids]
    excluded: bool


class RowEncoder:
    """Encodes rows.

    Attributes:
        refused: number of conversations that the chat template rejected; their messages became separate documents.
    """

    def __init__(self, tokenizer: Any, *, vocabulary: int, exclusions: Exclusions | None = None) -> None:
        """Take the parameters of the encoding.

        Args:
            tokenizer: a tokenizer, with or without a chat template.
            vocabulary: upper bound of ids.
            exclusions: texts with which no row may share an n-gram; None for none.

        Raises:
            UnsupportedError: chat templates cannot be rendered here.
        """
        self.refused = 0
        self._tokenizer, self._vocabulary, self._exclusions = tokenizer, vocabulary, exclusions
        self._templated = bool(getattr(tokenizer, "chat_template", None))
        if self._templated:
            check_templates(tokenizer)

    def encode(self, rows: Sequence[CorpusRow]) -> list[EncodedRow]:
        """Return the ids of rows.

        With exclusions, the contents of messages are compared, without the template's own words.

        Raises:
            TokenizerError: the tokenizer returns ids beyond the vocabulary.
        """
        chats = [self._render_chat(row.chat) for row in rows]
        needed = [row for row, chat in zip(rows, chats, strict=True) if chat is None or self._exclusions is not None]
        texts = [document for row in needed for document in row.documents if isinstance(document, str)]
        contents, rendered = iter(self._ids(texts)), iter(self._chat_ids([chat for chat in chats if chat is not None]))
        found = []
        for row, chat in zip(rows, chats, strict=True):
            if chat is not None and self._exclusions is None:
                found.append(EncodedRow(documents=[next(rendered)], excluded=False))
                continue
            parts = [next(contents) if isinstance(document, str) else document for document in row.documents]
            learned = parts if chat is None else [next(rendered)]
            excluded = self._exclusions is not None and any(map(self._exclusions.share, parts))
            found.append(EncodedRow(documents=learned, excluded=excluded))
        return found

    def _render_chat(self, chat: Sequence[Message] | None) -> str | None:
        if chat is None or not self._templated:
            return None
        try:
            return str(self._tokenizer.apply_chat_template(list(chat), tokenize=False))
        except Exception:  # templates may raise anything for unknown roles or another order of roles
            self.refused += 1
            return None

    def _chat_ids(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of rendered conversations, each with one begin token: most templates write it themselves."""
        start = self._tokenizer.bos_token
        begun = [start is not None and text.startswith(start) for text in texts]
        with_start = iter(self._ids([text for text, is_begun in zip(texts, begun, strict=True) if not is_begun]))
        without = [text for text, is_begun in zip(texts, begun, strict=True) if is_begun]
        as_they_are = iter(self._ids(without, special=False))
        return [next(as_they_are if is_begun else with_start) for is_begun in begun]

    def _ids(self, texts: Sequence[str], *, special: bool = True) -> list[Ids]:
        if not texts:
            return []
        found: list[Ids] = self._tokenizer(list(texts), add_special_tokens=special)["input_ids"]
        highest = max((max(ids) for ids in found if ids), default=0)
        if highest >= self._vocabulary:
            raise TokenizerError(
                f"the tokenizer returns the id {highest}, the model has {self._vocabulary}: it is another model's "
                "tokenizer. Name the model's own folder."
            )
        return found


def check_templates(tokenizer: Any) -> None:
    """Check that chat templates can be rendered.

    Raises:
        UnsupportedError: a required package is missing.
    """
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False)
    except ImportError as error:
        raise UnsupportedError(f"the tokenizer's chat template needs the package jinja2: {error}") from error
    except Exception:
        return  # a template may reject this conversation and accept others
