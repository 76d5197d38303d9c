"""What looks like a call of a tool but is none, in pieces of any size."""

from __future__ import annotations

import pytest

from written_calls import NS, C, O, S, parse


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
        ("minimax_m3", f'{NS}<tool_call>{NS}<invoke name="weather">{NS}<city>Rome'),
        ("minimax_m3", f"{NS}<tool_call>{NS}<city>Rome{NS}</city>{NS}</tool_call>."),
        (
            "minimax_m3",
            f'{NS}<tool_call>{NS}<invoke name="weather">{NS}<where>R{NS}<x>1{NS}</x>{NS}</where>{NS}</invoke>.',
        ),
        (
            "kimi_k3",
            f'{O}tools{S}{O}call tool="weather"{S}Rome{C}call{S}{C}tools{S}',
        ),
        (
            "kimi_k3",
            f'{O}tools{S}{O}call tool="weather"{S}{O}json type="object"{S}[1]{C}json{S}{C}call{S}{C}tools{S}',
        ),
        ("hunyuan", "<tool_calls><tool_call>weather<arg_key>city</arg_key></tool_call></tool_calls>"),
        ("hunyuan", "<tool_calls>none"),
        ("hunyuan", f"<tool_calls><tool_call>w{' ' * 3000}<arg_key>a</arg_key><arg_value>b"),
        ("minimax_m3", f'{NS}<tool_call>{NS}<invoke name="weather">' + f"{NS}<a>" * 99 + f"{NS}</a>" * 99),
        (
            "solar_open",
            "<|tool_calls|><|tool_call:begin|><|tool_call:name|>weather<|tool_call:args|>{x<|tool_call:end|>",
        ),
        ("solar_open2", "<|tool_call:start|>weather\nRome<|tool_call:end|>"),
        ("step3", "<｜tool_calls_begin｜>Rome<｜tool_calls_end｜>"),
        ("longcat", "<longcat_tool_call>Rome</longcat_tool_call>"),
        ("harmony", "no header"),
    ],
)
def test_what_is_no_call_stays_text(form: str, text: str) -> None:
    """Guards malformed and cut calls: nothing is lost."""
    for size in (1, 3, len(text)):
        assert parse("none", form, text, size) == ("", text, [])
