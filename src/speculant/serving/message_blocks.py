"""Conversion of Anthropic's messages, content blocks and tools to those of a chat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from speculant.serving.errors import ApiError, require_value
from speculant.serving.message_schemas import AnthropicChoice, AnthropicMessage, AnthropicTool, Block

HOSTED = ("web_search_", "web_fetch_", "code_execution_", "tool_search_")
BILLING = "x-anthropic-billing-header:"  # of Claude Code: differs between conversations, and is not for the model
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def read_messages(system: str | Sequence[Block] | None, messages: Sequence[AnthropicMessage]) -> list[dict[str, Any]]:
    """Convert messages to those of a chat.

    Thinking of earlier turns is passed to the template, which decides how much of it the model sees. `cache_control` is
    dropped, because common prefixes of prompts are cached anyway.

    Raises:
        ApiError: a block is of an unknown type, or incomplete.
    """
    found = list[dict[str, Any]]()
    if isinstance(system, Sequence) and not isinstance(system, str):
        system = [block for block in system if not (block.text or "").startswith(BILLING)]
    if system:
        found.append({"role": "system", "content": _content(system, "system")})
    for place, message in enumerate(messages):
        param = f"messages.{place}.content"
        blocks = [Block(type="text", text=message.content)] if isinstance(message.content, str) else message.content
        found += _split(message.role, blocks, param)
    return found


def _split(role: str, blocks: Sequence[Block], param: str) -> Iterator[dict[str, Any]]:
    """Yield the chat messages of a message: tool results become separate messages, before the rest."""
    said, calls, thoughts = list[Block](), list[dict[str, Any]](), list[str]()
    for place, block in enumerate(blocks):
        own = f"{param}.{place}"
        if block.type == "tool_use" and role == "assistant":
            function = {"name": require_value(block.name, f"{own}.name"), "arguments": json.dumps(block.input or {})}
            calls.append({"id": require_value(block.id, f"{own}.id"), "type": "function", "function": function})
        elif block.type == "tool_result" and role == "user":
            yield _result(block, own)
        elif block.type == "thinking" and role == "assistant":
            thoughts.append(_text(block.thinking, f"{own}.thinking"))
        elif block.type not in ("thinking", "redacted_thinking"):
            said.append(block)
    if said or calls or thoughts or not blocks:
        message = {"role": role, "content": _content(said, param) if said else None if calls else ""}
        thought = {"reasoning_content": "\n\n".join(thoughts)} if any(thoughts) else {}
        yield message | thought | ({"tool_calls": calls} if calls else {})


def _result(block: Block, param: str) -> dict[str, Any]:
    content = block.content
    if isinstance(content, list):
        if not all(isinstance(each, dict) and isinstance(each.get("type"), str) for each in content):
            message = f"'{param}.content' must be text or blocks."
            raise ApiError(400, message, param=f"{param}.content", code="invalid_value")
        content = _content([Block.model_construct(None, **each) for each in content], f"{param}.content")
    elif not isinstance(content, str | None):
        message = f"'{param}.content' must be text or blocks."
        raise ApiError(400, message, param=f"{param}.content", code="invalid_value")
    if block.is_error and isinstance(content, str):
        content = f"Error: {content}"
    identity = require_value(block.tool_use_id, f"{param}.tool_use_id")
    return {"role": "tool", "content": content or "", "tool_call_id": identity}


def _content(blocks: str | Sequence[Block], param: str) -> Any:
    """Convert a message's content to a chat's; images stay parts, for models that read them."""
    if isinstance(blocks, str):
        return blocks
    parts = list[dict[str, Any]]()
    for place, block in enumerate(blocks):
        if block.type == "text" and isinstance(block.text, str):
            parts.append({"type": "text", "text": block.text})
        elif block.type == "image" and (url := _image(block.source)) is not None:
            parts.append({"type": "image_url", "image_url": {"url": url}})
        else:
            message = f"content of type '{block.type[:40]}' is not supported here: send text, or an image by its data."
            raise ApiError(400, message, param=f"{param}.{place}", code="unsupported_content")
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _image(source: Any) -> str | None:
    if not isinstance(source, dict):
        return None
    if source.get("type") == "base64" and isinstance(source.get("data"), str):
        return f"data:{source.get('media_type')};base64,{source['data']}"
    return source["url"] if source.get("type") == "url" and isinstance(source.get("url"), str) else None


def read_tools(tools: Sequence[AnthropicTool]) -> tuple[list[dict[str, Any]], list[str]]:
    """Convert tools to a chat's; return them and the names of those that only Anthropic's platform runs.

    Raises:
        ApiError: a tool is not supported.
    """
    functions, unused = list[dict[str, Any]](), list[str]()
    for place, tool in enumerate(tools):
        kind = tool.type or "custom"
        if kind == "custom":
            schema = require_value(tool.input_schema, f"tools.{place}.input_schema")
            function = {"name": tool.name, "description": tool.description, "strict": tool.strict}
            functions.append({"type": "function", "function": function | {"parameters": schema}})
        elif kind.startswith(HOSTED):
            unused.append(tool.name)
        else:
            message = f"tools of type '{kind[:40]}' are not supported; send one with an 'input_schema'."
            raise ApiError(400, message, param=f"tools.{place}.type", code="unsupported_parameter")
    return functions, unused


def read_choice(choice: AnthropicChoice | None) -> Any:
    """Convert a tool choice to a chat's.

    Raises:
        ApiError: a specific tool is required but not named.
    """
    if choice is None:
        return None
    if choice.type == "tool":
        return {"type": "function", "function": {"name": require_value(choice.name, "tool_choice.name")}}
    return CHOICES[choice.type]


def _text(value: str | None, param: str) -> str:
    return str(require_value(value, param))
