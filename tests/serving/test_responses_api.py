"""The Responses API: OpenAI's own client, the order of events, calls, what is kept and what is cancelled."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servers import MODEL, Connect, make_speculator, serving, typed_events
from speculant.serving.errors import ApiError
from speculant.serving.response_store import ResponseStore

pytestmark = pytest.mark.anyio
PATH = "/v1/responses"
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": [1, 2]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
ADD = {"type": "function", "name": "add", "parameters": PARAMETERS, "strict": True}


def body(text: Any = "Once upon a time", **options: Any) -> dict[str, Any]:
    """Return the body of a greedy request."""
    return {"model": MODEL, "input": text, "temperature": 0, "max_output_tokens": 12} | options


def test_official_client(model: Any, tokenizer: Any) -> None:
    """Guards OpenAI's client: whole and streamed texts are the chat's, kept ones are found, continued and deleted."""
    openai = pytest.importorskip("openai")
    with (
        serving(model, tokenizer, api_keys=("secret",)) as (_, address),
        openai.OpenAI(base_url=f"{address}/v1", api_key="secret", max_retries=0) as client,
    ):
        messages = [{"role": "system", "content": "Tell."}, {"role": "user", "content": "Once upon a time"}]
        chat = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=12)
        options = body(instructions="Tell.", metadata={"a": "b"})
        whole = client.responses.create(**options)
        assert whole.output_text == chat.choices[0].message.content
        assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert (whole.usage.output_tokens, whole.metadata) == (12, {"a": "b"})
        with client.responses.stream(**options) as stream:
            found = list(stream)
        assert found[-1].response.output_text == whole.output_text
        kinds = [event.type for event in found]
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert client.responses.retrieve(whole.id).output == whole.output
        [item] = client.responses.input_items.list(whole.id).data
        assert item.content[0].text if not isinstance(item.content, str) else item.content == "Once upon a time"
        following = client.responses.create(**body("And then?", previous_response_id=whole.id))
        given = [
            {"role": "user", "content": "Once upon a time"},
            *[each.model_dump(exclude_none=True) for each in whole.output],
            {"role": "user", "content": "And then?"},
        ]
        again = client.responses.create(**body(given, store=False))
        assert following.output_text == again.output_text
        client.responses.delete(whole.id)
        with pytest.raises(openai.NotFoundError, match="whole conversation"):
            client.responses.create(**body("And then?", previous_response_id=whole.id))
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(again.id)


async def test_events_of_a_text(connect: Connect) -> None:
    """Guards the order of events and their numbers; what has ended is what grew."""
    async with connect() as client:
        found = typed_events((await client.post(PATH, json=body(stream=True))).text)
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    kinds = [each["type"].removeprefix("response.") for each in found]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    text = "".join(each["delta"] for each in found[4:-4])
    assert found[-4]["text"] == text
    [item] = found[-1]["response"]["output"]
    assert item == found[-2]["item"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", text)


async def test_calls(connect: Connect, ending_model: Any, calling: Any) -> None:
    """Guards tools: forced calls, whole and streamed, of namespaces too, and outputs in the next turn."""
    async with connect(served=make_speculator(ending_model, calling)) as client:
        named = {"tools": [ADD, {"type": "web_search"}], "tool_choice": {"type": "function", "name": "add"}}
        answer = await client.post(PATH, json=body("Add.", **named, max_output_tokens=80))
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-speculant-unused"] == "tools.web_search"
        [call] = answer.json()["output"]
        assert (call["type"], call["name"], answer.json()["status"]) == ("function_call", "add", "completed")
        assert set(json.loads(call["arguments"])) == {"a", "b"}
        found = typed_events(
            (await client.post(PATH, json=body("Add.", **named, max_output_tokens=80, stream=True))).text
        )
        kinds = [each["type"].removeprefix("response.") for each in found]
        assert kinds[2] == "output_item.added"
        assert kinds[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
        assert set(kinds[3:-3]) == {"function_call_arguments.delta"}
        assert "".join(each["delta"] for each in found[3:-3]) == call["arguments"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "3"}
        following = body([output], previous_response_id=answer.json()["id"], tools=[ADD])
        assert (await client.post(PATH, json=following)).status_code == 200
        inner = {"type": "namespace", "name": "math", "tools": [ADD]}
        spaced = await client.post(
            PATH,
            json=body("Add.", tools=[inner], tool_choice="required", parallel_tool_calls=False, max_output_tokens=80),
        )
        [call] = spaced.json()["output"]
        assert (call["namespace"], call["name"]) == ("math", "add")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input.0.content.0"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"tools": [{"type": "computer"}]}, "tools.0"),
        ({"tools": [{"type": "custom", "name": "a", "format": {"type": "grammar"}}]}, "tools.0.format"),
        ({"background": True}, "background"),
        ({"conversation": "a"}, "conversation"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"max_output_tokens": 100_000}, "max_tokens"),
    ],
)
async def test_refusals(connect: Connect, changes: dict[str, Any], param: str) -> None:
    """Guards what cannot be honoured: it is refused by name."""
    async with connect() as client:
        answer = await client.post(PATH, json=body() | changes)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param


def test_cancellation(model: Any, tokenizer: Any) -> None:
    """Guards `cancel`: the stream ends with a failure, and the response is kept as cancelled."""
    openai = pytest.importorskip("openai")
    with (
        serving(model, tokenizer) as (_, address),
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
        client.responses.create(**body(max_output_tokens=400), stream=True) as stream,
    ):
        first = next(iter(stream))
        assert client.responses.cancel(first.response.id).status == "cancelled"
        *_, last = stream
        assert (last.type, last.response.status) == ("response.failed", "cancelled")
        assert client.responses.retrieve(first.response.id).status == "cancelled"
        with pytest.raises(openai.BadRequestError, match="ended already"):
            client.responses.cancel(first.response.id)


def test_the_store_is_bounded() -> None:
    """Guards memory: the one that was not used for longest goes, in number and in bytes, and keys are apart."""
    store = ResponseStore(limit=1000, entries=2)
    for name in "abc":
        store.put("k", {"id": name}, [], [])
        if name == "b":
            store.get("k", "a")
    store.get("k", "a")
    store.get("k", "c")
    for tenant, name in (("k", "b"), ("other", "a")):
        with pytest.raises(ApiError, match="is kept"):
            store.get(tenant, name)
    store.put("k", {"id": "d"}, [{"text": "x" * 950}], [])
    with pytest.raises(ApiError):
        store.get("k", "a")
    store.put("k", {"id": "e"}, [{"text": "x" * 2000}], [])
    with pytest.raises(ApiError):
        store.get("k", "e")
    store.delete("k", "d")
    with pytest.raises(ApiError):
        store.delete("k", "d")
    with pytest.raises(ApiError, match="no response"):
        store.delete("another key", "d")
