"""The round: draft, verify, commit, observe. One target pass for B sequences; all decoding goes through it.

    sizing decides how many nodes each sequence may draft
    the drafter proposes a tree for each; chosen nodes that a constraint forbids, or that do not pay off, are dropped
    the engine runs one pass over all roots, nodes and queries
    the verifier walks each tree: accepted path, then the target's own token
    each sequence keeps the cache rows of its path
    sessions and sizing learn from the outcome

Draft-then-verify is from Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv 2302.01318), trees from
SpecInfer (Miao et al. 2023, arXiv 2305.09781), sequences that join and leave between rounds from Orca (Yu et al., OSDI
2022). Plain decoding is the same loop with a drafter that proposes nothing.

An error of one sequence ends only that sequence (`Sequence.error`). An error that affects all, such as a full device,
is raised, with every cache as it was before the round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np

from speculant.core.branches import fit_branches
from speculant.core.drafter import EMPTY_PATH, Budget, Drafter, Session, Verified
from speculant.core.engine import NO_OUTPUTS, Engine, Pass, RequestedOutputs, TargetCache
from speculant.core.errors import DraftsRefusedError, OutOfMemoryError
from speculant.core.former_names import resolve_former
from speculant.core.tree import DraftTree
from speculant.core.verifier import Verifier, Walk
from speculant.decoding.sequence import Round, Sequence
from speculant.sizing.contract import Sizing, SizingState


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingComponents:
    """The components of decoding; a method is a choice of these.

    Attributes:
        clock: returns seconds; times requests and their prompts.
        work_clock: the same for drafting, passes and learning, from which sizes are chosen. CPU time of the decoding
            thread suits where that thread does the work: waiting for a busy processor, or for another thread of the
            interpreter, would otherwise look like the cost of drafts.
    """

    engine: Engine
    drafter: Drafter
    verifier: Verifier
    sizing: Sizing
    clock: Callable[[], float] = time.perf_counter
    work_clock: Callable[[], float] = time.perf_counter


Walked = list[tuple[Sequence, Round, Pass]]  # for each sequence, the round to commit and its pass


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of all sequences that did not fail.

    Attributes:
        each: the round of each sequence.
        draft_seconds, target_seconds: time of drafting with all that sizing does for it, and of the pass with choosing
            and committing its tokens, by the work clock, both shared by all sequences.
        observe_seconds: total time of learning, by the same clock.
        early_seconds: time of the pass that was spent during drafting, see `core.engine.Pass.early`.
    """

    each: list[Round]
    draft_seconds: float
    target_seconds: float
    observe_seconds: float = 0.0
    early_seconds: float = 0.0


def step(sequences: Several[Sequence], parts: DecodingComponents) -> Rounds:
    """Run one round for every active sequence.

    Raises:
        OutOfMemoryError, UsageError: the pass failed; nothing was committed.
        KeyboardInterrupt: interrupted; the sequence being processed, if any, has failed, the others are as before or
            after the round.
    """
    sequences, clock = [sequence for sequence in sequences if sequence.active], parts.work_clock
    walked: Walked = []
    try:
        sequences, drafts, draft_seconds = _draft(sequences, parts)
        if not sequences:
            return Rounds([], draft_seconds, 0.0)
        parts.engine.prepare_check(_batch(sequences, drafts))
        began = clock()
        drafts, passes = _forward(sequences, drafts, parts)
        _walk(sequences, drafts, passes, parts, walked)
        share = passes[0].early if len(passes) == 1 else 0.0
        early_seconds = (clock() - began) * share / (1 - share)
        committed, observe_seconds = _commit(walked, parts)
        target_seconds = clock() - began - observe_seconds
        result = Rounds([done for _, done in committed], draft_seconds, target_seconds, observe_seconds, early_seconds)
        _observe([sequence for sequence, _ in committed], result, parts)
    except BaseException:
        _commit(walked, parts)  # if interrupted between sequences: tokens already drawn cannot be undone
        for sequence in sequences:
            sequence.cache.rollback()
        raise
    raise_interrupt(sequences)
    return result


