"""Method: one row of the table of methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from speculant.core.errors import UsageError
from speculant.core.references import load_object
from speculant.registry.rules import VERIFIERS
from speculant.registry.settings import find_name

if TYPE_CHECKING:
    from speculant.registry.builders import Builder


OWN = "a custom drafter"  # the family of drafters that are in no table


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A drafting method.

    Attributes:
        name: the name that users type.
        family: its place in the survey's taxonomy (Xia et al., arXiv 2401.07851, figure 3).
        summary: what it does, in one line.
        drafter: "module:class" of its drafter, imported on first use; "" for an object that the user passes.
        builder: constructs the drafter from its class and a `BuildContext`.
        settings: "module:class" of its settings dataclass, imported on first use, or the class itself; None if it has
            no settings.
        source: paper and arXiv id.
        memory: "module:object" of the MemoryKind of the memory that it can save; None if it cannot.
        replayable: whether it drafts without the target's logits, so that it can be measured on a recorded trace.
        corpus: the kind of corpus file it can start from: "trigram", "mix", "suffix", "sam", or None.
        exactness: "lossless" or "(lossy)"; the summary says how.
        verifier: the acceptance rule it uses by default.
        samples: how it draws siblings if the target samples: "iid" with replacement, "distinct" without, "mixed" with
            replacement next to chosen ones, "scored" with replacement and with q after every node; "either" with
            replacement if the acceptance rule compares probabilities, otherwise chosen; "by rule" with replacement if
            the rule takes such drafts, otherwise chosen; "" if it chooses them.
        several: whether it takes several draft models.
        heads: the kinds of trained heads that it drafts with; "*" for any, () for a method without a head.
        trainable: whether `speculant train` can train such heads; False if they are only published with their target.
        takes_draft_model: whether its drafter runs a draft model.
        drafts_text: whether its draft model may have any tokenizer, so that text is exchanged with it.
        takes_bases: whether its drafter takes frozen bases below its memory.
        takes_layers: whether its drafter runs some of the target's layers.
        takes_sublayers: whether it may also skip attention and MLP separately.
        takes_rows: whether its drafter runs the target on some rows of its cache.
        saves: whether a user's own drafter saves and loads a memory; those of the table have a `memory`.
        loads: whether a user's own drafter loads one; those of the table have a `memory` or a `corpus`.
        drafts: whether it drafts at all.
        distillable: whether its draft model or head may learn while it drafts.
        requires: description of what it needs besides the target; "" for nothing.
        presets: settings implied by a former name of the method.
    """

    name: str
    family: str
    summary: str
    drafter: str
    builder: Builder
    source: str
    settings: str | type[Any] | None = None
    memory: str | None = None
    replayable: bool = False
    corpus: str | None = None
    exactness: str = "lossless"
    verifier: str = "sample-then-follow"
    samples: Literal["", "iid", "distinct", "mixed", "scored", "either", "by rule"] = ""
    several: bool = False
    heads: tuple[str, ...] = ()
    trainable: bool = True
    takes_draft_model: bool = False
    drafts_text: bool = False
    takes_bases: bool = False
    takes_layers: bool = False
    takes_sublayers: bool = False
    takes_rows: bool = False
    saves: bool = False
    loads: bool = False
    drafts: bool = True
    distillable: bool = True
    requires: str = ""
    presets: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What it is called in messages about its settings."""
        return f"the method '{self.name}'"

    def check_draft_model(self, *, given: bool) -> None:
        """Check that a draft model is given if and only if its drafter needs one.

        Raises:
            UsageError: a draft model is missing, or given but not used.
        """
        if given and not self.takes_draft_model:
            raise UsageError(f"the method '{self.name}' takes no draft model; use the method 'draft-model'.")
        if self.takes_draft_model and not given:
            raise UsageError(
                f"the method '{self.name}' needs a draft model: pass draft_model=, or --draft-model in a command. "
                "Only the bundled model comes with one."
            )

    def check_several(self) -> None:
        """Check that it takes several draft models.

        Raises:
            UsageError: it does not.
        """
        if not self.several:
            raise UsageError(
                f"the method '{self.name}' takes one draft model; 'specinfer' and 'cs-drafting' take several."
            )

    def check_head(self, kind: str | None) -> None:
        """Check that a head of the right kind is given if and only if its drafter needs one.

        Args:
            kind: kind of the head; None if there is none.

        Raises:
            UsageError: a head is missing, of another kind, or given but not used.
        """
        if kind is None and self.heads:
            what, advice = "a trained head", " `speculant train` makes one."
            if not self.trainable:
                what, advice = self.requires, ""
            raise UsageError(f"the method '{self.name}' needs {what}: pass head=, or --head in a command.{advice}")
        if kind is not None and not self.heads:
            raise UsageError(f"the method '{self.name}' takes no head; leave out the method to use 'mix-head'.")
        if kind is not None and kind not in self.heads and "*" not in self.heads:
            raise UsageError(
                f"the method '{self.name}' drafts with heads of kind {' or '.join(self.heads)}, and this one "
                f"is of kind {kind}; leave out the method to use 'mix-head'."
            )

    @property
    def verifiers(self) -> tuple[str, ...]:
        """Names of the acceptance rules that can verify its drafts."""
        kinds = {"": {"chosen"}, "either": {"chosen"}, "mixed": {"chosen", "iid"}}
        needed = kinds.get(self.samples, {self.samples})
        if self.samples == "by rule":
            return tuple(rule.name for rule in VERIFIERS.values() if {"chosen", "iid"} & set(rule.drafts))
        return tuple(rule.name for rule in VERIFIERS.values() if needed <= set(rule.drafts))

    @property
    def keeps_memory(self) -> bool:
        """Whether its drafter keeps a memory that can be saved."""
        return self.saves or self.memory is not None

    @property
    def loads_memory(self) -> bool:
        """Whether its drafter can start from a memory file, whether or not it can save one."""
        return self.keeps_memory or self.loads or self.corpus is not None

    def settings_class(self) -> type[Any] | None:
        """Return the dataclass of its drafter's settings, or None if there are none."""
        found: type[Any] | None = load_object(self.settings) if isinstance(self.settings, str) else self.settings
        return found

    def read_settings(self, settings: Any) -> Any:
        """Return an instance of its settings class, given one or a dict of some settings; None for None.

        Raises:
            UsageError: it has no such settings.
        """
        if settings is None and not self.presets:
            return None
        own = self.settings_class()
        if own is None:
            raise UsageError(f"{self.title} has no settings.")
        if isinstance(settings, own):
            return settings
        if not isinstance(settings, Mapping | None):
            raise UsageError(
                f"settings of '{self.name}' must be a {own.__name__} or a dict, not {type(settings).__name__}."
            )
        known = {each.name: each.default for each in fields(own)}
        values = {find_name(self.title, known, name): value for name, value in (settings or {}).items()}
        return own(**{**self.presets, **values})
