"""The table of architectures in the documentation, made of what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_INTRODUCTION = """# Architectures

Which language models of transformers {transformers} Speculant verifies drafts on, and how. Classes that
`AutoModelForCausalLM`, `AutoModelForImageTextToText` and `AutoModelForMultimodalLM` know were built with tiny random
weights (fp32, torch {torch}; windows, chunks and rotary limits scaled down with them, so that texts cross them), and
their drafted texts were compared with those of `model.generate`: greedy and sampled, alone and in batches, with eager
and sdpa attention, wherever the class has them, multimodal classes with text alone. Drafts were random trees of right
and wrong guesses.

{texts} texts were compared, {wrong}. {trees} architectures take trees, {chains} take chains, {plain} are decoded
plainly, and {missing} could not be built here, or fail in their own `generate` at these sizes.{unrun}

- **trees**: whole draft trees are verified in one pass.
- **chains**: a draft is one path; the reason is in `stats.notes`.
- **plain**: no drafts; one token a pass by transformers' own methods. The reason is in `stats.notes`, and `strict=True`
  refuses the model with it.

This page is generated: `python benchmarks/architectures.py -o docs/architectures.md`; the raw results are in
`benchmarks/results/architectures.json`. A model that is not listed, or has another config, is probed before its first
draft in the same way (`src/speculant/engines/hf/probe/probing.py`).

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
    lines = [
        f"| {name} | {each['kind']} | {each['verdict']} | {_reason(each)} |" for name, each in sorted(found.items())
    ]
    return page + "\n".join(lines) + "\n"


def _reason(found: Mapping[str, Any]) -> str:
    """Return the reason without what the other columns say, as one cell."""
    reason = str(found["reason"]).replace("|", "\\|").replace("\n", " ").removeprefix(f"{found['kind']} ")
    reason = reason.removeprefix("cannot verify drafts: ").removeprefix("drafts are verified as chains: ")
    wrong = "; ".join(found["mismatches"])
    return f"{reason} **differs: {wrong}**" if wrong else reason
