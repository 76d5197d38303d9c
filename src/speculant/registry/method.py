"""Method: one row of the table of methods, and the drafter that is built from it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

from speculant.core.errors import UsageError
from speculant.registry.rules import VERIFIERS

if TYPE_CHECKING:  # numpy would make `speculant --help` wait
    from speculant.core.drafter import Drafter


OWN = "a drafter of one's own"  # the family of what stands in no table
_CHECKED = "speculant.drafters.checked:checked"
PUBLISHED = frozenset({"assistant", "pard"})  # kinds of heads that `speculant train` does not make


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to draft.

    Attributes:
        name: what users type.
        family: where it stands in the survey's taxonomy (Xia et al., arXiv 2401.07851, figure 3).
        summary: what it does, in a line.
        drafter: "module:class" of its drafter, imported when it is used; "" for an object of a user's own.
        source: paper and arXiv id.
        memory: "module:object" of the MemoryKind of the memory that it can save; None if it cannot.
        replayable: whether it drafts without the target's logits, so that a recorded trace can measure it.
        corpus: the kind of corpus file it can begin with: "trigram", "mix", "suffix", or None.
        exactness: "lossless" or "(lossy)"; the summary says how.
        verifier: the acceptance rule it uses if the user names none.
        samples: how it draws the tokens of one place where the target samples: "iid" with replacement, "distinct"
            without, "mixed" with replacement beside chosen ones, "scored" with replacement and with q after every node;
            "either" with replacement where the acceptance rule compares probabilities and else chosen; "" if it chooses
            them.
        several: whether it takes several draft models, and merges what they draft.
        heads: the kinds of trained heads that it drafts with; "*" for any, () for a method without a head.
        requires: what it needs beside the target, in words; "" for nothing.
    """

    name: str
    family: str
    summary: str
    drafter: str
    source: str
    memory: str | None = None
    replayable: bool = False
    corpus: str | None = None
    exactness: str = "lossless"
    verifier: str = "sample-then-follow"
    samples: Literal["", "iid", "distinct", "mixed", "scored", "either"] = ""
    several: bool = False
    heads: tuple[str, ...] = ()
    requires: str = ""

    def build(
        self,
        *,
        vocabulary: int = 0,
        tokenizer: str = "",
        memory_limit: int | None = None,
        bases: Sequence[Any] = (),
        settings: Any = None,
        open_cache: Any = None,
        layers: int = 0,
        whole_cache: str = "",
        translation: Any = None,
        head: Any = None,
        sampled: bool = False,
    ) -> Drafter:
        """Import and construct the drafter.

        Args:
            vocabulary: V of the target.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: bytes that its memory may take; None for the default.
            bases: what it knows beforehand, `drafters.mix.base.MixBase` each, for methods that take any.
            settings: an object of its settings' class, or a dict of some of them; None for the defaults.
            open_cache: opens caches of a draft model, see `DraftModelDrafter`.
            layers: decoder layers of the target, if its passes can leave some out; else 0.
            whole_cache: why passes of the target read their whole cache; "" where they can read a part.
            translation: between the target's and the draft model's tokens, for methods that draft through text.
            head: a trained head on its target, see `drafters.heads.drafter.LoadedHead`.
            sampled: whether the acceptance rule takes tokens drawn with replacement.

        Raises:
            UnsupportedError: the method leaves out layers of the target, or rows of its cache, which is not possible.
            UsageError: the method needs a draft model or a head, or takes none, not this kind or no such settings.
        """
        self.check_draft_model(given=open_cache is not None)
        self.check_head(None if head is None else head.kind)
        kind, taken = load_object(self.drafter), self._parameters()
        given = {
            "vocabulary": vocabulary,
            "tokenizer": tokenizer,
            "memory_limit": memory_limit,
            "bases": bases,
            "settings": self._settings(kind, settings),
            "open_cache": open_cache,
            "layers": layers,
            "whole_cache": whole_cache,
            "translation": translation,
            "head": head,
            "sampled": sampled,
        }
        taking = {name: value for name, value in given.items() if name in taken and value is not None}
        if self.family != OWN:
            drafter: Drafter = kind(**taking)
            return drafter
        for name, each in taken.items():
            if (
                each.default is each.empty
                and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
                and (name not in {"self", *taking})
            ):
                raise UsageError(
                    f"{self.name} needs {name!r} to be made, which is unknown here. Give it a default, or pass an "
                    "object in Python: drafter=."
                )
        own: Drafter = load_object(_CHECKED)(kind(**taking))
        return own

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
            raise UsageError(f"the method '{self.name}' takes one draft model; 'specinfer' takes several.")

    def check_head(self, kind: str | None) -> None:
        """Check whether a head of the right kind is given where its drafter needs one, and only there.

        Raises:
            UsageError: it is not; `kind` is that of the head, None if there is none.
        """
        if kind is None and self.heads:
            what, advice = "a trained head", " `speculant train` makes one."
            if set(self.heads) <= PUBLISHED:
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
        if self.family != OWN:
            return self.memory is not None
        kind = load_object(self.drafter)
        return hasattr(kind, "save") and hasattr(kind, "load")

    @property
    def takes_draft_model(self) -> bool:
        """Whether its drafter runs a draft model."""
        return "open_cache" in self._parameters()

    @property
    def takes_bases(self) -> bool:
        """Whether its drafter begins with frozen bases under its memory."""
        return "bases" in self._parameters()

    @property
    def takes_layers(self) -> bool:
        """Whether its drafter runs some of the target's layers."""
        return "layers" in self._parameters()

    @property
    def takes_rows(self) -> bool:
        """Whether its drafter runs the target on some rows of its cache."""
        return "whole_cache" in self._parameters()

    @property
    def drafts_text(self) -> bool:
        """Whether its drafter runs a draft model with any tokenizer and exchanges text with it."""
        return "translation" in self._parameters()

    def settings_class(self) -> type[Any] | None:
        """Return the dataclass of its drafter's settings, or None if there are none."""
        kind = load_object(self.drafter)
        hints = get_type_hints(kind.__init__) if kind.__init__ is not object.__init__ else {}
        found = [each for each in get_args(hints.get("settings")) if each is not NoneType]
        return found[0] if found else None

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        if not self.drafter:
            return {}
        kind = load_object(self.drafter)
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


def load_object(place: str) -> Any:
    """Import and return the object at "module:name"."""
    module, name = place.split(":")
    return getattr(import_module(module), name)
