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
    """What a drafter may be built from; each method's builder takes what its drafter needs.

    Attributes:
        vocabulary: V of the target.
        tokenizer: fingerprint of the target's tokenizer, to which saved memories are tied.
        memory_limit: maximum size of the drafter's memory in bytes.
        bases: frozen bases below the memory, for methods that take them.
        settings: an object of the method's settings class, or a dict of some settings; None for the defaults.
        open_cache: opens caches of the draft model, see `DraftModelDrafter`; a sequence for several draft models.
        translation: between the target's and the draft model's tokens, for methods that draft through text.
        layers: decoder layers of the target, if its passes can leave some out; else 0.
        whole_cache: why passes of the target read their whole cache; "" where they can read a part.
        head: a trained head on its target.
        sampled: whether the acceptance rule takes tokens drawn with replacement.
        build_inner: builds the drafter of another method by its name, from the same context without a model; set by
            `build_drafter`, for methods that draft with another method.
        build_auxiliary: the same for methods beside which another one drafts for the target itself.
    """

    vocabulary: int = 0
    tokenizer: str = ""
    memory_limit: int = MEMORY_LIMIT
    bases: Sequence[MixBase] = ()
    settings: Any = None
    open_cache: OpenCache | Sequence[OpenCache] | None = None
    translation: Translation | None = None
    layers: int = 0
    whole_cache: str = ""
    head: LoadedHead | None = None
    sampled: bool = False
    build_inner: Callable[[str], Drafter] | None = None
    build_auxiliary: Callable[[str], Drafter] | None = None
