"""A request as its engine prepared it: what follows from the options, before any pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from speculant.core.engine import EngineArray
from speculant.core.sampler import GREEDY, Sampling


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedRequest:
    """The text to decode, how its tokens are chosen and when it ends.

    Attributes:
        ids: Int64[1, T], the prompt as processors and criteria see it.
        max_length: maximum number of tokens of the text, including the prompt.
        ends: ids of the tokens that end it.
        sampling: settings of the sampling, which `processors` apply, for drafters that sample.
        processors: take the text's ids and logits [1, V], and return the processed logits.
        criteria: take the ids and the kept logits after every token, and return whether the text ends.
        keeps_scores, keeps_logits: whether the processed and the raw logits of every token are kept.
        start: number of ids in front that are padding and not read by the target.
        padding: Int64[1, T], 0 at padding, or None.
        source_ids: Int64[1, S], what an encoder reads, if these are tokens that drafts may repeat; or None.
        chunk: maximum number of prompt tokens per pass; None for no limit.
        stop: strings that end the text, in addition to the user's.
        notes: messages for the user.
        model: the model that writes it; None for the engine's.
        own: the engine's own record of it.
    """

    ids: EngineArray
    max_length: int
    ends: frozenset[int] = frozenset()
    sampling: Sampling = GREEDY
    processors: Sequence[Callable[..., Any]] = ()
    criteria: Sequence[Callable[..., Any]] = ()
    keeps_scores: bool = False
    keeps_logits: bool = False
    start: int = 0
    padding: EngineArray = None
    source_ids: EngineArray = None
    chunk: int | None = None
    stop: Sequence[str] = ()
    notes: Sequence[str] = ()
    model: Any = None
    own: Any = None
