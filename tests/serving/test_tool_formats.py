"""Calls as models of each family write them, in pieces of any size."""

from __future__ import annotations

from typing import Any

import pytest

from written_calls import KIMI, NS, OSLO, ROME, C, O, S, as_json, parse

QUOTED = '<|"|>Rom é 東<|"|>'

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
        "minimax_m3",
        f'Ok{NS}<tool_call>\n{NS}<invoke name="weather">{NS}<city>Rom é 東{NS}</city>'
        f'{NS}</invoke>\n{NS}<invoke name="weather">{NS}<city></tool_call>{NS}</city>'
        f"{NS}<where>{NS}<x>1{NS}</x>{NS}<y>{NS}<item>a{NS}</item>"
        f"{NS}<item>2{NS}</item>{NS}</y>{NS}</where>{NS}</invoke>\n"
        f"{NS}</tool_call>",
        "Ok",
        [ROME, {"city": "</tool_call>", "where": {"x": 1, "y": ["a", 2]}}],
    ),
    (
        "minimax_m3",
        f'{NS}<tool_call>{NS}<invoke name="weather">{NS}<where>{NS}<item>pen{NS}</item>{NS}</where>{NS}</invoke>',
        "",
        [{"where": {"item": "pen"}}],
    ),
    (
        "minimax_m3",
        f'{NS}<tool_call>{NS}<invoke name="weather">{NS}<where>{NS}</where>{NS}</invoke>',
        "",
        [{"where": {}}],
    ),
    (
        "kimi_k3",
        f'Ok{O}tools{S}{O}call tool="weather" index="1"{S}{O}argument key="city" type="string"{S}'
        f'Rom é 東{C}argument{S}{C}call{S}{O}call tool="weather" index="2"{S}'
        f'{O}argument key="city" type="string"{S}Oslo{C}argument{S}{O}argument key="days" '
        f'type="number"{S}3{C}argument{S}{C}call{S}{C}tools{S}',
        "Ok",
        [ROME, OSLO],
    ),
    (
        "kimi_k3",
        f'{O}tools{S}{O}call tool="weather" index="1"{S}{O}json type="object"{S}{{"a &amp; b": 1}}'
        f'{C}json{S}{C}call{S}{O}call tool="weather" index="2"{S}'
        f'{O}argument key="a &amp; b" type="string"{S}1 &amp; 2{C}argument{S}{C}call{S}'
        f"{C}tools{S}",
        "",
        [{"a &amp; b": 1}, {"a & b": "1 &amp; 2"}],
    ),
    (
        "hunyuan",
        "Ok<tool_calls>\n<tool_call>weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Rom é 東</arg_value>\n"
        "</tool_call>\n<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key>"
        "<arg_value>3</arg_value></tool_call>\n</tool_calls>",
        "Ok",
        [ROME, OSLO],
    ),
    ("hunyuan", "<tool_calls><tool_call>weather<tool_sep></tool_call></tool_calls>", "", [{}]),
    (
        "solar_open",
        f"Ok<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>weather<|tool_call:args|>{as_json(ROME)}"
        f"<|tool_call:end|><|tool_call:begin|><|tool_call:name|>weather<|tool_call:args|>{as_json(OSLO)}"
        "<|tool_call:end|><|calls|>",
        "Ok",
        [ROME, OSLO],
    ),
    (
        "solar_open2",
        "Ok<|tool_call:start|>weather\n<|tool_arg:start|>city<|tool_arg:value|>Rom é 東<|tool_arg:end|>\n"
        "<|tool_call:end|><|tool_call:start|>weather\n<|tool_arg:start|>city<|tool_arg:value|>Oslo<|tool_arg:end|>"
        "<|tool_arg:start|>days<|tool_arg:value|>3<|tool_arg:end|><|tool_call:end|>",
        "Ok",
        [ROME, OSLO],
    ),
    (
        "step3",
        'Ok<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="weather">\n'
        '<steptml:parameter name="city">Oslo</steptml:parameter>\n<steptml:parameter name="days">3</steptml:parameter>'
        "</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>",
        "Ok",
        [OSLO],
    ),
    (
        "longcat",
        f'<longcat_tool_call>\n{{"name": "weather", "arguments": {as_json(ROME)}}}\n</longcat_tool_call>'
        f'<longcat_tool_call>\n{{"name": "weather", "arguments": {as_json(OSLO)}}}\n</longcat_tool_call>',
        "",
        [ROME, OSLO],
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
