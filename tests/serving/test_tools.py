"""Tools end to end: calls that must be made are, with arguments of their schema, whole and streamed."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from servers import MODEL, Connect, chat, events, make_speculator, serving
from speculant import Speculator
from speculant.api.constraints import ConstraintCompiler
from speculant.serving.call_grammars import TAGGED, own_grammar
from speculant.serving.formats import format_of
from speculant.serving.schemas import ChatRequest
from speculant.serving.tool_choice import plan_tools
from speculant.serving.tool_formats import TOOL_FORMATS
from speculant.serving.tools import ToolCallParser, text_tokens
from vocabularies import byte_level

pytestmark = pytest.mark.anyio
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo </tool_call>"]}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY | {"additionalProperties": False}}}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}, "b": {"enum": [1, 2]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "add"}}


def with_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return a strict tool."""
    return {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}


@pytest.fixture
def served(ending_model: Any, calling: Any) -> Speculator:
    """Return a speculator whose chat template knows tools."""
    return make_speculator(ending_model, calling)


def check_call(call: dict[str, Any]) -> None:
    """Check a call of one of the tools."""
    name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    if name == "weather":
        assert arguments in ({"city": "Rome"}, {"city": "Oslo </tool_call>"})
    elif name == "add":
        assert set(arguments) == {"a", "b"}
        assert arguments["a"] in range(10)
        assert arguments["b"] in (1, 2)
    else:
        assert (name, arguments) == ("now", {})


async def ask(client: Any, **options: Any) -> dict[str, Any]:
    """Return the choice of an answer; the streamed one is the same."""
    body = chat(**{"max_tokens": 200, "temperature": 1, "seed": 4} | options)
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    streamed = (await client.post("/v1/chat/completions", json=body | {"stream": True})).text
    chunks = [json.loads(each)["choices"][0] for each in events(streamed)[:-1]]
    assert chunks[-1]["finish_reason"] == choice["finish_reason"]
    text = "".join(chunk["delta"].get("content") or "" for chunk in chunks)
    assert text.strip() == (choice["message"]["content"] or "").strip()
    calls = dict[int, dict[str, Any]]()
    for delta in (delta for chunk in chunks for delta in chunk["delta"].get("tool_calls", [])):
        if delta["index"] not in calls:
            calls[delta["index"]] = delta
        else:
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    functions = [call["function"] for call in choice["message"]["tool_calls"] or []]
    assert [call["function"] for call in calls.values()] == functions
    return choice


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_required_calls(connect: Connect, served: Speculator, seed: int) -> None:
    """Guards `tool_choice: "required"`: nothing but calls, of the functions that there are."""
    async with connect(served=served) as client:
        options = {"tools": [WEATHER, ADD, NOW], "tool_choice": "required", "seed": seed}
        choice = await ask(client, **options, parallel_tool_calls=False)
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        [call] = choice["message"]["tool_calls"]
        check_call(call)
        several = await ask(client, **options, max_tokens=300)
        complete = several["message"]["tool_calls"][: None if several["finish_reason"] == "tool_calls" else -1]
        assert complete
        for call in complete:
            check_call(call)


async def test_a_named_function_is_called(connect: Connect, served: Speculator) -> None:
    """Guards the choice of one function, and of the allowed ones."""
    async with connect(served=served) as client:
        for choice in (
            NAMED,
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
        ):
            found = await ask(client, tools=[WEATHER, ADD], tool_choice=choice, parallel_tool_calls=False)
            [call] = found["message"]["tool_calls"]
            assert call["function"]["name"] == "add"
            check_call(call)


async def test_a_forced_call_that_is_cut_keeps_its_beginning(connect: Connect, served: Speculator) -> None:
    """Guards `max_tokens`: the call so far is returned, as in OpenAI's API, and the reason is the length."""
    async with connect(served=served) as client:
        choice = await ask(client, tools=[ADD], tool_choice=NAMED, max_tokens=40)
    assert choice["finish_reason"] == "length"
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    assert call["function"]["arguments"].startswith("{")


async def test_free_answers_stay_free(connect: Connect, served: Speculator) -> None:
    """Guards "auto" with a grammar, of strict tools or one call at most: text is text, and JSON is JSON."""
    async with connect(served=served) as client:
        for tools, parallel in (([ADD], None), ([WEATHER], False)):
            text = await ask(client, tools=tools, parallel_tool_calls=parallel, max_tokens=30)
            assert text["message"]["content"]
            assert not text["message"]["tool_calls"]
        answer = {"type": "json_schema", "json_schema": {"name": "answer", "schema": WEATHER["function"]["parameters"]}}
        for seed in range(4):
            choice = await ask(client, tools=[ADD], response_format=answer, parallel_tool_calls=False, seed=seed)
            if choice["message"]["tool_calls"] is None:
                assert json.loads(choice["message"]["content"])["city"]
            else:
                check_call(choice["message"]["tool_calls"][0])


