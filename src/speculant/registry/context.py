"""BuildContext: everything that a method's drafter may be built from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from speculant.core.byte_size import MEMORY_LIMIT

if TYPE_CHECKING:  # numpy and torch would make `speculant --help` wait
    from speculant.core.drafter import Drafter
    from speculant.drafters.heads.drafter import LoadedHead
    from speculant.drafters.mix.base import MixBase
    from speculant.drafters.models.draft_text import OpenCache
    from speculant.drafters.models.translation import Translation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BuildContext:
    """The inputs of a drafter; each method's builder takes those that its drafter needs.

    Attributes:
        vocabulary: V of the target.
        tokenizer: fingerprint of the target's tokenizer, to which saved memories are tied.
        memory_limit: maximum size of the drafter's memory in bytes.
        bases: frozen bases below the memory, for methods that take them.
        settings: an object of the method's settings class, or a dict of some settings; None for the defaults.
        open_cache: opens caches of the draft model, see `DraftModelDrafter`; a sequence for several draft models.
        translation: translates between the target's and the draft model's tokens, for methods that draft through text.
        layers: number of decoder layers of the target, if its passes can skip some; else 0.
        whole_layers: why only whole layers of the target can be skipped; "" if attention and MLP can be separately.
        whole_cache: why passes of the target must read their whole cache; "" if they can read part of it.
        head: a trained head on its target.
        sampled: whether the acceptance rule takes tokens drawn with replacement.
        build_inner: builds the drafter of another method by name, from the same context without a model, for methods
            whose draft model itself decodes with drafts; set by `build_drafter`.
        build_auxiliary: the same for methods that combine with another one that drafts for the target itself.
    """

    vocabulary: int = 0
    tokenizer: str = ""
    memory_limit: int = MEMORY_LIMIT
    bases: Sequence[MixBase] = ()
    settings: Any = None
    open_cache: OpenCache | Sequence[OpenCache] | None = None
    translation: Translation | None = None
    layers: int = 0
    whole_layers: str = ""
    whole_cache: str = ""
    head: LoadedHead | None = None
    sampled: bool = False
    build_inner: Callable[[str], Drafter] | None = None
    build_auxiliary: Callable[[str], Drafter] | None = None
