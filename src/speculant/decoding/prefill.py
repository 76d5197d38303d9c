"""Reading prompts, whole or in parts: the token that each yields, and the session in which rounds then draft."""

from __future__ import annotations

from collections.abc import Sequence as Several

from speculant.core.drafter import Session
from speculant.core.engine import Pass
from speculant.core.errors import OutOfMemoryError
from speculant.core.tree import DraftTree
from speculant.core.verifier import Walk
from speculant.decoding.sequence import Sequence
from speculant.decoding.step import DecodingComponents, find_needs, make_verified, raise_interrupt
from speculant.drafters.none import EmptySession


def prefill(sequences: Several[Sequence], parts: DecodingComponents, *, maximum: Several[int | None]) -> None:
    """Read up to `maximum` more tokens of each prompt, for several sequences in one pass if the model can.

    Once a prompt is complete, its first token is committed, the session is open, and rounds may begin.

    Raises:
        OutOfMemoryError: the pass does not fit; it may be retried.
        KeyboardInterrupt: as in `step`.
    """
    clock, needs = parts.clock, find_needs([*sequences], parts)
    began = clock()
    for sequence in sequences:
        if sequence.began is None:
            sequence.began = began
    try:
        if len(sequences) == 1:
            results = [sequences[0].cache.prefill(maximum[0], needs=needs)]
        else:
            results = parts.engine.prefill(
                [(each.cache, own) for each, own in zip(sequences, maximum, strict=True)], needs
            )
        seconds = clock() - began
        for sequence, result in zip(sequences, results, strict=True):
            sequence.stats.prefill_seconds += seconds
            if result is not None:
                _begin(sequence, result, parts)
    except BaseException:
        for sequence in sequences:  # a failed pass of a single sequence keeps the tokens that earlier passes read
            if not sequence.sources and sequence.error is None and (len(sequences) > 1 or not sequence.cache.unread):
                sequence.cache.restart()
        raise
    raise_interrupt(sequences)


def _begin(sequence: Sequence, result: Pass, parts: DecodingComponents) -> None:
    """Commit the token that a prompt's pass yields, and open the session; a failure ends the sequence.

    Raises:
        OutOfMemoryError: the device is full; it may be retried.
    """
    try:
        _open(sequence, result, parts)
    except BaseException as error:
        drawn = sequence.first is None and len(sequence.sampler.tokens) > 0  # a token that a retry would draw again
        if isinstance(error, OutOfMemoryError) and not drawn:
            raise
        sequence.cache.restart()
        sequence.fail(error)


def _open(sequence: Sequence, result: Pass, parts: DecodingComponents) -> None:
    session = None
    try:
        # 1. The first token. If memory then lacks for the session, the prompt is read again, but the token stays.
        began = parts.clock()
        if sequence.first is None:
            session = _open_session(sequence, parts) if parts.verifier.scored else None
            sequence.first = _choose_first(sequence, result, parts, session)
            sequence.sampler.end_round()
        sequence.stats.prefill_seconds += parts.clock() - began

        # 2. The session, and what sizing keeps.
        walk, began = sequence.first, parts.work_clock()
        session = _open_session(sequence, parts) if session is None else session
        session.observe(make_verified(DraftTree.empty(), walk, result))
        room = sequence.sampler.room
        sizing = parts.sizing.open(session, room=room, plain=sequence.plain, start=sequence.start)
        sequence.stats.draft_seconds += parts.work_clock() - began
        sequence.stats.seconds = parts.clock() - (sequence.began or 0.0)
        sequence.begin(session, sizing, walk.tokens[0], result, ended=walk.ended)
    except BaseException:
        if session is not None and sequence.session is None:
            session.close()
        raise


def _choose_first(sequence: Sequence, result: Pass, parts: DecodingComponents, session: Session | None) -> Walk:
    """Commit the first token by the verifier's rule, given the session if that rule scores drafts."""
    scores = DraftTree.empty() if session is None else session.empty_draft()
    prepared = parts.verifier.prepare(scores, result, sequence.sampler)
    read = None if prepared is None else parts.engine.read(parts.verifier.decide([prepared]))[0]
    return parts.verifier.walk(scores, read, sequence.sampler)


def _open_session(sequence: Sequence, parts: DecodingComponents) -> Session:
    return EmptySession() if sequence.plain else parts.drafter.open(sequence.start)
