"""Methods that combine the drafts of several sources."""

from __future__ import annotations

from speculant.registry.builders import build_head_and_memory, build_head_and_memory_on_bases
from speculant.registry.method import Method

COMPOSITIONS = (
    Method(
        name="mix-head",
        family="composition, memory and feature head",
        summary="mix proposes, a trained head scores and extends; one tree, weights learned online",
        drafter="speculant.drafters.heads.memory_union:MixHeadDrafter",
        builder=build_head_and_memory_on_bases,
        settings="speculant.drafters.heads.memory_union:UnionHeadSettings",
        takes_bases=True,
        source="this project, after arXiv 2411.10666",
        memory="speculant.drafters.mix.memory:MIX",
        corpus="mix",
        heads=("*",),
        requires="a head trained for the target",
    ),
    Method(
        name="suffix-head",
        family="composition, memory and feature head",
        summary="like mix-head, with suffix instead of mix",
        drafter="speculant.drafters.heads.memory_union:SuffixHeadDrafter",
        builder=build_head_and_memory,
        settings="speculant.drafters.heads.memory_union:UnionHeadSettings",
        source="this project, after arXiv 2411.10666",
        memory="speculant.drafters.suffix.memory:SUFFIX_TREE",
        heads=("*",),
        requires="a head trained for the target",
    ),
    Method(
        name="sam-head",
        family="composition, memory and feature head",
        summary="continues long matches of suffix automata; where there is none, a trained head drafts",
        drafter="speculant.drafters.heads.switching:SamHeadDrafter",
        builder=build_head_and_memory,
        settings="speculant.drafters.heads.switching:SamHeadSettings",
        source="Hu et al. 2025, arXiv 2411.10666",
        memory="speculant.drafters.suffix.memory:SUFFIX_AUTOMATON",
        corpus="sam",
        heads=("*",),
        requires="a head trained for the target",
    ),
)
