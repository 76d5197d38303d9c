"""The table of methods; the command line, the README and the docs print it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

from speculant.core.errors import ForeignMemoryError, UnknownMethodError, UnsupportedError, UsageError
from speculant.registry.rules import VERIFIERS, find_rule

if TYPE_CHECKING:  # numpy would make `speculant --help` wait
    from speculant.core.drafter import Drafter
    from speculant.core.verifier import Verifier
    from speculant.memory.kind import MemoryKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to draft.

    Attributes:
        name: what users type.
        family: where it stands in the survey's taxonomy (Xia et al., arXiv 2401.07851, figure 3).
        summary: what it does, in a line.
        drafter: "module:class" of its drafter, imported when it is used.
        memory: "module:object" of the MemoryKind of the memory that it can save; None if it cannot.
        replayable: whether it drafts without the target's logits, so that a recorded trace can measure it.
        corpus: the kind of corpus file it can begin with: "trigram", "mix", "suffix", or None.
        exactness: "lossless", or "(lossy)" with the reason.
        source: paper and arXiv id.
        verifier: the acceptance rule it uses if the user names none.
        samples: how it draws the tokens of one place where the target samples: "iid" with replacement, "distinct"
            without; "" if it chooses them.
    """

    name: str
    family: str
    summary: str
    drafter: str
    memory: str | None
    replayable: bool
    corpus: str | None
    exactness: str
    source: str
    verifier: str = "sample-then-follow"
    samples: Literal["", "iid", "distinct"] = ""

    def build(
        self,
        *,
        vocabulary: int = 0,
        tokenizer: str = "",
        memory_limit: int | None = None,
        settings: Any = None,
        open_cache: Any = None,
    ) -> Drafter:
        """Import and construct the drafter.

        Args:
            vocabulary: V of the target.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: bytes that its memory may take; None for the default.
            settings: an object of its settings' class, or a dict of some of them; None for the defaults.
            open_cache: opens caches of a draft model, see `DraftModelDrafter`.

        Raises:
            UsageError: the method needs a draft model, or takes no draft model or no such settings.
        """
        self.check_draft_model(given=open_cache is not None)
        kind, taken = _load(self.drafter), self._parameters()
        given = {
            "vocabulary": vocabulary,
            "tokenizer": tokenizer,
            "memory_limit": memory_limit,
            "settings": self._settings(kind, settings),
            "open_cache": open_cache,
        }
        drafter: Drafter = kind(**{name: value for name, value in given.items() if name in taken and value is not None})
        return drafter

    def check_draft_model(self, *, given: bool) -> None:
        """Check whether a draft model is given where its drafter needs one, and only there.

        Raises:
            UsageError: it is not.
        """
        if given and not self.takes_draft_model:
            raise UsageError(f"the method '{self.name}' takes no draft model; use the method 'draft-model'.")
        if self.takes_draft_model and not given:
            raise UsageError(
                f"the method '{self.name}' needs a draft model: pass draft_model=, or --draft-model in a command."
            )

    @property
    def verifiers(self) -> tuple[str, ...]:
        """The acceptance rules that it may use."""
        return tuple(rule.name for rule in VERIFIERS.values() if (self.samples or "chosen") in rule.drafts)

    @property
    def takes_draft_model(self) -> bool:
        """Whether its drafter runs a draft model."""
        return "open_cache" in self._parameters()

    def settings_class(self) -> type[Any] | None:
        """Return the dataclass of its drafter's settings, or None if there are none."""
        kind = _load(self.drafter)
        hints = get_type_hints(kind.__init__) if kind.__init__ is not object.__init__ else {}
        found = [each for each in get_args(hints.get("settings")) if each is not NoneType]
        return found[0] if found else None

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        kind = _load(self.drafter)
        return inspect.signature(kind.__init__).parameters if kind.__init__ is not object.__init__ else {}

    def _settings(self, kind: type[Any], settings: Any) -> Any:
        if settings is None:
            return None
        own = self.settings_class()
        if own is None:
            raise UsageError(f"the method '{self.name}' has no settings.")
        if isinstance(settings, own):
            return settings
        names = [each.name for each in fields(own)]
        if not isinstance(settings, Mapping):
            raise UsageError(
                f"settings of '{self.name}' are a {own.__name__} or a dict, not {type(settings).__name__}."
            )
        for name in settings:
            if name not in names:
                near = difflib.get_close_matches(str(name), names, n=1)
                hint = f"Did you mean '{near[0]}'?" if near else f"There are {', '.join(names)}."
                raise UsageError(f"the method '{self.name}' has no setting {name!r}. {hint}")
        return own(**settings)


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method(
                name="none",
                family="plain decoding",
                summary="no drafts: the same loop, one token a pass; the baseline",
                drafter="speculant.drafters.none:NoDrafter",
                memory=None,
                replayable=True,
                corpus=None,
                exactness="lossless",
                source="-",
            ),
            Method(
                name="mix",
                family="training-free, adaptive n-gram memory",
                summary="many contexts at once, mixed by their measured reliability; calibrated; the default",
                drafter="speculant.drafters.mix.drafter:MixDrafter",
                memory="speculant.drafters.mix.memory:MIX",
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
                memory="speculant.drafters.aded.memory:TRIGRAM",
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
                memory=None,
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
                memory=None,
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
                memory=None,
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
                memory="speculant.drafters.copying.memory:BIGRAM",
                replayable=True,
                corpus=None,
                exactness="lossless",
                source="Chen et al. 2024, arXiv 2312.11462",
            ),
            Method(
                name="recycling",
                family="training-free, recycled logits",
                summary="fixed tree over the target's own top 8 after each token it verified",
                drafter="speculant.drafters.recycling.drafter:RecyclingDrafter",
                memory="speculant.drafters.recycling.memory:RECYCLING",
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
                memory=None,
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
                memory="speculant.drafters.suffix.memory:SUFFIX_TREE",
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
                memory="speculant.drafters.suffix.memory:SUFFIX_AUTOMATON",
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
                memory="speculant.drafters.suffix.memory:SUFFIX_ARRAY",
                replayable=True,
                corpus="suffix",
                exactness="lossless",
                source="He et al. 2024, arXiv 2311.08252",
            ),
            Method(
                name="draft-model",
                family="independent drafting, smaller model",
                summary="a smaller model of the same vocabulary drafts a chain",
                drafter="speculant.drafters.models.draft_model:DraftModelDrafter",
                memory=None,
                replayable=False,
                corpus=None,
                exactness="lossless",
                source="Leviathan et al. 2023, arXiv 2211.17192, 2302.01318",
                verifier="speculative-sampling",
                samples="iid",
            ),
            Method(
                name="specinfer",
                family="independent drafting, smaller model",
                summary="so many siblings a level, drawn with replacement",
                drafter="speculant.drafters.models.draft_model:SpecInferDrafter",
                memory=None,
                replayable=False,
                corpus=None,
                exactness="lossless",
                source="Miao et al. 2024, arXiv 2305.09781",
                verifier="speculative-sampling",
                samples="iid",
            ),
            Method(
                name="mcsd",
                family="independent drafting, smaller model",
                summary="so many siblings a level, drawn without replacement",
                drafter="speculant.drafters.models.draft_model:MCSDDrafter",
                memory=None,
                replayable=False,
                corpus=None,
                exactness="lossless",
                source="Yang et al. 2024, arXiv 2401.06706",
                verifier="speculative-sampling",
                samples="distinct",
            ),
            Method(
                name="spectr",
                family="independent drafting, smaller model",
                summary="several independent sequences, verified by K-SEQ",
                drafter="speculant.drafters.models.draft_model:SpecTrDrafter",
                memory=None,
                replayable=False,
                corpus=None,
                exactness="lossless",
                source="Sun et al. 2023, arXiv 2310.15141",
                verifier="k-seq",
                samples="iid",
            ),
            Method(
                name="opt-tree",
                family="independent drafting, smaller model",
                summary="the most probable paths, level by level",
                drafter="speculant.drafters.models.draft_model:OptTreeDrafter",
                memory=None,
                replayable=False,
                corpus=None,
                exactness="lossless",
                source="Wang et al. 2025, arXiv 2406.17276",
            ),
        )
    }
)


