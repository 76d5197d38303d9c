"""Answers as models of each family write them, in pieces of any size: reasoning, text and calls."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from speculant.api.detokenizer import Detokenizer
from speculant.core.errors import UsageError
from speculant.options.serving import REASONING_PARSERS, TOOL_PARSERS
from speculant.serving.answer_parser import AnswerParser, find_formats, shown_marks
from speculant.serving.harmony import HarmonyParser
from speculant.serving.reasoning import REASONING_FORMATS, ReasoningParser
from speculant.serving.tool_formats import TOOL_FORMATS
from speculant.serving.tools import ToolCallParser
from vocabularies import byte_level

STRING, NUMBER = {"type": "string"}, {"type": "integer"}
SCHEMAS: dict[str, Any] = {
    "weather": {"type": "object", "properties": {"city": STRING, "days": NUMBER, "where": {"type": "object"}}},
    "now": {"type": "object", "properties": {}},
}
ROME, OSLO = {"city": "Rom é 東"}, {"city": "Oslo", "days": 3}
KIMI = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
QUOTED = '<|"|>Rom é 東<|"|>'


def as_json(arguments: Any) -> str:
    """Return arguments in JSON."""
    return json.dumps(arguments, ensure_ascii=False)


def parse(reasoning: str, tools: str, text: str, size: int, *, begun: bool = False, **options: Any) -> Any:
    """Return reasoning, text and the functions called, of a text in pieces."""
    calls = ToolCallParser(TOOL_FORMATS.get(tools, TOOL_FORMATS["hermes"]), schemas=SCHEMAS, **options)
    parser: AnswerParser | HarmonyParser
    if tools == "harmony":
        parser = HarmonyParser(calls, reasons=reasoning != "none")
    else:
        thought = ReasoningParser(REASONING_FORMATS[reasoning], begun=begun) if reasoning != "none" else None
        parser = AnswerParser(thought, calls if tools != "none" else None)
    found = [parser.push(text[place : place + size]) for place in range(0, len(text), size)] + [parser.flush()]
    streamed = [delta for each in found for delta in each[2]]
    assert [delta["function"] for delta in streamed] == [call["function"] for call in parser.calls]
    functions = [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in parser.calls]
    return "".join(each[0] for each in found), "".join(each[1] for each in found), functions


CALLS = [
    (
        "hermes",
        f'Well. <tool_call>\n{{"name": "weather", "arguments": {as_json(ROME)}}}\n</tool_call>',
        "Well. ",
        [ROME],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nRom é 東\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "</function>\n</tool_call>",
        "\n",
        [ROME, OSLO],
    ),
    (
        "qwen3_coder",
        "<tool_call><function=weather><parameter=city>a\n</tool_call>\nb</parameter></function></tool_call>!",
        "!",
        [{"city": "a\n</tool_call>\nb"}],
    ),
    ("hermes", f'<tool_call>{{"name": "weather", "arguments": {as_json(ROME)}}}\n', "", [ROME]),
    (
        "qwen3_coder",
        "Ok\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
        "<function=weather>\n<parameter=city>\nRom é 東\n</parameter>\n</function>",
        "Ok\n\n",
        [{"city": "Oslo"}, ROME],
    ),
    (
        "glm",
        "Hm.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n"
        '<arg_value>3</arg_value>\n</tool_call><tool_call>weather<arg_key>where</arg_key><arg_value>{"a": [1]}'
        "</arg_value></tool_call>",
        "Hm.\n",
        [OSLO, {"where": {"a": [1]}}],
    ),
    ("mistral", f'Ja[TOOL_CALLS] [{{"name": "weather", "arguments": {as_json(OSLO)}}}]', "Ja", [OSLO]),
    (
        "mistral",
        f"[TOOL_CALLS]weather[ARGS]{as_json(ROME)}[TOOL_CALLS]weather[CALL_ID]abcDEF123[ARGS]{as_json(OSLO)}",
        "",
        [ROME, OSLO],
    ),
    (
        "deepseek",
        f"Ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{as_json(ROME)}\n```"
        f"<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{as_json(OSLO)}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Ok",
        [ROME, OSLO],
    ),
    (
        "deepseek",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{as_json(ROME)}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>Bye",
        "Bye",
        [ROME],
    ),
    (
        "deepseek_v32",
        'Ok<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">'
        'Rom é 東</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "Ok",
        [ROME, OSLO],
    ),
    (
        "deepseek_v32",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">3\n'
        '</｜DSML｜function_calls></｜DSML｜parameter>\n<｜DSML｜parameter name="where" string="false">{"a": [true]}'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>Bye",
        "Bye",
        [{"city": "3\n</｜DSML｜function_calls>", "where": {"a": [True]}}],
    ),
    (
        "minimax",
        'Ok.\n<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Rom é 東</parameter>\n</invoke>\n'
        '<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n<parameter name="days">3</parameter>\n'
        "</invoke>\n</minimax:tool_call>",
        "Ok.\n",
        [ROME, OSLO],
    ),
    (
        "minimax",
        '<minimax:tool_call><invoke name="weather"><parameter name="city">a\n</minimax:tool_call>\n</parameter>'
        '<parameter name="where">{"a": [1]}</parameter></invoke></minimax:tool_call>!',
        "!",
        [{"city": "a\n</minimax:tool_call>\n", "where": {"a": [1]}}],
    ),
    (
        "kimi",
        "<|tool_calls_section_begin|>"
        + KIMI.format("weather", 0, as_json(ROME))
        + KIMI.format("weather", 1, as_json(OSLO))
        + "<|tool_calls_section_end|>",
        "",
        [ROME, OSLO],
    ),
    ("llama3", f'<|python_tag|>{{"name": "weather", "parameters": {as_json(ROME)}}}', "", [ROME]),
    (
        "llama3",
        f'{{"name": "weather", "parameters": {as_json(ROME)}}}; {{"name": "weather", "parameters": {as_json(OSLO)}}}',
        "",
        [ROME, OSLO],
    ),
    (
        "llama4",
        "<|python_start|>[weather(city='Rom é 東'), weather(city=\"Oslo\", days=3)]<|python_end|>",
        "",
        [ROME, OSLO],
    ),
    (
        "llama4",
        "[weather(where={'a': [true, None, -1.5]}, city=']')]",
        "",
        [{"where": {"a": [True, None, -1.5]}, "city": "]"}],
    ),
    ("llama4", f'{{"name": "weather", "parameters": {as_json(OSLO)}}}', "", [OSLO]),
    (
        "gemma4",
        f"Ok <|tool_call>call:weather{{city:{QUOTED}}}<tool_call|>"
        '<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>',
        "Ok ",
        [ROME, OSLO],
    ),
    (
        "gemma4",
        '<|tool_call>:weather{where:{a:[<|"|>{x:"1"}<|"|>,true,word],b:null}}<tool_call|>',
        "",
        [{"where": {"a": ['{x:"1"}', True, "word"], "b": None}}],
    ),
    (
        "functiongemma",
        "<start_function_call>call:weather{city:<escape>Rom é 東<escape>}<end_function_call>",
        "",
        [ROME],
    ),
    (
        "seed",
        "Ok<seed:tool_call>\n<function=weather>\n<parameter=city>Rom é 東</parameter>\n</function>\n</seed:tool_call>\n"
        "<seed:tool_call><function=weather><parameter=city>\nOslo\n</parameter><parameter=days>3</parameter>"
        "<parameter=where>{'a': [True, None]}</parameter></function></seed:tool_call>",
        "Ok\n",
        [ROME, OSLO | {"where": {"a": [True, None]}}],
    ),
    (
        "minicpm",
        'Ok<function name="weather"><param name="city">Rom é 東</param></function>'
        '<function name="weather"><param name="city"><![CDATA[a</function>b]]></param></function>',
        "Ok",
        [ROME, {"city": "a</function>b"}],
    ),
    (
        "cohere",
        f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "weather", "parameters": {as_json(ROME)}}},\n'
        f'    {{"tool_call_id": "1", "tool_name": "weather", "parameters": {as_json(OSLO)}}}\n]<|END_ACTION|>!',
        "!",
        [ROME, OSLO],
    ),
    ("apertus", f'Ok<|tools_prefix|>[{{"weather": {as_json(ROME)}}}]<|tools_suffix|>', "Ok", [ROME]),
    (
        "nemotron",
        f'<TOOLCALL>[{{"name": "weather", "arguments": {as_json(OSLO | {"city": "a</TOOLCALL>]"})}}}]</TOOLCALL> Ok',
        " Ok",
        [OSLO | {"city": "a</TOOLCALL>]"}],
    ),
    (
        "tool_calls",
        f'Ok\n<tool_calls>\n{{"name": "weather", "arguments": {as_json(ROME)}}}\n'
        f'{{"name": "weather", "arguments": {as_json(OSLO)}}}\n</tool_calls>',
        "Ok\n",
        [ROME, OSLO],
    ),
    ("tool_calls", f'<tool_calls>[{{"name": "weather", "arguments": {as_json(ROME)}}}]</tool_calls>', "", [ROME]),
    ("tool_calls", f'<tool_calls>[{{"name": "weather", "arguments": {as_json(ROME)}}}]', "", [ROME]),
    (
        "internlm2",
        f'Ok<|action_start|><|plugin|>\n{{"name": "weather", "parameters": {as_json(ROME)}}}<|action_end|>',
        "Ok",
        [ROME],
    ),
    ("phi4", f'<|tool_call|>[{{"name": "weather", "arguments": {as_json(ROME)}}}]<|/tool_call|>', "", [ROME]),
    (
        "phi4",
        f'I use functools here. functools[{{"name": "weather", "arguments": {as_json(ROME)}}}]',
        "I use functools here. ",
        [ROME],
    ),
    ("granite", f'<|tool_call|> [{{"name": "weather", "arguments": {as_json(ROME)}}}] Ok', " Ok", [ROME]),
    (
        "granite_20b",
        f'<function_call> {{"name": "weather", "arguments": {as_json(ROME)}}}\n'
        f'<function_call> {{"name": "weather", "arguments": {as_json(OSLO)}}}',
        "\n",
        [ROME, OSLO],
    ),
    (
        "gigachat",
        f'Ok<|function_call|>{{"name": "weather", "arguments": {as_json(ROME)}}}function call<|role_sep|>\n'
        f'{{"name": "weather", "arguments": {as_json(OSLO)}}}',
        "Ok",
        [ROME, OSLO],
    ),
    ("pythonic", "[weather(city='Rom é 東'), weather(city='Oslo', days=3)]", "", [ROME, OSLO]),
    (
        "lfm2",
        "Ok<|tool_call_start|>[weather(city='Rom\n', where={\"a\": [true, null]})]<|tool_call_end|>!",
        "Ok!",
        [{"city": "Rom\n", "where": {"a": [True, None]}}],
    ),
    (
        "lfm2",
        f'<|tool_call_start|>[{{"name": "weather", "arguments": {as_json(ROME)}}}]<|tool_call_end|>',
        "",
        [ROME],
    ),
    (
        "olmo3",
        "Ok<function_calls>\nweather(city='Rom é 東')\n weather(city=\"Oslo\", days=3)\n</function_calls>",
        "Ok",
        [ROME, OSLO],
    ),
    (
        "xlam",
        f'[{{"name": "weather", "arguments": {as_json(ROME)}}}, {{"name": "weather", "arguments": {as_json(OSLO)}}}]',
        "",
        [ROME, OSLO],
    ),
    (
        "functionary",
        f"Ok<function=weather>{as_json({'city': '</function>'})}</function>"
        f"<function=weather>{as_json(OSLO)}</function>",
        "Ok",
        [{"city": "</function>"}, OSLO],
    ),
    ("mistral", f'[TOOL_CALLS]{{"name": "weather", "arguments": {as_json(ROME)}}}', "", [ROME]),
    (
        "glm",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>\na\n</arg_value></tool_call>",
        "",
        [{"city": "\na\n"}],
    ),
    (
        "functiongemma",
        "<start_function_call>call:weather{city:<escape>Oslo<escape>,days:<escape>3<escape>}<end_function_call>",
        "",
        [OSLO],
    ),
    (
        "harmony",
        f"<|channel|>commentary<|message|>First.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        f"<|constrain|>json<|message|>{as_json(ROME)}<|call|>",
        "First.",
        [ROME],
    ),
    (
        "harmony",
        f" to=functions.weather<|channel|>commentary json<|message|>{as_json(OSLO)}<|call|>",
        "",
        [OSLO],
    ),
]


@pytest.mark.parametrize(("form", "text", "content", "arguments"), CALLS)
def test_calls(form: str, text: str, content: str, arguments: list[Any]) -> None:
    """Guards calls of each format, several and with text around them, cut at every character."""
    for size in (1, 2, 3, 7, len(text)):
        found = parse("none", form, text, size)
        assert found == ("", content, [("weather", each) for each in arguments]), size


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("qwen3_coder", "<tool_call>\nno tags\n</tool_call>."),
        ("qwen3_coder", "<tool_call><function=weather><parameter=city>Rome"),
        ("qwen3_coder", "<function=weather><parameter=city>Rome</parameter>"),
        ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Ro'),
        ("hermes", "<tool_call>"),
        ("glm", "<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"),
        ("glm", "<tool_call>weather<arg_key>city</arg_key>Rome</tool_call>"),
        ("mistral", "[TOOL_CALLS] [{1}]"),
        ("mistral", "[TOOL_CALLS]weather[ARGS]{"),
        (
            "deepseek",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{x<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        ("deepseek_v32", "<｜DSML｜function_calls>weather</｜DSML｜function_calls>"),
        (
            "deepseek_v32",
            '<｜DSML｜function_calls><｜DSML｜invoke name="weather">Rome</｜DSML｜invoke></｜DSML｜function_calls>',
        ),
        ("minimax", '<minimax:tool_call><invoke name="weather"><parameter name="city">Rome'),
        ("minimax", "<minimax:tool_call>{}</minimax:tool_call> and more"),
        ("kimi", "<|tool_calls_section_begin|>weather<|tool_calls_section_end|>"),
        ("llama3", '{"name": "other", "parameters": {}} and more'),
        ("llama3", '{"answer": 42}'),
        ("llama3", "{ is a brace"),
        ("llama4", "[1, 2] are numbers"),
        ("llama4", "[weather(city=1 +"),
        ("llama4", "[other(city=1)]"),
        ("llama4", "[weather(city=f())]"),
        ("gemma4", "<|tool_call>call:weather{city<tool_call|>"),
        ("gemma4", "<|tool_call>weather{}<tool_call|>"),
        ("seed", "<seed:tool_call><function=weather><parameter=city>Rome"),
        ("minicpm", '<function name="weather">Rome</function>'),
        ("cohere", "<|START_ACTION|>[]<|END_ACTION|>"),
        ("cohere", "<|START_ACTION|>none<|END_ACTION|>"),
        ("apertus", '<|tools_prefix|>[{"other": {}}]<|tools_suffix|>'),
        ("apertus", '<|tools_prefix|>[{"weather": {}, "now": {}}]<|tools_suffix|>'),
        ("nemotron", '<TOOLCALL>[{"name": "weather", "argum'),
        ("tool_calls", "<tool_calls>[{x}]</tool_calls> and more"),
        ("tool_calls", "<tool_calls>"),
        ("internlm2", "<|action_start|><|interpreter|>1 + 1<|action_end|>"),
        ("internlm2", "<|action_start|><|plug"),
        ("phi4", "functools"),
        ("phi4", "functools.partial(f)[0]"),
        ("granite", "<|tool_call|>"),
        ("granite_20b", "<function_call> none"),
        ("gigachat", "<|function_call|>[1]"),
        ("pythonic", "[1, 2] are numbers"),
        ("pythonic", "["),
        ("pythonic", "[ "),
        ("lfm2", "<|tool_call_start|>[other()]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[weather(city='Ro"),
        ("olmo3", "<function_calls>\nx = 1\n</function_calls>"),
        ("olmo3", "<function_calls>\nweather(\n</function_calls>"),
        ("xlam", "[]"),
        ("xlam", '[{"name": "other", "arguments": {}}]'),
        ("functionary", "<function=weather>{x}</function>"),
        ("functionary", "<function=weather>[1]</function>"),
        ("functionary", "<function=weather"),
        ("harmony", "no header"),
    ],
)
def test_what_is_no_call_stays_text(form: str, text: str) -> None:
    """Guards malformed and cut calls: nothing is lost."""
    for size in (1, 3, len(text)):
        assert parse("none", form, text, size) == ("", text, [])


def test_a_malformed_call_on_a_channel_is_text() -> None:
    """Guards harmony: arguments that are no JSON stay text with their header."""
    text = "<|channel|>commentary to=functions.weather<|message|>{x<|call|>"
    assert parse("think", "harmony", text, 1) == ("", text.removesuffix("<|call|>"), [])


@pytest.mark.parametrize(
    ("form", "text", "begun"),
    [
        ("think", "<think>\nHm é.\n\nSo.\n</think>\n\nHi <think>!", False),
        ("think", "Hm é.\n\nSo.\n</think>\n\nHi <think>!", True),
        ("mistral", "[THINK]Hm é.\n\nSo.[/THINK]Hi <think>!", False),
        ("gemma4", "<|channel>thought\nHm é.\n\nSo.<channel|>Hi <think>!", False),
        ("gemma4", "<|channel>Hm é.\n\nSo.<channel|>Hi <think>!", False),
        ("kimi", "◁think▷Hm é.\n\nSo.◁/think▷Hi <think>!", False),
        ("seed", "<seed:think>Hm é.\n\nSo.</seed:think>Hi <think>!", False),
        ("cohere", "<|START_THINKING|>Hm é.\n\nSo.<|END_THINKING|>Hi <think>!", False),
        ("apertus", "<|inner_prefix|>Hm é.\n\nSo.<|inner_suffix|>Hi <think>!", False),
        ("apriel", "Hm é.\n\nSo.\n[BEGIN FINAL RESPONSE]\nHi <think>!", True),
    ],
)
def test_reasoning(form: str, text: str, begun: bool) -> None:
    """Guards reasoning at every cut: apart from the text, without marks and the space around it."""
    for size in range(1, len(text) + 1):
        assert parse(form, "none", text, size, begun=begun) == ("Hm é.\n\nSo.", "Hi <think>!", [])


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("think", "Hi <think>x</think>", ("", "Hi <think>x</think>", [])),
        ("think", "<thi", ("", "<thi", [])),
        ("think", " <think>Cut off </thin", ("Cut off </thin", "", [])),
        ("think", "<think>\n\n</think>\n\nHi", ("", "Hi", [])),
        ("gemma4", "<|channel>thought\n<channel|>Hi", ("", "Hi", [])),
        ("gemma4", "<|channel>thoughtful<channel|>Hi", ("thoughtful", "Hi", [])),
        ("think", "", ("", "", [])),
    ],
)
def test_reasoning_at_its_edges(form: str, text: str, expected: Any) -> None:
    """Guards answers without reasoning, with none in it, and cut within it or within a mark."""
    for size in (1, 2, 5, 99):
        assert parse(form, "none", text, size) == expected


def test_reasoning_before_calls() -> None:
    """Guards both together, at every cut; a call that is only thought of is none."""
    call = f'<tool_call>\n{{"name": "weather", "arguments": {as_json(ROME)}}}\n</tool_call>'
    text = f"<think>\nMaybe {call}\n</think>\n\nWell. {call}"
    harmony = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi!<|end|><|start|>assistant"
        f"<|channel|>commentary to=functions.weather<|constrain|>json<|message|>{as_json(ROME)}<|call|>"
    )
    for size in range(1, len(harmony) + 1):
        assert parse("think", "hermes", text, size) == (f"Maybe {call}", "Well. ", [("weather", ROME)])
        assert parse("think", "harmony", harmony, size) == ("Hm.", "Hi!", [("weather", ROME)])


def test_calls_beyond_the_limit_are_text() -> None:
    """Guards `parallel_tool_calls: false` and `allowed_tools` without a grammar."""
    call = "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>"
    assert parse("none", "glm", call + call, 5, limit=1) == ("", call, [("weather", {"city": "Oslo"})])
    assert parse("none", "glm", call, 5, allowed=frozenset(["now"])) == ("", call, [])


def test_ids_are_as_the_model_takes_them() -> None:
    """Guards the next turn: Kimi's own ids, and Mistral's of nine letters and digits."""
    kimi = ToolCallParser(TOOL_FORMATS["kimi"])
    kimi.push(f"<|tool_calls_section_begin|>{KIMI.format('now', 4, '{}')}<|tool_calls_section_end|>")
    mistral = ToolCallParser(TOOL_FORMATS["mistral"])
    mistral.push("[TOOL_CALLS]now[ARGS]{}")
    assert kimi.calls[0]["id"] == "functions.now:4"
    assert len(mistral.calls[0]["id"]) == 9


@pytest.mark.parametrize(
    ("template", "reasoning", "tools"),
    [
        ("{{ tools }}<tool_call><think>", "think", "hermes"),
        ("{{ tools }}<tool_call><function=x>", None, "qwen3_coder"),
        ("{{ tools }}<tool_call><arg_key><think>", "think", "glm"),
        ("{{ tools }}[TOOL_CALLS][THINK]", "mistral", "mistral"),
        ("{{ tools }}<｜tool▁calls▁begin｜><think>", "think", "deepseek"),
        ("{{ tools }}{% set mark = '｜DSML｜' %}<think>", "think", "deepseek_v32"),
        ("{{ tools }}<minimax:tool_call><think>", "think", "minimax"),
        ("{{ tools }}<|tool_calls_section_begin|>◁think▷", "kimi", "kimi"),
        ("{{ tools }}<|tool_call><|channel>", "gemma4", "gemma4"),
        ("{{ tools }}<start_function_call>", None, "functiongemma"),
        ('{{ tools }}<|start_header_id|>{"name": x, "parameters": y}', None, "llama3"),
        ("{{ tools }}<|header_start|><|python_start|>", None, "llama4"),
        ("{{ tools }}<|header_start|>", None, "llama4"),
        ("{{ tools }}<|start_header_id|>[func_name1(a=b)]", None, "pythonic"),
        ("{{ tools }}<seed:tool_call><function=x><seed:think>", "seed", "seed"),
        ("{{ tools }}<|START_ACTION|><|START_THINKING|>", "cohere", "cohere"),
        ("{{ tools }}<|tools_prefix|><|inner_prefix|>", "apertus", "apertus"),
        ("{{ tools }}<TOOLCALL><think>", "think", "nemotron"),
        ("{{ tools }}<tool_call><tool_calls>[BEGIN FINAL RESPONSE]", "apriel", "tool_calls"),
        ("{{ tools }}<|action_start|><|plugin|>", None, "internlm2"),
        ("{{ tools }} functools[", None, "phi4"),
        ("{{ tools }}<|tool|><|/tool|>", None, "phi4"),
        ("{{ tools }}<|tool_call|>", None, "granite"),
        ("{{ tools }}<function_call>", None, "granite_20b"),
        ("{{ tools }}function call<|role_sep|>", None, "gigachat"),
        ('{{ tools }}<function name="x"><param name="y">', None, "minicpm"),
        ("{{ tools }}List of tools: [", None, "lfm2"),
        ("{{ tools }}<function_calls>", None, "olmo3"),
        ("{{ tools }}in a single JSON array", None, "xlam"),
        ("{{ tools }}<function=x>", None, "functionary"),
        ("{{ tools }}]<]minimax[>[<tool_call>", None, None),
        ("{{ messages[0].content.split('</think>')[-1] }}", "think", None),
        ("<tool_call>", None, None),
        (None, None, None),
    ],
)
def test_formats_are_found_in_templates(template: str | None, reasoning: str | None, tools: str | None) -> None:
    """Guards `auto`."""
    found = find_formats(template)
    assert found.reasoning == (reasoning and REASONING_FORMATS[reasoning])
    assert found.tools == (tools and TOOL_FORMATS[tools])
    assert not found.harmony


def test_formats_by_name() -> None:
    """Guards the options: all names are known, and harmony goes with itself alone."""
    assert set(REASONING_PARSERS) == {*REASONING_FORMATS, "harmony"}
    assert set(TOOL_PARSERS) == {*TOOL_FORMATS, "harmony"}
    assert find_formats("{{ tools }}<|channel|><|message|>").harmony
    assert not find_formats("<think>", reasoning="none").reasons
    with pytest.raises(UsageError, match="do not go together"):
        find_formats("<|channel|><|message|>", tools="hermes")


def test_special_tokens_of_the_format_are_part_of_the_text() -> None:
    """Guards marks that are special tokens: shown in their place, while others stay out; formats ask for theirs."""
    tokenizer = copy.deepcopy(byte_level(384))
    tokenizer.add_tokens(["[THINK]", "[/THINK]", "[OTHER]"], special_tokens=True)
    tokenizer.add_tokens(["<think>"])
    marks = shown_marks(tokenizer, ("[THINK]", "[/THINK]", "<think>", "[MISSING]"))
    assert set(marks.values()) == {"[THINK]", "[/THINK]"}
    detokenizer, text = Detokenizer(tokenizer), "[THINK]Hm é 東[OTHER].[/THINK] Hi<think>[THINK]"
    detokenizer.marks = marks
    pieces = [detokenizer.push(token) for token in tokenizer(text)["input_ids"]]
    assert "".join(pieces) + detokenizer.flush() == text.replace("[OTHER]", "")
    mistral = find_formats("{{ tools }}[TOOL_CALLS][THINK]")
    assert set(mistral.marks(reasons=True, tools=False)) == {"[THINK]", "[/THINK]"}
    assert set(replace(mistral, reasoning=None).marks(reasons=True, tools=True)) == {
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
    }
