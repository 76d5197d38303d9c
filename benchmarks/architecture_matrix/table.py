"""The tables of architectures in the documentation, made of what was found."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL_NAMES

from architecture_matrix.sources import GROUPS, source_names

_INTRODUCTION = """# Architectures

Which language models of transformers {transformers} Speculant verifies drafts on, and how. A model that is not listed,
or has another config, is probed before its first draft.

| drafts | |
|---|---|
| trees | whole draft trees are verified in one pass |
| chains | a draft is one path; the reason is in `stats.notes` |
| plain | no drafts, one token per pass; `strict=True` refuses the model with the reason |
| not built | could not be built here, writes no text, or fails in its own `generate` at these sizes |

Every class that transformers' Auto classes for text know was built with tiny random weights (fp32, torch {torch};
windows, chunks and rotary limits scaled down with them), and its texts with random drafts were compared with those of
`model.generate`.

{summary}
{texts} texts were compared, {wrong}.{unrun}

This page is generated: `python benchmarks/architectures.py --report -o docs/architectures.md`. Raw results are in
[architectures.json](../benchmarks/results/architectures.json).

## Behind text

Classes that `AutoModelForCausalLM`, `AutoModelForImageTextToText` and `AutoModelForMultimodalLM` know, with text alone:
greedy and sampled, alone and in batches, with eager and sdpa attention.

"""
_SUMMARY = """| Auto class | prompts | classes | run | built here | trees | chains | plain | compared | different |
|---|---|---|---|---|---|---|---|---|---|
"""
_PROMPTS = {
    "AutoModelForCausalLM": "text",
    "AutoModelForImageTextToText": "text and an image",
    "AutoModelForMultimodalLM": "text and an image or sound",
    "AutoModelForSeq2SeqLM": "a text to encode",
    "AutoModelForSpeechSeq2Seq": "sound to encode",
}
_OTHERS = """| architecture | class | drafts | reason |
|---|---|---|---|
"""


def page(results: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the page, in Markdown.

    Args:
        results: as `benchmarks/architectures.py` writes them.
        names: of all architectures behind text; those without results are listed as not run.
    """
    text, sources = results["architectures"], results.get("sources", {})
    left = [name for name in names if name not in text]
    left += [
        f"{group}/{name}" for group in GROUPS for name in source_names(group) if name not in sources.get(group, {})
    ]
    every = [*text.values(), *(each for found in sources.values() for each in found.values())]
    wrong = sum(len(each["mismatches"]) for each in every)
    written = _INTRODUCTION.format(
        **results["versions"],
        summary=_SUMMARY + "".join(_summary(text, sources)),
        texts=sum(each["comparisons"] for each in every),
        wrong="all were equal" if not wrong else f"{wrong} differed",
        unrun=f" **{len(left)} classes have not been run yet**; `--missing` runs them." if left else "",
    )
    written += _section(text)
    for group, prompts in _PROMPTS.items():
        if found := sources.get(group):
            shared = "; classes of the Auto classes above are not listed again" if _shares(group) else ""
            written += f"\n## {group}\n\nBehind {prompts}, greedy and sampled{shared}.\n\n{_section(found)}"
    return written


def _shares(group: str) -> bool:
    """Return whether a group has classes that one before it has."""
    return len(source_names(group)) < len(GROUPS[group])


def _summary(text: Mapping[str, Any], sources: Mapping[str, Any]) -> Iterable[str]:
    """Yield a row for each Auto class, of all classes that it knows."""
    for group, prompts in _PROMPTS.items():
        if group in GROUPS:
            known = [(name, kind) for name, kind in GROUPS[group].items()]
            found = [_record(sources, group, name, kind) for name, kind in known]
        else:
            known = list(CAUSAL_NAMES.items())
            found = [text.get(name) for name, _ in known]
        run = [each for each in found if each is not None]
        verdicts = Counter(each["verdict"] for each in run)
        cells = [
            *(f"`{group}`", prompts, len(known), len(run), len(run) - verdicts["not built"]),
            *(verdicts[each] for each in ("trees", "chains", "plain")),
            *(sum(each["comparisons"] for each in run), sum(len(each["mismatches"]) for each in run)),
        ]
        yield f"| {' | '.join(str(each) for each in cells)} |\n"


def _record(sources: Mapping[str, Any], group: str, name: str, kind: str) -> Any:
    """Return what was found of a class, by this Auto class or by one before it that knows it, too."""
    for other in list(GROUPS)[: list(GROUPS).index(group) + 1]:
        if GROUPS[other].get(name) == kind and name in sources.get(other, {}):
            return sources[other][name]
    return None


def _section(found: Mapping[str, Any]) -> str:
    """Return the names of those that take trees, and the others with their reasons."""
    takers = [name for name, each in sorted(found.items()) if each["verdict"] == "trees"]
    trees = textwrap.fill(f"Trees: {', '.join(takers)}.", 120, break_long_words=False, break_on_hyphens=False)
    others = [
        f"| {name} | {each['kind']} | {each['verdict']} | {_reason(each)} |"
        for name, each in sorted(found.items())
        if each["verdict"] != "trees" or each["mismatches"]
    ]
    return f"{trees}\n\n{_OTHERS}" + "\n".join(others) + "\n" if others else f"{trees}\n"


def _reason(found: Mapping[str, Any]) -> str:
    """Return the reason without what the other columns say, as one cell."""
    reason = str(found["reason"]).replace("|", "\\|").replace("\n", " ").removeprefix(f"{found['kind']} ")
    reason = reason.removeprefix("cannot verify drafts: ").removeprefix("drafts are verified as chains: ")
    wrong = "; ".join(found["mismatches"])
    return f"{reason} **differs: {wrong}**" if wrong else reason