def find_memory_kind(kind: str) -> MemoryKind:
    """Return the memory kind of that name, which is the `kind` in memory files.

    Raises:
        ForeignMemoryError: no method reads it.
    """
    for reference in dict.fromkeys(method.memory for method in METHODS.values() if method.memory is not None):
        found: MemoryKind = _load(reference)
        if found.name == kind:
            return found
    raise ForeignMemoryError(
        f"this version of Speculant has no method that reads memories of kind '{kind}'. "
        "Use the version that wrote the file."
    )


def methods_reading(kind: str) -> list[Method]:
    """Return the methods whose drafters load memory files of that kind, as a memory or as a corpus.

    Raises:
        ForeignMemoryError: none does.
    """
    found = find_memory_kind(kind)
    return [
        method
        for method in METHODS.values()
        if method.corpus == kind or (method.memory is not None and _load(method.memory) is found)
    ]


def find_method(name: str) -> Method:
    """Return the method of that name.

    Raises:
        UnknownMethodError: there is none; the message suggests the nearest name.
    """
    if isinstance(name, str) and name in METHODS:
        return METHODS[name]
    raise UnknownMethodError(
        f"there is no method {name!r}. {_nearest(name, METHODS)}`speculant methods` lists them: {', '.join(METHODS)}."
    )


def build_verifier(method: str, name: str | None = None, *, lossy: bool = False) -> Verifier:
    """Return an acceptance rule: the one of that name, see `find_rule`, or the method's own.

    Raises:
        UsageError: there is no such rule, or no such setting of it.
        UnsupportedError: the method's drafts cannot be verified by it, or it is lossy without consent.
    """
    check_verifier(method, name, lossy=lossy)
    rule, settings = find_rule(find_method(method).verifier if name is None else name, lossy=lossy)
    return rule.build(settings)


def check_verifier(method: str, name: str | None = None, *, lossy: bool = False) -> None:
    """Refuse an acceptance rule that the method's drafts cannot be verified by; raises as `build_verifier`."""
    found = find_method(method)
    rule, _ = find_rule(found.verifier if name is None else name, lossy=lossy)
    if rule.name not in found.verifiers:
        kind = {"": "chosen", "iid": "drawn with replacement", "distinct": "drawn without replacement"}[found.samples]
        raise UnsupportedError(
            f"drafts of the method '{method}' are {kind}, which the verifier '{rule.name}' does not take. "
            f"Use {', '.join(each for each in found.verifiers if not VERIFIERS[each].lossy)}."
        )


def _nearest(name: Any, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.4)
    return f"Did you mean '{near[0]}'? " if near else ""


def _load(place: str) -> Any:
    module, name = place.split(":")
    return getattr(import_module(module), name)
