"""Messages as strict chat templates take them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from speculant.api.loading import load_tokenizer
from speculant.serving.errors import ApiError
from speculant.serving.template_forms import needs_text_arguments, render_any, template_text, with_text_arguments

FIRST_ONLY = "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}"
ALTERNATING = (
    "{% set ns = namespace(n=0) %}{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
EACH = "{% for m in messages %}OWN[{{ m.role }}:{{ m.content }}]{% endfor %}"
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": "é"}}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "A"},
    {"role": "system", "content": "B"},
    {"role": "user", "content": "C"},
    {"role": "system", "content": "D"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "E"},
    {"role": "user", "content": "F"},
]


def renderer(template: str) -> Callable[[list[dict[str, Any]]], str]:
    """Return a function that applies a template."""
    tokenizer = copy.copy(load_tokenizer())
    tokenizer.chat_template = template
    return lambda rows: str(tokenizer.apply_chat_template(rows, tokenize=False))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (EACH.replace("OWN", ""), "[system:A][system:B][user:C][system:D][assistant:][tool:E][user:F]"),
        (EACH.replace("OWN", FIRST_ONLY), "[system:A\n\nB][user:C\n\nD][assistant:][tool:E][user:F]"),
        (ALTERNATING + EACH.replace("OWN", ""), "[system:A\n\nB][user:C\n\nD][assistant:][tool:E\n\nF]"),
        (NO_SYSTEM + ALTERNATING + EACH.replace("OWN", ""), "[user:A\n\nB\n\nC\n\nD][assistant:][tool:E\n\nF]"),
        (NO_SYSTEM + EACH.replace("OWN", ""), "[user:A\n\nB\n\nC\n\nD][assistant:][tool:E\n\nF]"),
    ],
)
def test_roles(template: str, expected: str) -> None:
    """Guards agents' messages: what a template takes is left as it is, and only what it refuses becomes plainer."""
    assert render_any(renderer(template), TALK) == expected


def test_messages_that_no_form_helps() -> None:
    """Guards the error: the template's first one."""
    with pytest.raises(ApiError, match="messages: 7"):
        render_any(renderer("{{ raise_exception(messages | length | string) }}"), TALK)


def test_ids() -> None:
    """Guards conversations begun elsewhere: other ids become nine letters and digits, alike in calls and results."""
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('9') }}"
        "{% endif %}{{ c.id }}{% endfor %}{{ m.tool_call_id }}{% endfor %}"
    )
    called = {"role": "assistant", "content": "", "tool_calls": [CALL | {"id": "call_1234567890"}]}
    shown = render_any(renderer(template), [called, {"role": "tool", "content": "", "tool_call_id": "call_1234567890"}])
    assert shown[:9] == shown[9:]
    called["tool_calls"] = [CALL | {"id": "abcdef123"}]
    assert render_any(renderer(template), [called]) == "abcdef123"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("{{ c.function.arguments | tojson }}", False),
        ("{% for k, v in c.function.arguments.items() %}<p={{ k }}>{{ v }}{% endfor %}", False),
        ("{{ '<' + c.function.arguments + '>' }}", True),
        ("{{ c.function.arguments }}", True),
        ("{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}", False),
        ("{{ raise_exception('no calls') }}", False),
    ],
)
def test_arguments(shown: str, expected: bool) -> None:
    """Guards earlier calls: objects, or text for templates that put it into the prompt as it is (DeepSeek V3)."""
    template = "{% for m in messages %}{% for c in m.tool_calls or [] %}" + shown + "{% endfor %}{% endfor %}"
    assert needs_text_arguments(renderer(template)) == expected
    found = with_text_arguments(TALK)
    assert found[4]["tool_calls"][0]["function"]["arguments"] == '{"x": "é"}'
    assert found[:4] == TALK[:4]


def test_templates_by_name() -> None:
    """Guards tokenizers with several templates: all of them tell the formats of answers."""
    assert template_text({"default": "a", "tool_use": "b"}) == "a\nb"
    assert template_text(None) == ""
