"""The table of acceptance rules; the command line and the docs print it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.references import load_object
from speculant.registry.settings import read_texts, settings_of

if TYPE_CHECKING:  # torch would make `speculant --help` wait
    from speculant.core.verifier import Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An acceptance rule.

    Attributes:
        name: the name that users type.
        summary: what it does, in one line.
        verifier: "module:class" of the verifier, imported on first use; its settings are its fields.
        source: paper and arXiv id.
        drafts: the drafts that it takes: "chosen" tokens, tokens drawn with replacement ("iid") or without
            ("distinct"), or chains with q after every node ("scored").
        lossy: whether it changes the output.
    """

    name: str
    summary: str
    verifier: str
    source: str
    drafts: tuple[str, ...] = ("chosen", "iid", "distinct")
    lossy: bool = False

    def build(self, settings: str = "") -> Verifier:
        """Import and construct the verifier.

        Args:
            settings: settings in the form "epsilon=0.1,delta=0.2"; empty for the defaults.

        Raises:
            UsageError: there is no such setting, or its value has the wrong type or is out of range.
        """
        found: type[Verifier] = load_object(self.verifier)
        known = settings_of(found, infinite=True)  # an infinite threshold accepts everything
        return found(**read_texts(f"the verifier '{self.name}'", known, filter(None, settings.split(","))))


_THRESHOLDS = "speculant.verifiers.thresholds"

VERIFIERS: Mapping[str, Rule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Rule(
                name="sample-then-follow",
                summary="samples the target's token and follows it in the draft; token-identical with a seed, too",
                verifier="speculant.verifiers.sample_then_follow:SampleThenFollow",
                source="SpecExec: Svirschevski et al. 2024, arXiv 2406.02532",
                drafts=("chosen",),
            ),
            Rule(
                name="greedy",
                summary="follows the target's argmax; refuses requests that sample",
                verifier="speculant.verifiers.sample_then_follow:Greedy",
                source="Stern et al. 2018, arXiv 1811.03115",
            ),
            Rule(
                name="speculative-sampling",
                summary="min(1, p / q), then the residual; siblings are tested one after another",
                verifier="speculant.verifiers.speculative_sampling:SpeculativeSampling",
                source="Leviathan et al. 2023, arXiv 2211.17192; SpecInfer 2305.09781; Sequoia 2402.12374",
            ),
            Rule(
                name="k-seq",
                summary="candidates drawn with replacement, all tested against one scaled ratio",
                verifier="speculant.verifiers.k_seq:KSeq",
                source="SpecTr: Sun et al. 2023, arXiv 2310.15141",
                drafts=("iid",),
            ),
            Rule(
                name="block",
                summary="tests a chain from its end; accepts the most tokens that one chain allows",
                verifier="speculant.verifiers.block:BlockVerification",
                source="Sun et al. 2025, arXiv 2403.10444",
            ),
            Rule(
                name="traversal",
                summary="tests a tree from its leaves up",
                verifier="speculant.verifiers.traversal:TraversalVerification",
                source="Weng et al. 2025, arXiv 2505.12398",
            ),
            Rule(
                name="typical",
                summary="accepts p above min(epsilon, delta exp(-entropy))",
                verifier=f"{_THRESHOLDS}:TypicalAcceptance",
                source="Medusa: Cai et al. 2024, arXiv 2401.10774",
                lossy=True,
            ),
            Rule(
                name="nucleus",
                summary="follows a token drawn from the top-p part of p",
                verifier=f"{_THRESHOLDS}:Nucleus",
                source="Medusa: Cai et al. 2024, arXiv 2401.10774",
                lossy=True,
            ),
            Rule(
                name="top-beta",
                summary="accepts the top beta tokens whose log p is near the best",
                verifier=f"{_THRESHOLDS}:TopBeta",
                source="SpecDec: Xia et al. 2023, arXiv 2203.16487",
                lossy=True,
            ),
            Rule(
                name="blockwise",
                summary="accepts the top k, tokens within a distance of the best, or a minimum number",
                verifier=f"{_THRESHOLDS}:Blockwise",
                source="Stern et al. 2018, arXiv 1811.03115",
                lossy=True,
            ),
            Rule(
                name="rollback",
                summary="accepts up to the first token with -log p above a threshold",
                verifier=f"{_THRESHOLDS}:Rollback",
                source="BiLD: Kim et al. 2023, arXiv 2302.07863",
                lossy=True,
            ),
            Rule(
                name="contrastive",
                summary="speculative sampling of another distribution: the target's contrasted with the draft model's",
                verifier="speculant.verifiers.contrastive:ContrastiveDecoding",
                source="Yuan et al. 2024, arXiv 2311.08981",
                drafts=("scored",),
                lossy=True,
            ),
            Rule(
                name="lenience",
                summary="speculative sampling with q scaled down",
                verifier=f"{_THRESHOLDS}:Lenience",
                source="Leviathan et al. 2023, arXiv 2211.17192, appendix A.5",
                lossy=True,
            ),
        )
    }
)


def find_rule(name: str, *, lossy: bool = False) -> tuple[Rule, str]:
    """Return the rule of that name, and the settings that may follow the name ("typical:epsilon=0.1").

    Raises:
        UsageError: there is no such rule.
        UnsupportedError: the rule is lossy and `lossy` is not set.
    """
    base, _, settings = name.partition(":") if isinstance(name, str) else (name, "", "")
    if not isinstance(base, str) or base not in VERIFIERS:
        near = difflib.get_close_matches(str(base), VERIFIERS, n=1, cutoff=0.4)
        hint = f"Did you mean '{near[0]}'? " if near else ""
        raise UsageError(f"there is no verifier {base!r}. {hint}The verifiers are {', '.join(VERIFIERS)}.")
    if VERIFIERS[base].lossy and not lossy:
        raise UnsupportedError(
            f"the verifier '{base}' is lossy: the output would no longer be the target's. If that is wanted, pass "
            "lossy=True, or --lossy in a command."
        )
    return VERIFIERS[base], settings
