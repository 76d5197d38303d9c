"""A model answers prompts, over and over, until there are as many tokens as a base is to be made of.

Prompts come in an order of their own in each turn. Answers are sampled, so that a prompt that comes again is answered
otherwise; greedily decoded, all are asked once. Drafting is on, and what was answered drafts what is being answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from speculant.core.errors import PromptError
from speculant.corpus.answers import AnswerFile

if TYPE_CHECKING:
    from speculant.api.result import Generation
    from speculant.api.speculator import Speculator


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweringSettings:
    """How prompts are answered, and until when.

    Attributes:
        tokens: of all answers in the file; None for as many as come.
        seconds: of this run; None for any time.
        batch: requests decoded together.
        repeat: whether prompts come again, which is for sampled answers.
        seed: of the order of prompts; request i draws its answer with seed + i.
        options: of `Speculator.stream`, without a seed.
    """

    tokens: int | None
    seconds: float | None
    batch: int
    repeat: bool
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)


def answer_prompts(
    speculator: Speculator,
    prompts: Sequence[Sequence[int]],
    answers: AnswerFile,
    settings: AnsweringSettings,
    *,
    advance: Callable[[int], object],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Answer prompts and append what was answered, at the end or an interrupt also what was not finished.

    Args:
        speculator: answers.
        prompts: token ids.
        answers: takes the answers; the requests go on where it ends.
        settings: how, and until when.
        advance: takes how many more tokens were written.
        clock: returns seconds.

    Raises:
        FileError: the answers cannot be written.
        Exception: what a request failed with; the answers so far are kept.
    """
    end = None if settings.seconds is None else clock() + settings.seconds
    held, asked = answers.tokens, _requests(prompts, answers.place, settings)
    pending: dict[Generation, tuple[int, Sequence[int]]] = {}
    batch = speculator.batch(settings.batch)
    try:
        while settings.tokens is None or held < settings.tokens:
            if end is not None and clock() >= end:
                break
            while len(batch) < settings.batch and (request := next(asked, None)) is not None:
                place, ids = request
                generation = batch.add(list(ids), seed=settings.seed + place, **settings.options)
                pending[generation] = request
            if not len(batch):
                break
            for _, piece in batch.step():
                held += len(piece.tokens)
                advance(len(piece.tokens))
            for generation in [each for each in pending if each.done]:
                _append(answers, generation, *pending.pop(generation))
                if generation.error is not None:
                    raise generation.error
    finally:
        for generation, request in pending.items():
            _append(answers, generation, *request)
        batch.close()


def fitting_prompts(prompts: Sequence[Sequence[int]], positions: int | None) -> list[Sequence[int]]:
    """Return the prompts that leave room for an answer.

    Args:
        prompts: token ids.
        positions: of the model; None if they are not bounded.

    Raises:
        PromptError: none does.
    """
    fitting = [ids for ids in prompts if len(ids) and (positions is None or 2 * len(ids) <= positions)]
    if not fitting:
        raise PromptError("every prompt is empty or takes more than half of the model's positions. Give shorter ones.")
    return fitting


def _append(answers: AnswerFile, generation: Generation, place: int, prompt: Sequence[int]) -> None:
    if generation.result.ids:
        answers.append(prompt, generation.result.ids, place=place)


def _requests(
    prompts: Sequence[Sequence[int]], begin: int, settings: AnsweringSettings
) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield requests with their places, from one on: all prompts in a drawn order, then in another one."""
    turn, place = divmod(begin, len(prompts))
    while settings.repeat or not turn:
        order = np.random.default_rng((settings.seed, turn)).permutation(len(prompts))
        for at in range(place, len(prompts)):
            yield turn * len(prompts) + at, prompts[order[at]]
        turn, place = turn + 1, 0