def _draft(sequences: list[Sequence], parts: DecodingComponents) -> tuple[list[Sequence], list[DraftTree], float]:
    """Return the sequences whose drafter did not fail, the draft of each, and the seconds of drafting.

    These include the time of choosing sizes and of learning from the last round, which counts beside the passes of very
    small models, but not the checks that plain rounds make too.
    """
    clock, branches = parts.work_clock, parts.engine.capabilities.sequences - len(sequences)
    began = clock()
    nodes = parts.sizing.nodes([_state(sequence) for sequence in sequences])
    late = sum([each.late for each, maximum in zip(sequences, nodes, strict=True) if maximum])
    proposed: list[DraftTree | None] = [DraftTree.empty()] * len(sequences)
    if any(nodes):
        _propose(sequences, nodes, branches // len(sequences), parts, proposed)
    if parts.verifier.scored:
        _score(sequences, proposed)
    seconds = late + clock() - began
    drafted = list[tuple[Sequence, DraftTree]]()
    for sequence, draft in zip(sequences, proposed, strict=True):
        if draft is not None:
            try:
                if sequence.filter is not None and draft.proposal is None:
                    draft = draft.pruned(sequence.filter.allowed(draft, sequence.sampler.tokens))
                sequence.cache.check(draft)
                drafted.append((sequence, draft))
            except Exception as error:
                sequence.fail(error)
    sequences, drafts = [each for each, _ in drafted], fit_branches([draft for _, draft in drafted], branches)
    began = clock()
    drafts = parts.sizing.trim([_state(each) for each in sequences], drafts)
    return sequences, drafts, seconds + clock() - began


def _propose(
    sequences: list[Sequence],
    nodes: list[int],
    branches: int,
    parts: DecodingComponents,
    proposed: list[DraftTree | None],
) -> None:
    """Set the entries of `proposed` to the drafts of sequences that are not plain; None if the drafter failed."""
    places, asked = list[int](), list[Budget]()
    trees, queries = parts.engine.capabilities.trees and parts.verifier.trees, parts.drafter.needs.queries
    for place, (sequence, maximum) in enumerate(zip(sequences, nodes, strict=True)):
        cache, depth = sequence.cache, sequence.depth if maximum else 0
        allowed = min(maximum, cache.room - queries) if depth > 0 else 0
        if allowed > 0:
            state = _state(sequence)
            places.append(place)
            asked.append(
                state.make_budget(nodes=allowed, depth=depth, trees=trees, queries=cache.depth, branches=branches)
            )
    if not places:
        return
    drafting = [sequences[place] for place in places]
    drafts: list[DraftTree | None]
    try:
        drafts = [*parts.drafter.propose([_session(sequence) for sequence in drafting], asked)]
    except Exception as error:
        if len(drafting) == 1 and isinstance(error, OutOfMemoryError):
            drafts = [_go_on_plainly(drafting[0], error)]
        else:
            drafts = [_draft_alone(each, budget, parts) for each, budget in zip(drafting, asked, strict=True)]
    for place, draft in zip(places, drafts, strict=True):
        proposed[place] = draft


def _score(sequences: list[Sequence], proposed: list[DraftTree | None]) -> None:
    """Replace drafts without nodes by ones that hold q after the root; None if the drafter failed."""
    for place, (sequence, draft) in enumerate(zip(sequences, proposed, strict=True)):
        if draft is not None and draft.proposal is None and not len(draft):
            try:
                proposed[place] = _session(sequence).empty_draft()
            except Exception as error:
                sequence.fail(error)
                proposed[place] = None


def _draft_alone(sequence: Sequence, budget: Budget, parts: DecodingComponents) -> DraftTree | None:
    try:
        return parts.drafter.propose([_session(sequence)], [budget])[0]
    except OutOfMemoryError as error:
        return _go_on_plainly(sequence, error)
    except Exception as error:
        sequence.fail(error)
        return None


def _go_on_plainly(sequence: Sequence, error: OutOfMemoryError) -> DraftTree:
    """Decode the rest of a text without drafts, since there is no room for drafting passes; return no draft."""
    sequence.crowded = True
    sequence.stats.notes.append(f"decoded on without drafts, since a drafting pass had no room: {error}")
    return DraftTree.empty()


def _forward(
    sequences: list[Sequence], drafts: list[DraftTree], parts: DecodingComponents
) -> tuple[list[DraftTree], list[Pass]]:
    """Run the target pass; return the verified drafts (empty ones if the engine refuses drafts) and their passes."""
    try:
        return drafts, parts.engine.forward(_batch(sequences, drafts), find_needs(sequences, parts))
    except DraftsRefusedError as refusal:
        for sequence in sequences:
            sequence.cache.rollback()
            sequence.stats.notes.append(str(refusal))
        return _forward(sequences, [DraftTree.empty() for _ in drafts], parts)


def _batch(sequences: list[Sequence], drafts: list[DraftTree]) -> list[tuple[TargetCache, int, DraftTree]]:
    return [(each.cache, each.root, draft) for each, draft in zip(sequences, drafts, strict=True)]


def _walk(
    sequences: list[Sequence], drafts: list[DraftTree], passes: list[Pass], parts: DecodingComponents, walked: Walked
) -> None:
    """Walk the draft of each sequence and append the result to `walked`, waiting for the device only once."""
    verifier, prepared = parts.verifier, dict[int, object]()
    for place, (sequence, draft, result) in enumerate(zip(sequences, drafts, passes, strict=True)):
        try:
            verified = result.head(len(draft) + 1)  # rows after the nodes are queries, from which only sessions learn
            prepared[place] = verifier.prepare(draft, verified, sequence.sampler)
        except Exception as error:
            sequence.fail(error)
    waiting = [place for place, work in prepared.items() if work is not None]
    decided = verifier.decide([prepared[place] for place in waiting])
    read = dict(zip(waiting, parts.engine.read(decided), strict=True))
    for place, (sequence, draft, result) in enumerate(zip(sequences, drafts, passes, strict=True)):
        if sequence.active:
            try:
                walk = verifier.walk(draft, read.get(place), sequence.sampler)
                sequence.sampler.end_round()
                walked.append((sequence, Round(draft, walk), result))
            except BaseException as error:
                sequence.fail(error)


def _commit(walked: Walked, parts: DecodingComponents) -> tuple[list[tuple[Sequence, Round]], float]:
    """Commit and let each session learn; return the committed rounds and the seconds of learning.

    Sequences that failed or were already committed are left out.
    """
    committed, seconds, needs = list[tuple[Sequence, Round]](), 0.0, parts.drafter.needs
    for sequence, done, result in walked:
        if sequence.error is not None or len(sequence.sources) == len(sequence.sampler.tokens):
            continue
        try:
            sequence.commit(done, result)
            if needs.rests(_state(sequence).rest):
                sequence.untaught += len(done.walk.tokens)
            else:
                began = parts.work_clock()
                sequence.teach(make_verified(done.draft, done.walk, result))
                own = parts.work_clock() - began
                sequence.stats.draft_seconds += own
                seconds += own
            committed.append((sequence, done))
        except BaseException as error:
            sequence.fail(error)
    return committed, seconds


def _observe(sequences: list[Sequence], rounds: Rounds, parts: DecodingComponents) -> None:
    """Let sizing and statistics learn from a round."""
    each = rounds.each
    if not each:
        return
    for sequence in sequences:
        stats = sequence.stats
        stats.draft_seconds += rounds.draft_seconds / len(each)
        stats.target_seconds += rounds.target_seconds
        stats.seconds = parts.clock() - (sequence.began or 0.0)
    # The part of the pass that ran during drafting counts as time of the pass, not of drafting.
    drafting = rounds.draft_seconds + rounds.observe_seconds - rounds.early_seconds
    began = parts.work_clock()
    parts.sizing.observe(
        [_state(sequence) for sequence in sequences],
        [done.draft for done in each],
        [done.walk for done in each],
        target_seconds=rounds.target_seconds + rounds.early_seconds,
        draft_seconds=max(0.0, drafting),
    )
    late = (parts.work_clock() - began) / len(each)
    for sequence in sequences:
        sequence.late = late


def find_needs(sequences: list[Sequence], parts: DecodingComponents) -> RequestedOutputs:
    """Return the outputs to request from a pass besides logits.

    Nothing is requested if all texts are plain, or if drafting pauses for all and the drafter does not always need it.
    """
    drafting = [sequence for sequence in sequences if not sequence.plain]
    if not drafting:
        return NO_OUTPUTS
    needs = parts.drafter.needs
    resting = all(each.sizing is not None and needs.rests(each.sizing.rest) for each in drafting)
    return NO_OUTPUTS if resting else needs


def _session(sequence: Sequence) -> Session:
    assert sequence.session is not None
    return sequence.session


def _state(sequence: Sequence) -> SizingState:
    assert sequence.sizing is not None
    return sequence.sizing


def raise_interrupt(sequences: Several[Sequence]) -> None:
    """Raise the interrupt, such as KeyboardInterrupt, that ended one of the sequences, if there is one."""
    for sequence in sequences:
        if sequence.error is not None and not isinstance(sequence.error, Exception):
            raise sequence.error


def make_verified(draft: DraftTree, walk: Walk, result: Pass) -> Verified:
    """Return what a session learns from: a draft, what was accepted of it, and the outputs of the pass."""
    return Verified(
        tree=draft,
        path=np.array(walk.path, np.int32) if walk.path else EMPTY_PATH,
        tokens=np.array(walk.tokens, np.int32),
        top_ids=result.top_ids,
        top_logits=result.top_logits,
        hidden=result.hidden,
    )


__getattr__ = resolve_former(__name__, {"Parts": "DecodingComponents"})
