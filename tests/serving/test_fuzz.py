"""The server against its own OpenAPI schema: whatever is sent, the answer is one that the schema names.

Run by `make test-fuzz`, which installs schemathesis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from servers import serving
from speculant.serving.parameters import PARAMETERS

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")
positive_data_acceptance, negative_data_rejection = checks.positive_data_acceptance, checks.negative_data_rejection

pytestmark = [pytest.mark.fuzz, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
PHASES = (Phase.explicit, Phase.generate)  # requests are independent, and the first failure is enough
OPERATIONS = [
    ("POST", "/v1/chat/completions", 250),
    ("POST", "/v1/completions", 250),
    ("POST", "/v1/responses", 150),
    ("GET", "/v1/responses/{name}", 20),
    ("DELETE", "/v1/responses/{name}", 20),
    ("POST", "/v1/responses/{name}/cancel", 20),
    ("GET", "/v1/responses/{name}/input_items", 20),
    ("POST", "/v1/messages", 150),
    ("POST", "/v1/messages/count_tokens", 100),
    ("POST", "/v1/embeddings", 100),
    ("POST", "/v1/audio/transcriptions", 30),
    ("POST", "/v1/audio/translations", 30),
    ("POST", "/tokenize", 150),
    ("POST", "/detokenize", 150),
    ("GET", "/v1/models", 5),
    ("GET", "/v1/models/{name}", 50),
    ("GET", "/health", 5),
    ("GET", "/ready", 5),
    ("GET", "/version", 5),
    ("GET", "/metrics", 5),
    ("GET", "/props", 5),
    ("GET", "/slots", 20),
]
WITH_BODY = [each for each in OPERATIONS if each[0] == "POST" and "{" not in each[1]]
REFUSED = {each.name for each in PARAMETERS if not each.supported} | {"tools", "tool_choice", "parallel_tool_calls"}


@pytest.fixture(scope="module")
def schema(model: Any, tokenizer: Any) -> Iterator[Any]:
    """Return the schema that a running server gives of itself; its texts are short."""
    with serving(model, tokenizer, max_new_tokens=8, max_choices=3) as (_, address):
        yield schemathesis.openapi.from_url(f"{address}/openapi.json")


@pytest.mark.parametrize(("method", "path", "examples"), OPERATIONS)
def test_good_requests(schema: Any, method: str, path: str, examples: int) -> None:
    """Guards every endpoint with what its schema allows: no fault, and only answers that are described.

    Parameters that are refused by name stand in the schema too, so that 400 is a right answer; most are left out here.
    """
    tried = {"requests": 0, "served": 0}

    def usable(case: Any) -> Any:
        body = case.body
        if isinstance(body, dict) and tried["requests"] % 8:  # now and then as it was generated
            case.body = body = {name: value for name, value in body.items() if name not in {*REFUSED, "model"}}
            for name in ("max_tokens", "max_completion_tokens", "n"):
                if isinstance(body.get(name), int | float):
                    body[name] = 1 + int(body[name]) % 3
        return case

    def answered(case: Any) -> None:
        tried["requests"] += 1
        answer = case.call(timeout=60)
        assert answer.status_code < 500, answer.text
        case.validate_response(answer, excluded_checks=[positive_data_acceptance])
        tried["served"] += answer.status_code == 200

    attempt(schema[path][method].as_strategy().map(usable), answered, examples)
    assert tried["served"] or "{name}" in path or "/audio/" in path  # this model does not hear


@pytest.mark.parametrize(("method", "path", "examples"), WITH_BODY)
def test_bad_requests(schema: Any, method: str, path: str, examples: int) -> None:
    """Guards every endpoint with what its schema rules out: it is refused, as described."""

    def answered(case: Any) -> None:
        answer = case.call(timeout=60)
        assert answer.status_code < 500, answer.text
        refused = [negative_data_rejection] if answer.status_code == 413 else []  # too large, so nobody looked at it
        case.validate_response(answer, excluded_checks=refused)

    mode = schemathesis.GenerationMode("negative")
    attempt(schema[path][method].as_strategy(generation_mode=mode), answered, examples)


def attempt(cases: Any, answered: Callable[[Any], None], examples: int) -> None:
    """Try so many generated requests."""
    limits = settings(
        max_examples=examples, phases=PHASES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    limits(given(cases)(answered))()


def test_every_operation_is_tried(schema: Any) -> None:
    """Guards the table above."""
    described = {(each.ok().method.upper(), each.ok().path) for each in schema.get_all_operations()}
    assert described == {(method, path) for method, path, _ in OPERATIONS}
