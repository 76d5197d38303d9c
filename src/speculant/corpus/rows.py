"""The rows of a corpus: what is learned from a JSON row, and which rows are conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

Document = str | list[int]
Message = dict[str, str]
T = TypeVar("T")

FORMS = (
    'a row is {"text"}, {"messages": [{"role", "content"}]}, {"prompt", "output"}, {"ids"} or {"prompt_ids", '
    '"output_ids"}'
)
PROMPTS = ("prompt", "instruction", "question")
OUTPUTS = ("output", "response", "completion", "answer")
SPEAKERS = {"human": "user", "gpt": "assistant"}  # in logs in ShareGPT's format
BATCH = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusRow:
    """The content learned from one row.

    Attributes:
        documents: texts and token ids, each learned separately.
        chat: the same as messages, for tokenizers with a chat template; None if it is not a conversation.
        place: position in the file after this row: lines, or entries of a list.
    """

    documents: list[Document]
    chat: list[Message] | None
    place: int


def read_row(row: Any, *, vocabulary: int, place: int) -> CorpusRow:
    """Return the content learned from a row.

    Raises:
        ValueError: nothing can be learned from it.
    """
    return CorpusRow(documents=parse_row(row, vocabulary), chat=parse_chat(row), place=place)


def parse_row(row: Any, vocabulary: int) -> list[Document]:
    """Return the documents of a row; each message is a separate one.

    Args:
        row: a row in one of the `FORMS`.
        vocabulary: upper bound of ids.

    Raises:
        ValueError: it has none.
    """
    documents: list[Document]
    match row:
        case {"text": str(text)}:
            documents = [text]
        case {"messages": [*messages]} | {"conversations": [*messages]}:
            documents = [content for _, content in map(_message, messages) if content is not None]
        case {"ids": [*ids]}:
            documents = [list(ids)]
        case {"prompt_ids": _} | {"output_ids": _}:
            parts = [row.get("prompt_ids", []), row.get("output_ids", [])]
            documents = [parts[0] + parts[1]] if all(isinstance(part, list) for part in parts) else []
        case {"content": str(text)}:
            documents = [text]
        case dict():
            documents = [text for text in _pair(row) or () if text]
        case _:
            documents = []
    if not documents:
        raise ValueError(FORMS)
    for document in documents:
        if isinstance(document, list) and not all(type(i) is int and 0 <= i < vocabulary for i in document):
            raise ValueError(f"token ids must be whole numbers from 0 to {vocabulary - 1}")
        if isinstance(document, str) and not is_text(document):
            raise ValueError("the text holds half of a surrogate pair")
    return documents


def parse_chat(row: Any) -> list[Message] | None:
    """Return the messages of a conversation's row; None for other rows."""
    match row:
        case {"text": str()}:
            return None
        case {"messages": [*messages]} | {"conversations": [*messages]}:
            parsed = list(map(_message, messages))
        case {"ids": _} | {"prompt_ids": _} | {"output_ids": _} | {"content": str()}:
            return None
        case dict():
            prompt, output = _pair(row) or ("", "")
            parsed = [("user", prompt), ("assistant", output)] if prompt and output else []
        case _:
            return None
    chat = [{"role": role, "content": content} for role, content in parsed if role is not None and content is not None]
    return chat if chat and len(chat) == len(parsed) else None


def batches(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Group items into batches of about a megabyte; `size` returns the size of an item."""
    batch: list[T] = []
    taken = 0
    for item in items:
        batch.append(item)
        taken += size(item)
        if taken >= BATCH:
            yield batch
            batch, taken = [], 0
    if batch:
        yield batch


def _message(message: Any) -> tuple[str | None, str | None]:
    """Return role and text of a message; None for missing ones."""
    match message:
        case {"content": str(text)} | {"value": str(text)}:
            pass
        case {"content": [*parts]} if parts and all(
            isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts
        ):
            text = "".join(part["text"] for part in parts)
        case _:
            return None, None
    role = message.get("role", message.get("from"))
    return (SPEAKERS.get(role, role) if isinstance(role, str) else None), text


def _pair(row: dict[str, Any]) -> tuple[str, str] | None:
    """Return prompt and output of a dataset row; None if one is missing."""
    prompt = next((row[name] for name in PROMPTS if isinstance(row.get(name), str)), None)
    output = next((row[name] for name in OUTPUTS if isinstance(row.get(name), str)), None)
    if prompt is None or output is None:
        return None
    more = row.get("input") if "instruction" in row else None  # Alpaca's format
    return (f"{prompt}\n\n{more}" if isinstance(more, str) and more else prompt), output


def is_text(text: str) -> bool:
    """Return whether a string can be encoded; non-text bytes arrive as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
