"""Conversion between the Responses API and chats: items to messages, tools to functions, segments back to items."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from speculant.serving.errors import ApiError, require_value
from speculant.serving.response_schemas import AllowedNames, Item, ResponseRequest, ResponseTool, ToolName
from speculant.serving.schemas import TextPart
from speculant.serving.segments import AnswerSegment, Step

HOSTED = (
    "web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp", "tool_search",
)  # fmt: skip
FREE_TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledTool:
    """Wire name of a called function: a function, possibly in a namespace, or a custom tool with free-text input."""

    name: str
    namespace: str | None = None
    custom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools of a request.

    Attributes:
        functions: the functions in a chat's format.
        names: wire names of their calls.
        unused: types of tools that only OpenAI's platform runs, which are not shown to the model.
    """

    functions: Sequence[dict[str, Any]]
    names: Mapping[str, CalledTool]
    unused: Sequence[str]


def read_tools(tools: Sequence[ResponseTool]) -> Tools:
    """Convert the tools of a request.

    Raises:
        ApiError: a tool is not supported.
    """
    functions, names, unused = list[dict[str, Any]](), dict[str, CalledTool](), list[str]()
    for place, tool in enumerate(tools):
        param = f"tools.{place}"
        if tool.type == "function":
            _add(functions, names, tool, CalledTool(name=_name(tool, param)))
        elif tool.type == "custom":
            if tool.format is not None and tool.format.get("type") != "text":
                message = f"the custom tool '{tool.name}' has a grammar, which is not supported; send a function."
                raise ApiError(400, message, param=f"{param}.format", code="unsupported_parameter")
            _add(functions, names, tool, CalledTool(name=_name(tool, param), custom=True))
        elif tool.type == "namespace":
            for inner in tool.tools or ():
                function = ResponseTool.model_validate(inner)
                if function.type != "function":
                    message = f"a namespace has functions only, not '{function.type[:40]}'."
                    raise ApiError(400, message, param=f"{param}.tools", code="unsupported_parameter")
                called = CalledTool(name=_name(function, param), namespace=_name(tool, param))
                _add(functions, names, function, called)
        elif tool.type.startswith(HOSTED):
            unused.append(tool.type)
        else:
            message = f"tools of type '{tool.type[:40]}' are not supported; send a function, which the client runs."
            raise ApiError(400, message, param=param, code="unsupported_parameter")
    return Tools(functions=functions, names=names, unused=unused)


def _name(tool: ResponseTool, param: str) -> str:
    if not tool.name:
        raise ApiError(400, "a tool has no name.", param=f"{param}.name", code="missing_parameter")
    return tool.name


def _add(functions: list[dict[str, Any]], names: dict[str, CalledTool], tool: ResponseTool, called: CalledTool) -> None:
    name = _join_name(called.namespace, called.name)
    function: dict[str, Any] = {"name": name, "description": tool.description, "strict": tool.strict}
    function["parameters"] = FREE_TEXT if called.custom else tool.parameters
    functions.append({"type": "function", "function": function})
    names[name] = called


def _join_name(namespace: str | None, name: str) -> str:
    return name if namespace is None else f"{namespace}__{name}"


def read_choice(body: ResponseRequest) -> Any:
    """Convert a request's tool choice to a chat's."""
    choice = body.tool_choice
    if isinstance(choice, ToolName):
        return _convert_tool_name(choice)
    if isinstance(choice, AllowedNames):
        allowed = {"mode": choice.mode, "tools": [_convert_tool_name(each) for each in choice.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def _convert_tool_name(tool: ToolName) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.name}}


