"""The readers of calls between marks, for each family whose calls are sections or tags.

Kimi K3 writes tags as `<|open|>NAME ATTRIBUTES<|sep|>` and `<|close|>NAME<|sep|>`. The special tokens of Hunyuan have
a suffix that depends on the checkpoint, such as `:opensource`.
"""

from __future__ import annotations

import re

from speculant.serving.call_readers import Section, Tags, TagSection
from speculant.serving.hermes import END

DEEPSEEK = Section(
    "<｜tool▁calls▁end｜>",
    re.compile(
        r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?(?P<name>[^<\n]+)(?:\n```json\n|<｜tool▁sep｜>)"
        r"(?P<arguments>.*?)(?:\n```)?<｜tool▁call▁end｜>",
        re.DOTALL,
    ),
)
KIMI = Section(
    "<|tool_calls_section_end|>",
    re.compile(
        r"<\|tool_call_begin\|>\s*(?P<id>(?:functions\.)?(?P<name>[^\s:<]+):\d+)\s*<\|tool_call_argument_begin\|>"
        r"(?P<arguments>.*?)<\|tool_call_end\|>",
        re.DOTALL,
    ),
)
QWEN3_CODER = Tags(
    end=END,
    call=re.compile(r"\s*(?:<function=)?(?P<name>[^>\n]+)>(?P<arguments>.*)</function>\s*", re.DOTALL),
    argument=re.compile(r"<parameter=(?P<name>[^>\n]+)>(?P<value>.*?)</parameter>", re.DOTALL),
    opens="<parameter=",
    closes="</parameter>",
    framed=True,
    closed=True,
)
GLM = Tags(
    end=END,
    call=re.compile(r"\s*(?P<name>[^\s<{]+)\s*(?P<arguments>(?:<arg_key>.*)?)", re.DOTALL),
    argument=re.compile(r"<arg_key>(?P<name>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", re.DOTALL),
    opens="<arg_value>",
    closes="</arg_value>",
)
DEEPSEEK_V32 = TagSection(
    end=re.compile(r"</｜DSML｜(?:function|tool)_calls>"),  # V4 has the latter
    call=re.compile(r'<｜DSML｜invoke name="(?P<name>[^"\n]+)">(?P<arguments>.*?)</｜DSML｜invoke>', re.DOTALL),
    argument=re.compile(
        r'<｜DSML｜parameter name="(?P<name>[^"\n]+)"(?: string="(?P<kind>true|false)")?>(?P<value>.*?)'
        r"</｜DSML｜parameter>",
        re.DOTALL,
    ),
    opens="<｜DSML｜parameter ",
    closes="</｜DSML｜parameter>",
)
SEED = Tags(
    end="</seed:tool_call>",
    call=QWEN3_CODER.call,
    argument=QWEN3_CODER.argument,
    opens="<parameter=",
    closes="</parameter>",
    framed=True,
    closed=True,
)
MINICPM = Tags(
    end="</function>",
    call=re.compile(r'(?P<name>[^">\n]+)">(?P<arguments>.*)', re.DOTALL),
    argument=re.compile(r'<param name="(?P<name>[^"\n]+)">(?:<!\[CDATA\[)?(?P<value>.*?)(?:\]\]>)?</param>', re.DOTALL),
    opens="<param name=",
    closes="</param>",
)
MINIMAX = TagSection(
    end=re.compile("</minimax:tool_call>"),
    call=re.compile(r'<invoke name="(?P<name>[^"\n]+)">(?P<arguments>.*?)</invoke>', re.DOTALL),
    argument=re.compile(r'<parameter name="(?P<name>[^"\n]+)">(?P<value>.*?)</parameter>', re.DOTALL),
    opens="<parameter name=",
    closes="</parameter>",
)
SOLAR_OPEN = Section(
    "<|calls|>",
    re.compile(
        r"<\|tool_call:begin\|>(?P<id>[^<]*)<\|tool_call:name\|>(?P<name>[^<]+)<\|tool_call:args\|>"
        r"(?P<arguments>.*?)<\|tool_call:end\|>",
        re.DOTALL,
    ),
)
SOLAR_OPEN2 = Tags(
    end="<|tool_call:end|>",
    call=re.compile(r"\s*(?P<name>[^\n<]+)\n(?P<arguments>.*)", re.DOTALL),
    argument=re.compile(
        r"<\|tool_arg:start\|>(?P<name>.*?)<\|tool_arg:value\|>(?P<value>.*?)<\|tool_arg:end\|>", re.DOTALL
    ),
    opens="<|tool_arg:value|>",
    closes="<|tool_arg:end|>",
)
STEP3 = TagSection(
    end=re.compile("<｜tool_calls_end｜>"),
    call=re.compile(
        r'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="(?P<name>[^"\n]+)">(?P<arguments>.*?)'
        r"</steptml:invoke><｜tool_call_end｜>",
        re.DOTALL,
    ),
    argument=re.compile(r'<steptml:parameter name="(?P<name>[^"\n]+)">(?P<value>.*?)</steptml:parameter>', re.DOTALL),
    opens="<steptml:parameter name=",
    closes="</steptml:parameter>",
)
KIMI_K3 = TagSection(
    end=re.compile(r"<\|close\|>tools<\|sep\|>"),
    call=re.compile(
        r'<\|open\|>call tool="(?P<name>[^"\n]+)"[^<]*<\|sep\|>(?P<arguments>.*?)<\|close\|>call<\|sep\|>', re.DOTALL
    ),
    argument=re.compile(
        r'<\|open\|>argument key="(?P<name>[^"\n]+)"(?: type="(?P<kind>\w+)")?<\|sep\|>(?P<value>.*?)'
        r"<\|close\|>argument<\|sep\|>",
        re.DOTALL,
    ),
    opens="<|open|>argument ",
    closes="<|close|>argument<|sep|>",
    whole=re.compile(r'\s*<\|open\|>json type="object"<\|sep\|>(?P<value>.*)<\|close\|>json<\|sep\|>\s*', re.DOTALL),
    escaped=True,
)


def read_hunyuan(suffix: str) -> TagSection:
    """Return the reader for a checkpoint whose special tokens have this suffix."""
    end = re.escape(suffix)
    return TagSection(
        end=re.compile(f"</tool_calls{end}>"),
        call=re.compile(
            rf"<tool_call{end}>\s*(?P<name>[^<\s]+)(?:\s*<tool_sep{end}>)?\s*(?P<arguments>(?:<arg_key.*?)?)"
            rf"</tool_call{end}>",
            re.DOTALL,
        ),
        argument=re.compile(
            rf"<arg_key{end}>(?P<name>[^<]*)</arg_key{end}>\s*<arg_value{end}>(?P<value>.*?)</arg_value{end}>",
            re.DOTALL,
        ),
        opens=f"<arg_value{suffix}>",
        closes=f"</arg_value{suffix}>",
    )
