"""Method: one row of the table of methods."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from speculant.core.errors import UsageError
from speculant.core.references import load_object
from speculant.registry.renamed import rename_setting
from speculant.registry.rules import VERIFIERS

if TYPE_CHECKING:
    from speculant.registry.builders import Builder


OWN = "a drafter of one's own"  # the family of what stands in no table


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to draft.

    Attributes:
        name: what users type.
        family: where it stands in the survey's taxonomy (Xia et al., arXiv 2401.07851, figure 3).
        summary: what it does, in a line.
        drafter: "module:class" of its drafter, imported when it is used; "" for an object of a user's own.
        builder: constructs the drafter from its class and a `BuildContext`.
        settings: "module:class" of its settings, a dataclass that is imported when it is used, or the class itself;
            None without settings.
        source: paper and arXiv id.
        memory: "module:object" of the MemoryKind of the memory that it can save; None if it cannot.
        replayable: whether it drafts without the target's logits, so that a recorded trace can measure it.
        corpus: the kind of corpus file it can begin with: "trigram", "mix", "suffix", "sam", or None.
        exactness: "lossless" or "(lossy)"; the summary says how.
        verifier: the acceptance rule it uses if the user names none.
        samples: how it draws the tokens of one place where the target samples: "iid" with replacement, "distinct"
            without, "mixed" with replacement beside chosen ones, "scored" with replacement and with q after every node;
            "either" with replacement where the acceptance rule compares probabilities and else chosen; "" if it chooses
            them.
        several: whether it takes several draft models.
        heads: the kinds of trained heads that it drafts with; "*" for any, () for a method without a head.
        trainable: whether `speculant train` makes such heads; False where they are published with their target alone.
        takes_draft_model: whether its drafter runs a draft model.
        drafts_text: whether its draft model has any tokenizer, and text is exchanged with it.
        takes_bases: whether its drafter begins with frozen bases under its memory.
        takes_layers: whether its drafter runs some of the target's layers.
        takes_rows: whether its drafter runs the target on some rows of its cache.
        saves: whether a drafter of a user's own saves and loads a memory; those of the table have a `memory`.
        drafts: whether it drafts at all.
        distillable: whether its draft model or head may learn while it drafts.
        requires: what it needs beside the target, in words; "" for nothing.
        presets: settings that an earlier name of it stands for.
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
    samples: Literal["", "iid", "distinct", "mixed", "scored", "either"] = ""
    several: bool = False
    heads: tuple[str, ...] = ()
    trainable: bool = True
    takes_draft_model: bool = False
    drafts_text: bool = False
    takes_bases: bool = False
    takes_layers: bool = False
    takes_rows: bool = False
    saves: bool = False
    drafts: bool = True
    distillable: bool = True
    requires: str = ""
    presets: Mapping[str, Any] = field(default_factory=dict)

    def check_draft_model(self, *, given: bool) -> None:
        """Check whether a draft model is given where its drafter needs one, and only there.

        Raises:
            UsageError: it is not.
        """
        if given and not self.takes_draft_model:
            raise UsageError(f"the method '{self.name}' takes no draft model; use the method 'draft-model'.")
        if self.takes_draft_model and not given:
            raise UsageError(
                f"the method '{self.name}' needs a draft model: pass draft_model=, or --draft-model in a command. "
                "Only the bundled model has one of its own."
            )

    def check_several(self) -> None:
        """Check whether it takes several draft models.

        Raises:
            UsageError: it does not.
        """
        if not self.several:
            raise UsageError(
                f"the method '{self.name}' takes one draft model; 'specinfer' and 'cs-drafting' take several."
            )

    def check_head(self, kind: str | None) -> None:
        """Check whether a head of the right kind is given where its drafter needs one, and only there.

        Raises:
            UsageError: it is not; `kind` is that of the head, None if there is none.
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
        """The acceptance rules that it may use."""
        kinds = {"": {"chosen"}, "either": {"chosen"}, "mixed": {"chosen", "iid"}}
        needed = kinds.get(self.samples, {self.samples})
        return tuple(rule.name for rule in VERIFIERS.values() if needed <= set(rule.drafts))

    @property
    def keeps_memory(self) -> bool:
        """Whether its drafter keeps a memory that can be saved."""
        return self.saves or self.memory is not None

    def settings_class(self) -> type[Any] | None:
        """Return the dataclass of its drafter's settings, or None if there are none."""
        found: type[Any] | None = load_object(self.settings) if isinstance(self.settings, str) else self.settings
        return found

    def read_settings(self, settings: Any) -> Any:
        """Return an object of its settings' class, from one or from a dict of some settings; None for None.

        Raises:
            UsageError: it has no such settings.
        """
        if settings is None and not self.presets:
            return None
        own = self.settings_class()
        if own is None:
            raise UsageError(f"the method '{self.name}' has no settings.")
        if isinstance(settings, own):
            return settings
        names = [each.name for each in fields(own)]
        if not isinstance(settings, Mapping | None):
            raise UsageError(
                f"settings of '{self.name}' are a {own.__name__} or a dict, not {type(settings).__name__}."
            )
        settings = {rename_setting(str(name), names): value for name, value in (settings or {}).items()}
        for name in settings:
            if name not in names:
                near = difflib.get_close_matches(str(name), names, n=1)
                hint = f"Did you mean '{near[0]}'?" if near else f"There are {', '.join(names)}."
                raise UsageError(f"the method '{self.name}' has no setting {name!r}. {hint}")
        return own(**{**self.presets, **settings})