def read_items(items: str | Sequence[Item]) -> list[dict[str, Any]]:
    """Convert an input to chat messages.

    Reasoning belongs to the message or call that follows it, and is passed to the template, which decides how much of
    it the model sees.

    Raises:
        ApiError: an item is of an unknown type, or incomplete.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages, thoughts = list[dict[str, Any]](), list[str]()
    for place, item in enumerate(items):
        param, kind = f"input.{place}", item.type or "message"
        if kind == "reasoning":
            thoughts += filter(None, [_reasoning(item)])
            continue
        if kind == "message":
            messages.append(_message(item, param))
        elif kind in ("function_call", "custom_tool_call"):
            _add_call(messages, item, param)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            content = _content(require_value(item.output, f"{param}.output"), f"{param}.output")
            messages.append(
                {"role": "tool", "content": content, "tool_call_id": require_value(item.call_id, f"{param}.call_id")}
            )
        else:
            message = f"items of type '{kind[:40]}' are not supported; send messages, function calls or their outputs."
            raise ApiError(400, message, param=f"{param}.type", code="unsupported_content")
        if thoughts and messages[-1]["role"] == "assistant":
            before = messages[-1].get("reasoning_content")
            messages[-1]["reasoning_content"] = "\n\n".join([*([before] if before else []), *thoughts])
        thoughts = []
    return messages


def _reasoning(item: Item) -> str:
    """Return the text of a reasoning item, or else its summary; "" if it is encrypted."""
    if isinstance(item.content, str):
        return item.content
    parts = item.content or item.summary or []
    return "\n\n".join(part.text for part in parts if part.text)


def _message(item: Item, param: str) -> dict[str, Any]:
    role = require_value(item.role, f"{param}.role")
    return {"role": role, "content": _content(require_value(item.content, f"{param}.content"), f"{param}.content")}


def _add_call(messages: list[dict[str, Any]], item: Item, param: str) -> None:
    """Add a call to the preceding assistant message, or to a new one."""
    name = _join_name(item.namespace, require_value(item.name, f"{param}.name"))
    if item.type == "custom_tool_call":
        arguments = json.dumps({"input": require_value(item.input, f"{param}.input")}, ensure_ascii=False)
    else:
        arguments = require_value(item.arguments, f"{param}.arguments")
    call = {
        "id": require_value(item.call_id, f"{param}.call_id"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call)


def _content(content: str | Sequence[TextPart], param: str) -> Any:
    """Convert a message's content to a chat's; images stay parts, for models that read them."""
    if isinstance(content, str):
        return content
    parts = list[dict[str, Any]]()
    for place, part in enumerate(content):
        own = f"{param}.{place}"
        extra = part.model_extra or {}
        if part.type in ("input_text", "output_text", "text"):
            parts.append({"type": "text", "text": require_value(part.text, f"{own}.text")})
        elif part.type == "refusal":
            parts.append({"type": "text", "text": str(extra.get("refusal", ""))})
        elif part.type == "input_image" and isinstance(extra.get("image_url"), str):
            parts.append({"type": "image_url", "image_url": {"url": extra["image_url"]}})
        else:
            message = f"content of type '{part.type[:40]}' is not supported: send text, or an image by its URL."
            raise ApiError(400, message, param=own, code="unsupported_content")
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


class ItemWriter:
    """Turns the segments of an answer into output items, and into the events that stream them.

    Attributes:
        items: items that have ended or are open, in order.
    """

    def __init__(self, names: Mapping[str, CalledTool]) -> None:
        """Set the wire names of calls."""
        self.items: list[dict[str, Any]] = []
        self._names = names

    def write(self, step: Step) -> Iterator[dict[str, Any]]:
        """Yield the events of a step, without their sequence numbers."""
        segment = step.segment
        if step.kind == "begin":
            self.items.append(self._item(segment, "in_progress"))
        item, place = self.items[segment.index], {"output_index": segment.index}
        at = place | {"item_id": item["id"]}
        custom = item["type"] == "custom_tool_call"
        if step.kind == "begin":
            yield {"type": "response.output_item.added"} | place | {"item": dict(item)}
            if segment.kind != "call":
                yield {"type": "response.content_part.added"} | at | {"content_index": 0, "part": _part(segment, "")}
        elif step.kind == "grow":
            if not custom:  # its text is inside JSON, which is parsed once it is complete
                yield {"type": f"response.{_GROWS[segment.kind]}.delta"} | at | _index(segment) | {"delta": step.text}
        else:
            self.items[segment.index] = item = self._item(segment, "completed" if segment.whole else "incomplete", item)
            if custom:
                yield {"type": "response.custom_tool_call_input.delta"} | at | {"delta": item["input"]}
                yield {"type": "response.custom_tool_call_input.done"} | at | {"input": item["input"]}
            elif segment.kind == "call":
                done = {"arguments": segment.text, "name": item["name"]}
                yield {"type": "response.function_call_arguments.done"} | at | done
            else:
                done = {"text": segment.text} | ({"logprobs": []} if segment.kind == "text" else {})
                yield {"type": f"response.{_GROWS[segment.kind]}.done"} | at | {"content_index": 0} | done
                part = {"content_index": 0, "part": _part(segment, segment.text)}
                yield {"type": "response.content_part.done"} | at | part
            yield {"type": "response.output_item.done"} | place | {"item": item}

    def _item(self, segment: AnswerSegment, status: str, begun: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return a segment's current item; if it has begun, with the same id."""
        own = {"id": begun["id"]} if begun else {"id": f"{_PREFIXES[segment.kind]}_{uuid.uuid4().hex}"}
        ended = status != "in_progress"
        if segment.kind == "reasoning":
            content = [_part(segment, segment.text)] if ended else []
            return own | {"type": "reasoning", "status": status, "summary": [], "content": content}
        if segment.kind == "text":
            content = [_part(segment, segment.text)] if ended else []
            return own | {"type": "message", "status": status, "role": "assistant", "content": content}
        called = self._names.get(segment.name, CalledTool(name=segment.name))
        item = own | {"status": status, "call_id": segment.call_id, "name": called.name}
        if called.custom:
            return item | {"type": "custom_tool_call", "input": _free_text(segment.text) if ended else ""}
        namespace = {} if called.namespace is None else {"namespace": called.namespace}
        return item | {"type": "function_call", "arguments": segment.text if ended else ""} | namespace


_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}
_GROWS = {"text": "output_text", "reasoning": "reasoning_text", "call": "function_call_arguments"}


def _index(segment: AnswerSegment) -> dict[str, Any]:
    if segment.kind == "call":
        return {}
    return {"content_index": 0} | ({"logprobs": []} if segment.kind == "text" else {})


def _part(segment: AnswerSegment, text: str) -> dict[str, Any]:
    if segment.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _free_text(arguments: str) -> str:
    """Return the input of a custom tool's call; arguments that are not the expected JSON are returned as they are."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
