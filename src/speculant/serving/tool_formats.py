"""The formats in which models write tool calls, and detection of the one that a chat template uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speculant.serving.call_expressions import MarkedStrings, PythonLines, PythonList
from speculant.serving.call_patterns import (
    DEEPSEEK,
    DEEPSEEK_V32,
    GLM,
    KIMI,
    KIMI_K3,
    MINICPM,
    MINIMAX,
    QWEN3_CODER,
    SEED,
    SOLAR_OPEN,
    SOLAR_OPEN2,
    STEP3,
    read_hunyuan,
)
from speculant.serving.call_readers import Reader, read_mistral, read_objects
from speculant.serving.call_sections import JsonSection, Named
from speculant.serving.call_trees import NAMESPACE, read_minimax_m3
from speculant.serving.hermes import BEGIN, END, read_hermes


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """A format of calls.

    Attributes:
        begins: marks that begin calls.
        read: parses the text after such a mark.
        asks: texts that the chat templates of its models contain, all of one of these groups.
        lacks: texts that they do not contain, which tell them from those of other formats.
        bare: symbols that calls may begin with, without a mark, in an answer without other text.
        inner: further marks within calls; if they are special tokens, they must be kept in the text.
        short_ids: whether templates only accept ids of nine letters and digits.
    """

    begins: tuple[str, ...]
    read: Reader
    asks: tuple[tuple[str, ...], ...]
    lacks: tuple[str, ...] = ()
    bare: str = ""
    inner: tuple[str, ...] = ()
    short_ids: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks."""
        return self.begins + self.inner

    def is_asked(self, template: str) -> bool:
        """Return whether a chat template asks for this format."""
        return not any(text in template for text in self.lacks) and any(
            all(text in template for text in group) for group in self.asks
        )


HERMES = ToolFormat(begins=(BEGIN,), read=read_hermes, asks=((BEGIN,),), lacks=(NAMESPACE,), inner=(END,))


def make_hunyuan(suffix: str = "") -> ToolFormat:
    """Return Hunyuan's format for a checkpoint whose special tokens have this suffix."""
    names = ("tool_call", "arg_key", "arg_value")
    return ToolFormat(
        begins=(f"<tool_calls{suffix}>",),
        read=read_hunyuan(suffix),
        asks=(("<tool_calls", "<arg_key"),),
        inner=(
            *(f"<{slash}{name}{suffix}>" for name in names for slash in ("", "/")),
            f"</tool_calls{suffix}>",
            f"<tool_sep{suffix}>",
        ),
    )


