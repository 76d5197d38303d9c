"""The formats in which models write calls of tools, and which of them a chat template asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from speculant.serving.call_expressions import MarkedStrings, read_pythonic
from speculant.serving.call_readers import (
    Reader,
    Reading,
    Section,
    Tags,
    TagSection,
    read_call,
    read_mistral,
    read_objects,
)
from speculant.serving.call_values import Schemas

BEGIN, END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """A format of calls.

    Attributes:
        begins: marks that begin calls.
        read: reads what follows such a mark.
        asks: texts that are all in the chat templates of its models.
        bare: symbols that calls may begin with, without a mark, where an answer has no other text.
        inner: further marks within calls; where they are special tokens, they must be part of the text.
        short_ids: whether templates take ids of nine letters and digits alone.
    """

    begins: tuple[str, ...]
    read: Reader
    asks: tuple[str, ...]
    bare: str = ""
    inner: tuple[str, ...] = ()
    short_ids: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks."""
        return self.begins + self.inner


class ObjectEnd:
    """Finds where a JSON object ends in text that comes in pieces.

    Attributes:
        ended: whether it has.
        quoted: whether the text so far ends within a string.
    """

    def __init__(self) -> None:
        self.ended, self.quoted = False, False
        self._depth, self._escaped = 0, False

    def take(self, text: str) -> int:
        """Add text; return how many of its characters belong to the object."""
        if self.ended:
            return 0
        for place, symbol in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self.quoted:
                self.quoted, self._escaped = symbol != '"', symbol == "\\"
            elif symbol == '"':
                self.quoted = True
            else:
                self._depth += (symbol in "{[") - (symbol in "}]")
                if not self._depth:
                    self.ended = True
                    return place + 1
        return len(text)


def _end_of(text: str) -> int:
    """Return where what ends a call stands in a text, -1 for nowhere; within a string of JSON it ends nothing."""
    place, begin = text.find(END), text.find("{")
    while place >= 0:
        reading = ObjectEnd()
        reading.take(text[begin:place] if 0 <= begin < place else "")
        if not reading.quoted:
            return place
        place = text.find(END, place + 1)
    return -1


def _read_hermes(text: str, _final: bool, _schemas: Schemas) -> Reading:
    place = _end_of(text)
    if place < 0:
        return None
    try:
        call = read_call(json.loads(text[:place]))
    except (ValueError, RecursionError):
        call = None
    return place + len(END), [] if call is None else [call]


HERMES = ToolFormat(begins=(BEGIN,), read=_read_hermes, asks=(BEGIN,), inner=(END,))

_DEEPSEEK = re.compile(
    r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?(?P<name>[^<\n]+)(?:\n```json\n|<｜tool▁sep｜>)"
    r"(?P<arguments>.*?)(?:\n```)?<｜tool▁call▁end｜>",
    re.DOTALL,
)
_KIMI = re.compile(
    r"<\|tool_call_begin\|>\s*(?P<id>(?:functions\.)?(?P<name>[^\s:<]+):\d+)\s*<\|tool_call_argument_begin\|>"
    r"(?P<arguments>.*?)<\|tool_call_end\|>",
    re.DOTALL,
)
_QWEN3_CODER = Tags(
    end=END,
    call=re.compile(r"\s*<function=(?P<name>[^>\n]+)>(?P<arguments>.*)</function>\s*", re.DOTALL),
    argument=re.compile(r"<parameter=(?P<name>[^>\n]+)>(?P<value>.*?)</parameter>", re.DOTALL),
    opens="<parameter=",
    closes="</parameter>",
)
_GLM = Tags(
    end=END,
    call=re.compile(r"\s*(?P<name>[^\s<{]+)\s*(?P<arguments>(?:<arg_key>.*)?)", re.DOTALL),
    argument=re.compile(r"<arg_key>(?P<name>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", re.DOTALL),
    opens="<arg_value>",
    closes="</arg_value>",
)
_DEEPSEEK_V32 = TagSection(
    end=re.compile(r"</｜DSML｜(?:function|tool)_calls>"),  # V4 has the latter
    call=re.compile(r'<｜DSML｜invoke name="(?P<name>[^"\n]+)">(?P<arguments>.*?)</｜DSML｜invoke>', re.DOTALL),
    argument=re.compile(
        r'<｜DSML｜parameter name="(?P<name>[^"\n]+)"(?: string="(?P<string>true|false)")?>(?P<value>.*?)'
        r"</｜DSML｜parameter>",
        re.DOTALL,
    ),
    opens="<｜DSML｜parameter ",
    closes="</｜DSML｜parameter>",
)
_MINIMAX = TagSection(
    end=re.compile("</minimax:tool_call>"),
    call=re.compile(r'<invoke name="(?P<name>[^"\n]+)">(?P<arguments>.*?)</invoke>', re.DOTALL),
    argument=re.compile(r'<parameter name="(?P<name>[^"\n]+)">(?P<value>.*?)</parameter>', re.DOTALL),
    opens="<parameter name=",
    closes="</parameter>",
)

TOOL_FORMATS: Mapping[str, ToolFormat] = {  # what asks for more comes first: several hold `<tool_call>`
    "kimi": ToolFormat(
        begins=("<|tool_calls_section_begin|>",),
        read=Section("<|tool_calls_section_end|>", _KIMI),
        asks=("<|tool_calls_section_begin|>",),
        inner=(
            *("<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
            "<|tool_call_end|>",
        ),
    ),
    "deepseek": ToolFormat(
        begins=("<｜tool▁calls▁begin｜>",),
        read=Section("<｜tool▁calls▁end｜>", _DEEPSEEK),
        asks=("<｜tool▁calls▁begin｜>",),
        inner=("<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    ),
    "deepseek_v32": ToolFormat(
        begins=("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"),
        read=_DEEPSEEK_V32,
        asks=("｜DSML｜",),
        inner=("｜DSML｜",),
    ),
    "minimax": ToolFormat(
        begins=("<minimax:tool_call>",),
        read=_MINIMAX,
        asks=("<minimax:tool_call>",),
        inner=("</minimax:tool_call>",),
    ),
    "gemma4": ToolFormat(
        begins=("<|tool_call>",),
        read=MarkedStrings("<tool_call|>", '<|"|>'),
        asks=("<|tool_call>",),
        inner=("<tool_call|>", '<|"|>'),
    ),
    "functiongemma": ToolFormat(
        begins=("<start_function_call>",),
        read=MarkedStrings("<end_function_call>", "<escape>"),
        asks=("<start_function_call>",),
        inner=("<end_function_call>", "<escape>"),
    ),
    "mistral": ToolFormat(
        begins=("[TOOL_CALLS]",),
        read=read_mistral,
        asks=("[TOOL_CALLS]",),
        inner=("[ARGS]", "[CALL_ID]"),
        short_ids=True,
    ),
    "glm": ToolFormat(
        begins=(BEGIN,),
        read=_GLM,
        asks=(BEGIN, "<arg_key>"),
        inner=(END, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "qwen3_coder": ToolFormat(begins=(BEGIN,), read=_QWEN3_CODER, asks=(BEGIN, "<function="), inner=(END,)),
    "hermes": HERMES,
    "llama4": ToolFormat(
        begins=("<|python_start|>",),
        read=read_pythonic,
        asks=("<|python_start|>",),
        bare="[{",
        inner=("<|python_end|>",),
    ),
    "llama3": ToolFormat(
        begins=("<|python_tag|>",), read=read_objects, asks=('"parameters"', "<|start_header_id|>"), bare="{"
    ),
}
