"""Forms of messages for chat templates that do not take every sequence of roles, or arguments as objects.

Agents send several system messages, also between others, and user messages after a tool's result. Templates that refuse
this get a plainer form of the same messages: the first that they take.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from speculant.core.errors import SpeculantError
from speculant.serving.errors import ApiError
from speculant.serving.template_rows import THOUGHTS

Row = dict[str, Any]
GAP = "\n\n"  # between texts that become one
_SHORT_ID = re.compile("[A-Za-z0-9]{9}")
_PROBE = {"probe_name": "probe_value"}


def template_text(template: Any) -> str:
    """Return the text of a tokenizer's chat template, which may be several by name; "" if there is none."""
    if isinstance(template, Mapping):
        return "\n".join(str(each) for each in template.values())
    return template if isinstance(template, str) else ""


def render_any(render: Callable[[list[Row]], str], rows: list[Row]) -> str:
    """Return the text of messages, or of the first of their plainer forms that a template takes.

    Args:
        render: applies the template; it may raise errors.
        rows: the messages.

    Raises:
        ApiError: the template takes none of the forms.
    """
    refusal: Exception | None = None
    for form in itertools.chain([rows], plainer_forms(rows)):
        try:
            return render(form)
        except SpeculantError:
            raise
        except Exception as error:  # templates raise errors of their own
            refusal = refusal or error
    message = f"the model's chat template does not take these messages: {refusal}"
    raise ApiError(400, message, param="messages", code="invalid_value") from refusal


def plainer_forms(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield forms of messages that more and more templates take, each only if it differs from the one before.

    1. Calls are without reasoning if they have text, as GPT-OSS's template needs it.
    2. Ids of calls have nine letters and digits, as Mistral's templates need it.
    3. System messages at the beginning are one, later ones the user's; consecutive user messages are one.
    4. User messages after a tool's result are part of it.
    5. The system message is part of the first user message.
    """
    before = list(rows)
    for step in (_without_thoughts, _with_short_ids, _alternating, _after_results, _without_system):
        found = step(before)
        if found != before:
            yield found
        before = found


def needs_text_arguments(render: Callable[[list[Row]], str]) -> bool:
    """Return whether a template needs the arguments of calls as JSON text rather than as objects.

    Args:
        render: applies the template; it may raise errors.
    """

    def render_call(arguments: Any) -> str:
        function = {"name": "probe", "arguments": arguments}
        calls = [{"id": "probe0000", "type": "function", "function": function}]
        user = {"role": "user", "content": "Hi"}
        try:
            return render([user, {"role": "assistant", "content": "", "tool_calls": calls}])
        except Exception:  # templates raise errors of their own
            return ""

    objects, [name] = render_call(_PROBE), _PROBE
    if name in objects and f"'{name}'" not in objects:  # Python's quotes are those of an object made text by mistake
        return False
    return json.dumps(_PROBE) in render_call(json.dumps(_PROBE))


def with_text_arguments(rows: Sequence[Row]) -> list[Row]:
    """Return messages whose calls have their arguments as JSON text."""

    def convert_call(call: Row) -> Row:
        function = call["function"]
        return call | {"function": function | {"arguments": json.dumps(function["arguments"], ensure_ascii=False)}}

    return [
        row | {"tool_calls": [*map(convert_call, row["tool_calls"])]} if "tool_calls" in row else row for row in rows
    ]


def _without_thoughts(rows: list[Row]) -> list[Row]:
    return [
        {name: value for name, value in row.items() if name not in THOUGHTS}
        if row.get("tool_calls") and row["content"]
        else row
        for row in rows
    ]


def _with_short_ids(rows: list[Row]) -> list[Row]:
    def short(row: Row, name: str) -> Row:
        given = row.get(name)
        if not isinstance(given, str) or _SHORT_ID.fullmatch(given):
            return row
        return row | {name: hashlib.sha256(given.encode()).hexdigest()[:9]}

    return [
        short(row, "tool_call_id")
        | ({"tool_calls": [short(call, "id") for call in row["tool_calls"]]} if "tool_calls" in row else {})
        for row in rows
    ]


def _alternating(rows: list[Row]) -> list[Row]:
    found = list[Row]()
    for row in rows:
        if row["role"] == "system" and any(each["role"] != "system" for each in found):
            row = row | {"role": "user"}
        if found and found[-1]["role"] == row["role"] in ("system", "user") and _are_texts(found[-1], row):
            found[-1] = _join_messages(found[-1], row)
        else:
            found.append(row)
    return found


def _after_results(rows: list[Row]) -> list[Row]:
    found = list[Row]()
    for row in rows:
        if found and found[-1]["role"] == "tool" and row["role"] == "user" and _are_texts(found[-1], row):
            found[-1] = _join_messages(found[-1], row)
        else:
            found.append(row)
    return found


def _without_system(rows: list[Row]) -> list[Row]:
    if not rows or rows[0]["role"] != "system":
        return rows
    if len(rows) > 1 and rows[1]["role"] == "user" and _are_texts(*rows[:2]):
        return [_join_messages(rows[0], rows[1]) | {"role": "user"}, *rows[2:]]
    return [rows[0] | {"role": "user"}, *rows[1:]]


def _are_texts(*rows: Row) -> bool:
    return all(isinstance(row["content"], str) for row in rows)


def _join_messages(row: Row, other: Row) -> Row:
    """Return a message with another one's text after its own."""
    return row | {"content": GAP.join(text for text in (row["content"], other["content"]) if text)}
