"""Lets a model answer prompts repeatedly until there are enough tokens for a base.

Each pass over the prompts has its own order. Answers are sampled, so that a repeated prompt is answered differently;
with greedy decoding, each prompt is used once. Drafting is on, and earlier answers serve as drafts for later ones.
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
    """How prompts are answered, and for how long.

    Attributes:
        tokens: tokens of all answers in the file; None for no limit.
        seconds: duration of this run; None for no limit.
        batch: number of requests decoded together.
        repeat: whether prompts are repeated, for sampled answers.
        seed: seed of the order of prompts; request i samples its answer with seed + i.
        options: options of `Speculator.stream`, without a seed.
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
    """Answer prompts and append the answers; at the end or an interrupt, also unfinished ones.

    Args:
        speculator: the answering speculator.
        prompts: token ids.
        answers: file of the answers; requests continue where it ends.
        settings: how to answer, and for how long.
        advance: called with the number of further tokens written.
        clock: returns seconds.

    Raises:
        FileError: the answers cannot be written.
        Exception: the error of a failed request; the answers so far are kept.
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
        positions: positions of the model; None for no limit.

    Raises:
        PromptError: no prompt does.
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
    """Yield requests with their numbers, starting from one: all prompts in a random order, then in another one."""
    turn, place = divmod(begin, len(prompts))
    while settings.repeat or not turn:
        order = np.random.default_rng((settings.seed, turn)).permutation(len(prompts))
        for at in range(place, len(prompts)):
            yield turn * len(prompts) + at, prompts[order[at]]
        turn, place = turn + 1, 0