@pytest.mark.parametrize(
    ("options", "accepted", "refused"),
    [
        ({}, ["Hi.", "Hi.\n{add}\n{add} Bye.", "", "<think>Hm.</b>\n<think>Hi.{add}<think>"], ["{wrong}", "a {wrong}"]),
        ({"parallel_tool_calls": False}, ["Hi.", "<think>Hi.{add}"], ["{add}\n{add}"]),
        ({"tool_choice": "required"}, ["{add}", "{add}\n{weather}\n{add}"], ["", "Hi.", "Hi.{add}", "{add}Bye."]),
        ({"tool_choice": "required", "parallel_tool_calls": False}, ["{weather}"], ["{weather}\n{weather}"]),
        ({"tool_choice": NAMED}, ["{add}"], ["{weather}", "{add}\n{add}"]),
        ({"response_format": {"type": "json_object"}}, ["{{}}", "{add}\n{add}"], ["Hi.", "{add}{{}}", ""]),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}},
            ["Hi.", "Hi.{add}"],
            ["{weather}"],
        ),
    ],
)
@pytest.mark.parametrize("named", [False, True], ids=["spelled", "tokens"])
async def test_grammars_of_answers(
    options: dict[str, Any], accepted: list[str], refused: list[str], named: bool
) -> None:
    """Guards the grammars: what an answer may be, text by text, whether or not what marks calls are tokens."""
    tokenizer = copy.deepcopy(byte_level(384))
    if named:
        tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    end = tokenizer.eos_token_id
    body = ChatRequest.model_validate(chat(tools=[WEATHER, ADD, NOW]) | options)
    plan = plan_tools(body, format_of(body.response_format, None), text_tokens(tokenizer))
    assert plan.format is not None
    compiled = ConstraintCompiler(tokenizer, 400).compile(plan.format.constraint, ends=frozenset([end]))
    calls = {
        "add": '{"name": "add", "arguments": {"a": 1, "b": 2}}',
        "wrong": '{"name": "add", "arguments": {"a": 1, "b": 3}}',
        "weather": '{"name": "weather", "arguments": {"city": "Rome"}}',
    }
    texts = {name: f"<tool_call>\n{call}\n</tool_call>" for name, call in calls.items()}
    for expected, several in ((True, accepted), (False, refused)):
        for text in several:
            matcher, ids = compiled.matcher.deep_copy(), tokenizer(text.format(**texts))["input_ids"]
            whole = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
            assert whole == expected, text


FIND = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "A file."},
        "kind": {"enum": ["f", "d"]},
        "depth": {"type": "integer", "minimum": 0, "maximum": 9},
        "names": {"type": "array", "items": {"$ref": "#/$defs/name"}},
    },
    "required": ["path", "depth"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string"}},
}


@pytest.mark.parametrize(
    ("arguments", "accepted"),
    [
        ({"path": "a\n<b>/c", "depth": "3"}, True),
        ({"path": "", "kind": "d", "depth": "3", "names": '["x"]'}, True),
        ({"path": "a"}, False),
        ({"path": "a", "depth": "30"}, False),
        ({"path": "a", "kind": "x", "depth": "3"}, False),
        ({"path": "a", "depth": "3", "names": "[1]"}, False),
        ({"depth": "3", "path": "a"}, False),
        ({"path": "a", "depth": "3", "more": "1"}, False),
    ],
)
@pytest.mark.parametrize("named", [False, True], ids=["spelled", "tokens"])
def test_strict_tools_of_qwen3_coder(arguments: dict[str, str], accepted: bool, named: bool) -> None:
    """Guards `strict` in the model's own format: free text before a call, the schema's arguments and no others."""
    tokenizer = copy.deepcopy(byte_level(384))
    if named:
        tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    body = ChatRequest.model_validate(chat(tools=[with_parameters(FIND), NOW]))
    plan = plan_tools(body, None, text_tokens(tokenizer), own=True, native=TAGGED)
    assert plan.format is not None
    assert plan.own
    compiled = ConstraintCompiler(tokenizer, 400).compile(
        plan.format.constraint, ends=frozenset([tokenizer.eos_token_id])
    )
    inside = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in arguments.items())
    call = f"<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>"
    none = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    for text in (call, f"Well.\n{none}\n{call} Bye."):
        matcher, ids = compiled.matcher.deep_copy(), tokenizer(text)["input_ids"]
        assert (matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()) == accepted, text


