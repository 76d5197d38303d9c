"""The growing result of a request: whatever ends a call that adds to it, its parts stay those of the same tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, count
from typing import Any

import pytest

from interrupts import interrupted
from speculant import Speculator
from speculant.api.result import Generation, Piece, Result, Stream

PROMPT = "Once upon a time"
OPTIONS: dict[str, Any] = {"max_new_tokens": 4, "temperature": 0, "logprobs": 1}


@pytest.fixture(scope="module")
def stories() -> Speculator:
    return Speculator.from_pretrained(method="none")


@pytest.fixture(scope="module")
def whole(stories: Speculator) -> Result:
    return stories.generate(PROMPT, **OPTIONS)


def contents(result: Result) -> list[Any]:
    """Return what a result says of its tokens."""
    return [result.ids, result.sources, result.text, result.logprobs, result.finish_reason]


def test_an_interrupted_take_is_done_again(stories: Speculator, whole: Result) -> None:
    """Guards the text, the sources and the reason of the end against Ctrl-C at each line of `take`."""
    texts = list(accumulate(piece.text for piece in stories.stream(PROMPT, **OPTIONS)))
    for line in count(1):
        generation = stories.prepare(PROMPT, **OPTIONS)
        stream, result, reached = Stream(generation, stories.parts()), generation.result, False
        for rounds in range(1, len(whole.ids) + 1):
            stream._advance()
            reached |= interrupted(generation.take, line)
            generation.take()
            assert generation.take() is None
            assert result.ids == whole.ids[:rounds]
            assert len(result.sources) == len(result.logprobs or ()) == rounds
            assert result.text == texts[rounds - 1]
        assert contents(result) == contents(whole)
        if not reached:
            break
    assert line > 20


def test_a_batch_takes_what_an_interrupt_left_out(
    stories: Speculator, whole: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a request that is interrupted while its text grows: what its cache holds is in the result and a piece."""
    take = Generation.take
    for line in count(1):
        reached, last = [False], len(whole.ids) - 1

        def interrupting(generation: Generation) -> Piece | None:
            if len(generation.result.ids) == last and not reached[0]:  # noqa: B023
                found: list[Piece | None] = []
                reached[0] = interrupted(lambda: found.append(take(generation)), line)  # noqa: B023
                if reached[0]:  # noqa: B023
                    raise KeyboardInterrupt
                return found[0]
            return take(generation)

        monkeypatch.setattr(Generation, "take", interrupting)
        batch = stories.batch(1)
        generation = batch.add(PROMPT, **OPTIONS)
        pieces: list[Piece] = []
        try:
            pieces += [piece for _, piece in batch]
        except KeyboardInterrupt:
            pieces += [piece for _, piece in batch]
        result = generation.result
        assert contents(result) == contents(replace(whole, finish_reason="error" if reached[0] else "length"))
        if not reached[0]:
            break
    assert line > 20


def test_a_text_that_fails_leaves_the_result_before_it(stories: Speculator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards tokenizers that raise: the tokens without text are not in the result, and the session is closed."""
    stream = stories.stream(PROMPT, **OPTIONS)
    pieces = iter(stream)
    first = next(pieces)

    def failing(*_args: Any, **_options: Any) -> str:
        raise ArithmeticError("a tokenizer's bug")

    monkeypatch.setattr(stories.tokenizer, "decode", failing)
    with pytest.raises(ArithmeticError):
        next(pieces)
    result = stream.result
    assert (result.ids, result.sources, result.text) == (first.tokens, first.sources, first.text)
    assert stream._generation.done
    assert stream._generation.sequence.session is None
