"""Answers as models of each family write them, in pieces of any size: reasoning, text and calls."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from speculant.api.detokenizer import Detokenizer
from speculant.core.errors import UsageError
from speculant.options.serving import REASONING_PARSERS, TOOL_PARSERS
from speculant.serving.answer_parser import find_formats, shown_marks
from speculant.serving.reasoning import REASONING_FORMATS
from speculant.serving.tool_formats import TOOL_FORMATS
from speculant.serving.tools import ToolCallParser
from vocabularies import byte_level
from written_calls import KIMI, ROME, as_json, parse


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
        ("hunyuan", "<think>Hm é.\n\nSo.</think>Hi <think>!", False),
        ("longcat", "<longcat_think>\nHm é.\n\nSo.\n</longcat_think>Hi <think>!", False),
        ("ernie", "<think>\nHm é.\n\nSo.\n</think>\n\n<response>\nHi <think>!</response>\n", False),
        ("solar_open", "<|think|>Hm é.\n\nSo.<|end|><|begin|>assistant<|content|>Hi <think>!<|end|>", False),
        (
            "kimi_k3",
            "Hm é.\n\nSo.<|close|>think<|sep|><|open|>response<|sep|>Hi <think>!<|close|>response<|sep|>",
            True,
        ),
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
        ("kimi_k3", "<|open|>response<|sep|>Hi<|close|>response", ("", "Hi<|close|>response", [])),
        ("ernie", "<response>\n", ("", "", [])),
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


def test_frames_stand_around_an_answer() -> None:
    """Guards marks that are ordinary text elsewhere: within a call and within the answer they stay."""
    call = (
        f'<tool_call>{{"name": "weather", "arguments": {as_json({"city": "<response> Rome</response>"})}}}</tool_call>'
    )
    text = f"<think>Hm.</think>\n<response>\nUse <response>x</response> here.</response>\n{call}"
    for size in (1, 2, 7, len(text)):
        found = parse("ernie", "hermes", text, size)
        assert found == (
            "Hm.",
            "Use <response>x</response> here.",
            [("weather", {"city": "<response> Rome</response>"})],
        )
    unseparated = find_formats("{{ tools }}<|open|><|close|><|sep|>", reasoning="none")
    assert not unseparated.reasons
    assert unseparated.framing is REASONING_FORMATS["kimi_k3"]


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
        ("{{ tools }}]<]minimax[>[<tool_call>", None, "minimax_m3"),
        ("{{ tools }}<|open|><|close|><|sep|>", "kimi_k3", "kimi_k3"),
        ("{{ tools }}<tool_calls><tool_call><arg_key></think>", "think", "hunyuan"),
        ("{{ tools }}<|tool_calls|><|tool_call:begin|><|think|><|content|>", "solar_open", "solar_open"),
        ("{{ tools }}<|tool_call:start|>", None, "solar_open2"),
        ("{{ tools }}<｜tool_calls_begin｜><think>", "think", "step3"),
        ("{{ tools }}<longcat_tool_call><longcat_think>", "longcat", "longcat"),
        ("{{ tools }}<tool_call></think><response>", "ernie", "hermes"),
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
    assert set(REASONING_PARSERS) == {*REASONING_FORMATS, "harmony", "response_template"}
    assert set(TOOL_PARSERS) == {*TOOL_FORMATS, "harmony", "response_template"}
    assert find_formats("{{ tools }}<|channel|><|message|>").harmony
    assert not find_formats("<think>", reasoning="none").reasons
    with pytest.raises(UsageError, match="do not go together"):
        find_formats("<|channel|><|message|>", tools="hermes")


def test_hunyuan_marks_have_the_suffix_of_the_checkpoint() -> None:
    """Guards Hunyuan: the special tokens of reasoning and calls end with what the template shows."""
    found = find_formats("{{ tools }}<think:x1><tool_calls:x1><tool_call:x1><arg_key:x1>")
    assert found.reasoning is not None
    assert found.tools is not None
    assert (found.reasoning.begin, found.reasoning.end) == ("<think:x1>", "</think:x1>")
    parser = ToolCallParser(found.tools)
    call = "<tool_call:x1>now<tool_sep:x1><arg_key:x1>a</arg_key:x1><arg_value:x1>1</arg_value:x1></tool_call:x1>"
    assert parser.push(f"Ok<tool_calls:x1>{call}</tool_calls:x1>")[0] == "Ok"
    assert parser.calls[0]["function"] == {"name": "now", "arguments": '{"a": 1}'}


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
