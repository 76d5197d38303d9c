"""Messages as a chat template reads them: rows with the text, reasoning and tool calls of each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from speculant.serving.errors import ApiError
from speculant.serving.schemas import Message, TextPart

THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # names that templates use for an answer's reasoning


def check_text(text: str, *, param: str) -> None:
    """Check that a text can be encoded; JSON may contain lone surrogates, which cannot.

    Raises:
        ApiError: it cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"'{param}' is not text: it holds half of a surrogate pair."
        raise ApiError(400, message, param=param, code="invalid_value") from error


def join_content(content: str | Sequence[TextPart] | None, *, param: str) -> str:
    """Return the text of a message's content.

    Raises:
        ApiError: a part of it is not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type != "text" or part.text is None:
            raise ApiError(
                400,
                f"content of type '{part.type[:40]}' is not supported: this model reads text.",
                param=param,
                code="unsupported_content",
            )
    return "".join(part.text or "" for part in content)


def template_row(message: Message, place: int, read: Iterator[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Convert a message for the chat template; with media (`read`, in order), its content is a list of parts."""
    param = f"messages.{place}.content"
    content: Any
    if read is None or not isinstance(message.content, list):
        content = join_content(message.content, param=param)
    else:
        content = [
            {"type": "text", "text": join_content([part], param=param)} if part.type == "text" else next(read)
            for part in message.content
        ]
    row: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": content}
    if thought := message.reasoning_content or message.reasoning:
        row |= dict.fromkeys(THOUGHTS, thought)
    if message.name is not None:
        row["name"] = message.name
    if message.tool_call_id is not None:
        row["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        row["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments, place)},
            }
            for call in message.tool_calls
        ]
    return row


def _arguments(text: str, place: int) -> Any:
    try:
        return json.loads(text)  # templates convert them to JSON themselves
    except (ValueError, RecursionError) as error:
        param = f"messages.{place}.tool_calls"
        raise ApiError(400, "arguments of a tool call are not JSON.", param=param, code="invalid_value") from error
