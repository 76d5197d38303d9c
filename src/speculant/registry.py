"""The one table of methods; the command line, the README and the docs print it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from speculant.core.errors import UnknownMethodError

if TYPE_CHECKING:
    from speculant.core.drafter import Drafter


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to draft.

    Attributes:
        name: what users type.
        family: where it stands in the survey's taxonomy (Xia et al., arXiv 2401.07851, figure 3).
        summary: what it does, in a line.
        drafter: "module:class" of its drafter, imported when it is used.
        memory: whether it learns something that can be saved.
        replayable: whether it drafts without the target's logits, so that a recorded trace can measure it.
        corpus: the kind of corpus file it can begin with: "trigram", "mix", "suffix", or None.
        exactness: "lossless", or "(lossy)" with the reason.
        source: paper and arXiv id.
    """

    name: str
    family: str
    summary: str
    drafter: str
    memory: bool
    replayable: bool
    corpus: str | None
    exactness: str
    source: str

    def build(self, **options: Any) -> Drafter:
        """Import and construct the drafter with its keyword options."""
        module, name = self.drafter.split(":")
        drafter: Drafter = getattr(import_module(module), name)(**options)
        return drafter


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method(
                name="none",
                family="plain decoding",
                summary="no drafts: the same loop, one token a pass; the baseline",
                drafter="speculant.core.drafter:NoDrafter",
                memory=False,
                replayable=True,
                corpus=None,
                exactness="lossless",
                source="-",
            ),
            Method(
                name="mix",
                family="training-free, adaptive n-gram memory",
                summary="many contexts at once, mixed by what each has been worth; calibrated; the default",
                drafter="speculant.drafters.mix.drafter:MixDrafter",
                memory=True,
                replayable=True,
                corpus="mix",
                exactness="lossless",
                source="this project, after PPM, PAQ, arXiv 2408.08696",
            ),
            Method(
                name="aded",
                family="training-free, adaptive n-gram memory",
                summary="tri-gram table that adapts to the target, best-first tree; cheaper than mix",
                drafter="speculant.drafters.aded.drafter:AdedDrafter",
                memory=True,
                replayable=True,
                corpus="trigram",
                exactness="lossless",
                source="Liu et al. 2024, arXiv 2407.12021, improved",
            ),
            Method(
                name="aded-paper",
                family="training-free, adaptive n-gram memory",
                summary="ADED as published, constant by constant, for comparison",
                drafter="speculant.drafters.aded.drafter:AdedPaperDrafter",
                memory=False,
                replayable=True,
                corpus="trigram",
                exactness="lossless",
                source="Liu et al. 2024, arXiv 2407.12021",
            ),
            Method(
                name="lookup",
                family="training-free, retrieval from the context",
                summary="copies what followed the longest, most recent match of the last tokens",
                drafter="speculant.drafters.copying.lookup:LookupDrafter",
                memory=False,
                replayable=True,
                corpus=None,
                exactness="lossless",
                source="Yang et al. 2023, arXiv 2304.04487; Saxena 2023",
            ),
            Method(
                name="sad",
                family="training-free, retrieval from the context",
                summary="repeats the prompt from where the output stands in it; for corrections",
                drafter="speculant.drafters.copying.sad:SadDrafter",
                memory=False,
                replayable=True,
                corpus=None,
                exactness="lossless",
                source="Sun et al. 2021, arXiv 2106.04970",
            ),
            Method(
                name="maxgram",
                family="training-free, retrieval from the context",
                summary="copies behind the longest match, else follows learned bi-grams",
                drafter="speculant.drafters.copying.maxgram:MaxGramDrafter",
                memory=True,
                replayable=True,
                corpus=None,
                exactness="lossless",
                source="Chen et al. 2024, arXiv 2312.11462",
            ),
            Method(
                name="recycling",
                family="training-free, recycled logits",
                summary="fixed tree over the target's own top 8 after each token it checked",
                drafter="speculant.drafters.recycling:RecyclingDrafter",
                memory=True,
                replayable=False,
                corpus=None,
                exactness="lossless",
                source="Luo et al. 2025, arXiv 2408.08696",
            ),
            Method(
                name="logitspec",
                family="training-free, recycled logits",
                summary="the root's runners-up as guesses, each continued from the text",
                drafter="speculant.drafters.copying.logitspec:LogitSpecDrafter",
                memory=False,
                replayable=False,
                corpus=None,
                exactness="lossless",
                source="Liu et al. 2025, arXiv 2507.01449",
            ),
            Method(
                name="suffix",
                family="training-free, suffix index",
                summary="suffix trees over the request and past outputs, the most frequent continuations as a tree",
                drafter="speculant.drafters.suffix.drafter:SuffixDrafter",
                memory=True,
                replayable=True,
                corpus=None,
                exactness="lossless",
                source="Oliaro et al. 2025, arXiv 2411.04975",
            ),
            Method(
                name="sam",
                family="training-free, suffix index",
                summary="suffix automata over the request and past text, the continuation of the longest match",
                drafter="speculant.drafters.suffix.sam:SamDrafter",
                memory=True,
                replayable=True,
                corpus=None,
                exactness="lossless",
                source="Hu et al. 2025, arXiv 2411.10666",
            ),
            Method(
                name="rest",
                family="training-free, retrieval from a datastore",
                summary="what followed the longest match in a corpus or in past requests, as a tree",
                drafter="speculant.drafters.suffix.rest:RestDrafter",
                memory=True,
                replayable=True,
                corpus="suffix",
                exactness="lossless",
                source="He et al. 2024, arXiv 2311.08252",
            ),
        )
    }
)


def find_method(name: str) -> Method:
    """Return the method of that name.

    Raises:
        UnknownMethodError: there is none; the message suggests the nearest name.
    """
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(name, METHODS, n=1, cutoff=0.4)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    raise UnknownMethodError(
        f"there is no method '{name}'. {hint}`speculant methods` lists them: {', '.join(METHODS)}."
    )