GIVEN = {"path": "a [TOOL_CALLS]\n", "depth": 3}
LISTED = '{{"name": "f", "arguments": {}}}'
MISTRAL = ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"]


@pytest.mark.parametrize(
    ("template", "text", "accepted"),
    [
        ("", "[TOOL_CALLS] [{f}]", True),
        ("", "Well.\n[TOOL_CALLS][{f}, {now}] Bye.", True),
        ("", '[TOOL_CALLS][{{"name": "now", "arguments": {{}}, "id": "abcDEF123"}}]', True),
        ("", "[THINK]Hm.[/THINK]Just text.", True),
        ("", "[THINK]Hm.[/THINK][TOOL_CALLS][{f}]", True),
        ("", "[TOOL_CALLS][{wrong}]", False),
        ("", '[TOOL_CALLS][{{"name": "other", "arguments": {{}}}}]', False),
        ("", "[TOOL_CALLS][]", False),
        ("", "[TOOL_CALLS]f[ARGS]{good}", False),
        ("[ARGS]", "[TOOL_CALLS]f[ARGS]{good}", True),
        ("[ARGS]", "Well.[TOOL_CALLS]now[ARGS]{{}}[TOOL_CALLS]f[ARGS]{good}", True),
        ("[ARGS]", "[THINK]Hm.[/THINK]Hi.[TOOL_CALLS]now[ARGS]{{}}", True),
        ("[ARGS]", "[TOOL_CALLS]f[ARGS]{bad}", False),
        ("[ARGS]", "[TOOL_CALLS]f[CALL_ID]abcDEF123[ARGS]{good}", False),
        ("[CALL_ID][ARGS]", "[TOOL_CALLS]f[CALL_ID]abcDEF123[ARGS]{good}", True),
        ("[CALL_ID][ARGS]", "[TOOL_CALLS]f[ARGS]{good}", True),
        ("[CALL_ID][ARGS]", "[TOOL_CALLS]f[CALL_ID]abc[ARGS]{good}", False),
        ("[CALL_ID][ARGS]", "[TOOL_CALLS]f[CALL_ID]abcDEF123[ARGS]{bad}", False),
    ],
)
@pytest.mark.parametrize("named", [False, True], ids=["spelled", "tokens"])
def test_strict_tools_of_mistral(template: str, text: str, accepted: bool, named: bool) -> None:
    """Guards `strict` in both of Mistral's formats, with text and reasoning around; what is accepted is parsed."""
    tokenizer = copy.deepcopy(byte_level(384))
    if named:
        tokenizer.add_special_tokens({"additional_special_tokens": MISTRAL})
    good, bad = json.dumps(GIVEN), json.dumps(GIVEN | {"depth": 30})
    calls = {"f": LISTED.format(good), "wrong": LISTED.format(bad), "now": '{"name": "now", "arguments": {}}'}
    answer = text.format(good=good, bad=bad, **calls)
    body = ChatRequest.model_validate(chat(tools=[with_parameters(FIND), NOW]))
    native = own_grammar(TOOL_FORMATS["mistral"], "[TOOL_CALLS]" + template)
    plan = plan_tools(body, None, MISTRAL[3:] if named else [], own=True, native=native)
    assert plan.format is not None
    assert plan.own
    ends = frozenset([tokenizer.eos_token_id])
    matcher = ConstraintCompiler(tokenizer, 400).compile(plan.format.constraint, ends=ends).matcher.deep_copy()
    ids = tokenizer(answer.replace("a [TOOL_CALLS]", "a") if named else answer)["input_ids"]
    assert (matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()) == accepted
    if accepted:
        parser = ToolCallParser(TOOL_FORMATS["mistral"], schemas={"f": FIND, "now": {}})
        said = "".join(parser.push(symbol)[0] for symbol in answer) + parser.flush()[0]
        assert len(parser.calls) == answer.count("f[") + answer.count("now[") + answer.count('"name"')
        assert "TOOL_CALLS" not in said


@pytest.mark.parametrize("template", ["[TOOL_CALLS]", "[TOOL_CALLS][ARGS][THINK]"])
async def test_strict_tools_are_offered_to_mistral(
    connect: Connect, ending_model: Any, calling: Any, template: str
) -> None:
    """Guards the way from a chat template to the grammar, by calls that the model may make as it is free to."""
    tokenizer = copy.deepcopy(calling)
    tokenizer.chat_template += f"{{# {template} #}}"
    async with connect(served=make_speculator(ending_model, tokenizer)) as client:
        await ask(client, tools=[ADD, NOW], max_tokens=30)


