"""Tokenises logs of text as a server would have seen them: the prompt as it was sent, then the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Ids = list[int]


def message_text(message: dict[str, Any]) -> str:
    """Return the text of a chat message, whose content is a string or a list of parts.

    Raises:
        ValueError: it has content that is not text.
    """
    match message.get("content"):
        case str(text):
            return text
        case [*parts] if all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
            return "".join(part["text"] for part in parts)
        case _:
            raise ValueError("a message holds something that is not text")


def encode_answer(tokenizer: Any, prompt: str, answer: str, *, special: bool = True) -> tuple[Ids, Ids]:
    """Return the ids of a prompt and of the answer that follows it.

    Both are tokenised together, so that the answer keeps its spaces. If a token would span the boundary, they are
    tokenised separately, as when the answer was generated.

    Raises:
        ValueError: the text contains an unpaired surrogate.
    """
    before: Ids = tokenizer(prompt, add_special_tokens=special)["input_ids"]
    # A token that the tokenizer appends to a text, such as an end token, belongs to neither of them.
    bare: Ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    both: Ids = tokenizer(prompt + answer, add_special_tokens=False)["input_ids"]
    if both[: len(bare)] == bare:
        return before, both[len(bare) :]
    return before, tokenizer(answer, add_special_tokens=False)["input_ids"]


def encode_chat(tokenizer: Any, messages: Sequence[dict[str, Any]], answer: str) -> tuple[Ids, Ids]:
    """Return the ids of a conversation and of the answer to it.

    The tokenizer's chat template is applied; without one, the messages are joined by blank lines.

    Raises:
        ValueError: the template rejects the messages, or they have content that is not text.
    """
    plain = [{**message, "content": message_text(message)} for message in messages]
    if not getattr(tokenizer, "chat_template", None):
        return encode_answer(tokenizer, "\n\n".join(message["content"] for message in plain) + "\n\n", answer)
    try:
        text: str = tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates may raise anything
        raise ValueError(f"the chat template refuses the messages: {error}") from error
    has_bos = tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)
    return encode_answer(tokenizer, text, answer, special=not has_bos)
