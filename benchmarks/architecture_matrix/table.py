"""The table of architectures in the documentation, made of what was found."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_INTRODUCTION = """# Architectures

Which language models of transformers {transformers} Speculant verifies drafts on, and how. A model that is not listed,
or has another config, is probed before its first draft.

| drafts | architectures | |
|---|---|---|
| trees | {trees} | whole draft trees are verified in one pass |
| chains | {chains} | a draft is one path; the reason is in `stats.notes` |
| plain | {plain} | no drafts, one token per pass; `strict=True` refuses the model with the reason |
| not built | {missing} | could not be built here, or fail in their own `generate` at these sizes |

Classes that `AutoModelForCausalLM`, `AutoModelForImageTextToText` and `AutoModelForMultimodalLM` know were built with
tiny random weights (fp32, torch {torch}; windows, chunks and rotary limits scaled down with them). Texts with random
drafts were compared with those of `model.generate`: greedy and sampled, alone and in batches, with eager and sdpa
attention, multimodal classes with text alone. {texts} texts were compared, {wrong}.{unrun}

This page is generated: `python benchmarks/architectures.py --report -o docs/architectures.md`. Raw results are in
[architectures.json](../benchmarks/results/architectures.json).
"""

_OTHERS = """## Chains, plain, and not built

| architecture | class | drafts | reason |
|---|---|---|---|
"""


def table(results: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the page, in Markdown.

    Args:
        results: as `benchmarks/architectures.py` writes them.
        names: of all architectures; those without results are listed as not run.
    """
    found = results["architectures"]
    left = [name for name in names if name not in found]
    verdicts = Counter(each["verdict"] for each in found.values())
    wrong = sum(len(each["mismatches"]) for each in found.values())
    page = _INTRODUCTION.format(
        **results["versions"],
        texts=sum(each["comparisons"] for each in found.values()),
        wrong="all were equal" if not wrong else f"{wrong} differed",
        trees=verdicts["trees"],
        chains=verdicts["chains"],
        plain=verdicts["plain"],
        missing=verdicts["not built"],
        unrun=f" **{len(left)} have not been run yet**: {', '.join(left)}." if left else "",
    )
    takers = [name for name, each in sorted(found.items()) if each["verdict"] == "trees"]
    trees = textwrap.fill(f"{', '.join(takers)}.", 120, break_long_words=False, break_on_hyphens=False)
    others = [
        f"| {name} | {each['kind']} | {each['verdict']} | {_reason(each)} |"
        for name, each in sorted(found.items())
        if each["verdict"] != "trees" or each["mismatches"]
    ]
    return f"{page}\n## Trees\n\n{trees}\n\n{_OTHERS}" + "\n".join(others) + "\n"


def _reason(found: Mapping[str, Any]) -> str:
    """Return the reason without what the other columns say, as one cell."""
    reason = str(found["reason"]).replace("|", "\\|").replace("\n", " ").removeprefix(f"{found['kind']} ")
    reason = reason.removeprefix("cannot verify drafts: ").removeprefix("drafts are verified as chains: ")
    wrong = "; ".join(found["mismatches"])
    return f"{reason} **differs: {wrong}**" if wrong else reason