def test_one_call_of_mistral() -> None:
    """Guards `parallel_tool_calls: false` in lists: one object."""
    tokenizer = byte_level(384)
    body = ChatRequest.model_validate(chat(tools=[NOW], parallel_tool_calls=False))
    plan = plan_tools(body, None, own=True, native=own_grammar(TOOL_FORMATS["mistral"], "[TOOL_CALLS]"))
    assert plan.format is not None
    compiled = ConstraintCompiler(tokenizer, 384).compile(
        plan.format.constraint, ends=frozenset([tokenizer.eos_token_id])
    )
    now = LISTED.replace("f", "now").format("{}")
    for text, accepted in ((f"[TOOL_CALLS][{now}]", True), (f"[TOOL_CALLS][{now}, {now}]", False)):
        matcher, ids = compiled.matcher.deep_copy(), tokenizer(text)["input_ids"]
        assert (matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()) == accepted


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"a": {"type": "string", "pattern": "x+"}}},
        {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
        {"properties": {"a": {"type": ["string", "integer"]}}},
        {"properties": {"a<b": {"type": "integer"}}},
        {"properties": {"a": {"type": "integer"}}, "minProperties": 1},
        {"properties": {}, "required": [{}]},
    ],
)
def test_what_tags_cannot_say_stays_free(parameters: dict[str, Any]) -> None:
    """Guards schemas that no grammar of tags has: calls are as free as those of other formats of a model's own."""
    body = ChatRequest.model_validate(chat(tools=[with_parameters({"type": "object"} | parameters)]))
    assert plan_tools(body, None, own=True, native=TAGGED).format is None


async def test_results_go_back_to_the_model(connect: Connect, served: Speculator) -> None:
    """Guards the next turn: calls and their results reach the template."""
    async with connect(served=served) as client:
        first = await ask(client, tools=[ADD], tool_choice=NAMED)
        [call] = first["message"]["tool_calls"]
        messages = [
            {"role": "user", "content": "Add."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "3", "tool_call_id": call["id"]},
        ]
        answer = await client.post("/v1/chat/completions", json=chat(messages=messages, tools=[ADD]))
        assert answer.status_code == 200
        counted = (await client.post("/tokenize", json={"messages": messages})).json()["tokens"]
        text = (await client.post("/detokenize", json={"tokens": counted})).json()["prompt"]
    assert json.dumps(json.loads(call["function"]["arguments"])) in text
    assert "tool: 3" in text


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"tools": [with_parameters({"type": "x"})]}, "tools"),
        ({"tools": [with_parameters({"pattern": "(a{999}){999}"})]}, "tools"),
        ({"tools": [with_parameters({"uniqueItems": True, "type": "array"})]}, "tools"),
    ],
)
async def test_what_cannot_be_called_is_refused(
    connect: Connect, served: Speculator, changes: dict[str, Any], param: str
) -> None:
    """Guards refusals: they name the parameter."""
    body = chat(tools=[ADD, WEATHER], tool_choice="required") | changes
    async with connect(served=served) as client:
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_forced_calls_are_passed_on_as_they_grow() -> None:
    """Guards the stream: the name comes first, then arguments in pieces, whatever they hold."""
    parser = ToolCallParser(forced=True)
    arguments = '{"a": "}\\"</tool_call>", "b": [{}]}'
    found = list[dict[str, Any]]()
    for symbol in f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>':
        text, deltas = parser.push(symbol)
        assert not text
        found += deltas
    assert found[0]["function"] == {"name": "f", "arguments": ""}
    assert len(found) == 1 + len(arguments)
    assert "".join(delta["function"]["arguments"] for delta in found) == arguments
    assert parser.calls[0]["function"] == {"name": "f", "arguments": arguments}
    assert parser.flush() == ("", [])


def test_official_client_streams_calls(ending_model: Any, calling: Any) -> None:
    """Guards OpenAI's own accumulation of streamed calls."""
    openai = pytest.importorskip("openai")
    options = {"model": MODEL, "messages": [{"role": "user", "content": "Add."}], "temperature": 0, "max_tokens": 80}
    with (
        serving(ending_model, calling) as (_, address),
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
        client.chat.completions.stream(**options, tools=[ADD], tool_choice=NAMED) as stream,
    ):
        kinds = [event.type for event in stream]
        [call] = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.delta" in kinds
    assert set(call.function.parsed_arguments) == {"a", "b"}