TOOL_FORMATS: Mapping[str, ToolFormat] = {  # most specific first, since several contain `<tool_call>`
    "kimi": ToolFormat(
        begins=("<|tool_calls_section_begin|>",),
        read=KIMI,
        asks=(("<|tool_calls_section_begin|>",),),
        inner=(
            *("<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
            "<|tool_call_end|>",
        ),
    ),
    "kimi_k3": ToolFormat(
        begins=("<|open|>tools<|sep|>",),
        read=KIMI_K3,
        asks=(("<|open|>", "<|close|>", "<|sep|>"),),
        inner=("<|open|>", "<|close|>", "<|sep|>"),
    ),
    "deepseek": ToolFormat(
        begins=("<｜tool▁calls▁begin｜>",),
        read=DEEPSEEK,
        asks=(("<｜tool▁calls▁begin｜>",),),
        inner=("<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    ),
    "deepseek_v32": ToolFormat(
        begins=("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"),
        read=DEEPSEEK_V32,
        asks=(("｜DSML｜",),),
        inner=("｜DSML｜",),
    ),
    "minimax": ToolFormat(
        begins=("<minimax:tool_call>",),
        read=MINIMAX,
        asks=(("<minimax:tool_call>",),),
        inner=("</minimax:tool_call>",),
    ),
    "minimax_m3": ToolFormat(
        begins=(f"{NAMESPACE}<tool_call>",), read=read_minimax_m3, asks=((NAMESPACE,),), inner=(NAMESPACE,)
    ),
    "hunyuan": make_hunyuan(),
    "solar_open": ToolFormat(
        begins=("<|tool_calls|>",),
        read=SOLAR_OPEN,
        asks=(("<|tool_calls|>", "<|tool_call:"),),
        inner=(*("<|calls|>", "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"),),
    ),
    "solar_open2": ToolFormat(
        begins=("<|tool_call:start|>",),
        read=SOLAR_OPEN2,
        asks=(("<|tool_call:start|>",),),
        inner=("<|tool_call:end|>", "<|tool_arg:start|>", "<|tool_arg:value|>", "<|tool_arg:end|>"),
    ),
    "step3": ToolFormat(
        begins=("<｜tool_calls_begin｜>",),
        read=STEP3,
        asks=(("<｜tool_calls_begin｜>",),),
        inner=("<｜tool_calls_end｜>", "<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"),
    ),
    "longcat": ToolFormat(
        begins=("<longcat_tool_call>",),
        read=JsonSection("</longcat_tool_call>"),
        asks=(("<longcat_tool_call>",),),
        inner=("</longcat_tool_call>",),
    ),
    "seed": ToolFormat(
        begins=("<seed:tool_call>",), read=SEED, asks=(("<seed:tool_call>",),), inner=("</seed:tool_call>",)
    ),
    "minicpm": ToolFormat(begins=('<function name="',), read=MINICPM, asks=(('<function name="', "<param name="),)),
    "cohere": ToolFormat(
        begins=("<|START_ACTION|>",),
        read=JsonSection("<|END_ACTION|>"),
        asks=(("<|START_ACTION|>",),),
        inner=("<|END_ACTION|>",),
    ),
    "apertus": ToolFormat(
        begins=("<|tools_prefix|>",),
        read=JsonSection("<|tools_suffix|>", keyed=True),
        asks=(("<|tools_prefix|>",),),
        inner=("<|tools_suffix|>",),
    ),
    "nemotron": ToolFormat(
        begins=("<TOOLCALL>",), read=JsonSection("</TOOLCALL>"), asks=(("<TOOLCALL>",),), inner=("</TOOLCALL>",)
    ),
    "tool_calls": ToolFormat(
        begins=("<tool_calls>",), read=JsonSection("</tool_calls>"), asks=(("<tool_calls>",),), inner=("</tool_calls>",)
    ),
    "internlm2": ToolFormat(
        begins=("<|action_start|>",),
        read=JsonSection("<|action_end|>", head="<|plugin|>"),
        asks=(("<|action_start|>", "<|plugin|>"),),
        inner=("<|plugin|>", "<|action_end|>"),
    ),
    "phi4": ToolFormat(
        begins=("<|tool_call|>", "functools"),
        read=JsonSection("<|/tool_call|>"),
        asks=(("functools[",), ("<|/tool|>",)),
        inner=("<|/tool_call|>",),
    ),
    "granite": ToolFormat(begins=("<|tool_call|>",), read=JsonSection(), asks=(("<|tool_call|>",),)),
    "granite_20b": ToolFormat(begins=("<function_call>",), read=JsonSection(), asks=(("<function_call>",),)),
    "gigachat": ToolFormat(
        begins=("<|function_call|>", "function call<|role_sep|>"),
        read=JsonSection(),
        asks=(("function call", "<|role_sep|>"), ("<|function_call|>", "<|role_sep|>")),
        inner=("<|role_sep|>",),
    ),
    "gemma4": ToolFormat(
        begins=("<|tool_call>",),
        read=MarkedStrings("<tool_call|>", '<|"|>'),
        asks=(("<|tool_call>",),),
        inner=("<tool_call|>", '<|"|>'),
    ),
    "functiongemma": ToolFormat(
        begins=("<start_function_call>",),
        read=MarkedStrings("<end_function_call>", "<escape>"),
        asks=(("<start_function_call>",),),
        inner=("<end_function_call>", "<escape>"),
    ),
    "mistral": ToolFormat(
        begins=("[TOOL_CALLS]",),
        read=read_mistral,
        asks=(("[TOOL_CALLS]",),),
        inner=("[ARGS]", "[CALL_ID]"),
        short_ids=True,
    ),
    "glm": ToolFormat(
        begins=(BEGIN,),
        read=GLM,
        asks=((BEGIN, "<arg_key>"),),
        inner=(END, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "qwen3_coder": ToolFormat(
        begins=(BEGIN, "<function="),  # the model may leave out the first
        read=QWEN3_CODER,
        asks=((BEGIN, "<function="),),
        inner=(END,),
    ),
    "hermes": HERMES,
    "llama4": ToolFormat(
        begins=("<|python_start|>",),
        read=PythonList("<|python_end|>"),
        asks=(("<|python_start|>",), ("<|header_start|>",)),
        bare="[{",
        inner=("<|python_end|>",),
    ),
    "pythonic": ToolFormat(begins=(), read=PythonList(), asks=(("func_name1(",),), bare="[{"),
    "llama3": ToolFormat(
        begins=("<|python_tag|>",), read=read_objects, asks=(('"parameters"', "<|start_header_id|>"),), bare="{"
    ),
    "xlam": ToolFormat(begins=(), read=read_objects, asks=(("in a single JSON array",),), bare="[{"),
    "lfm2": ToolFormat(
        begins=("<|tool_call_start|>",),
        read=PythonList("<|tool_call_end|>"),
        asks=(("<|tool_call_start|>",), ("<|tool_list_start|>",), ("List of tools: [",)),
        inner=("<|tool_call_end|>",),
    ),
    "olmo3": ToolFormat(
        begins=("<function_calls>",),
        read=PythonLines("</function_calls>"),
        asks=(("<function_calls>",),),
        inner=("</function_calls>",),
    ),
    "functionary": ToolFormat(
        begins=("<function=",), read=Named(">", "</function>"), asks=(("<function=",),), inner=("</function>",)
    ),
}
