"""The table of parameters: complete, and the same in code and documentation."""

from __future__ import annotations

from pathlib import Path
from typing import get_type_hints

import pytest

pytest.importorskip("fastapi")

from speculant.serving.parameters import CHAT, COMPLETIONS, PARAMETERS, check_supported, parameter_table
from speculant.serving.schemas import ChatRequest, CompletionRequest

DOCS = Path(__file__).parents[2] / "docs" / "server-api.md"


@pytest.mark.parametrize(("endpoint", "schema"), [(CHAT, ChatRequest), (COMPLETIONS, CompletionRequest)])
def test_every_field_is_in_the_table(endpoint: str, schema: type[ChatRequest]) -> None:
    """Guards against parameters of OpenAI's client that would be ignored: each is a field, and in the table."""
    pytest.importorskip("openai")
    from openai.types import completion_create_params
    from openai.types.chat import completion_create_params as chat_create_params

    params = chat_create_params if endpoint == CHAT else completion_create_params
    theirs = {*get_type_hints(params.CompletionCreateParamsBase), "stream"}
    ours = {each.name for each in PARAMETERS if endpoint in each.endpoints}
    assert theirs <= ours
    assert ours == set(schema.model_fields)


def test_refused_parameters_are_refused() -> None:
    """Guards the check: every parameter that is refused raises, but for null and neutral values."""
    for each in PARAMETERS:
        if each.supported or each.harmless:
            continue
        for endpoint in each.endpoints:
            for value in (None, *each.neutral):
                check_supported(endpoint, {each.name: value})
            with pytest.raises(Exception, match=each.name):
                check_supported(endpoint, {each.name: "something"})


def test_documentation_has_the_table() -> None:
    """Guards docs/server-api.md: its table is what `speculant serve --parameters` prints."""
    assert parameter_table() in DOCS.read_text(encoding="utf-8")
