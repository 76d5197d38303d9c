"""The state of one sequence: cache, sampler, drafting session, sizing and statistics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from speculant.core.draft_filter import DraftFilter
from speculant.core.drafter import Session, SessionRequest, Verified
from speculant.core.engine import EngineArray, Pass, TargetCache
from speculant.core.errors import UsageError
from speculant.core.logprobs import LogprobRecorder, TokenLogprobs
from speculant.core.sampler import Sampler
from speculant.core.stats import Stats
from speculant.core.tree import DraftTree
from speculant.core.verifier import Walk
from speculant.sizing.contract import SizingState


class Source(Enum):
    """Where a token came from."""

    PLAIN = "plain"
    ACCEPTED = "accepted"
    BONUS = "bonus"


@dataclass(frozen=True, slots=True)
class Round:
    """The outcome of a round for one text: its draft, and the walk through it, whose tokens are committed."""

    draft: DraftTree
    walk: Walk


class Sequence:
    """One text being decoded. `prefill` reads its prompt, then `step` adds tokens, round by round.

    Attributes:
        cache: the target's KV cache.
        sampler: draws the target's tokens and decides where the text ends.
        start: inputs of its drafting session.
        stats: statistics, updated while it is decoded.
        session: its drafting session; None before the prompt is read and after the end.
        sizing: the sizing policy's state of it.
        first: the walk that committed its first token; None before.
        root: the last committed token.
        sources: the source of each committed token; one entry per token.
        ended: whether the text is complete.
        error: the error that ended it early, or None.
        began: when its prompt was first read, in seconds of the clock; None before.
        logprobs: log-probabilities of each committed token, if they are recorded.
        prompt_logprobs: log-probabilities of each token of the prompt, None for the first, if they are recorded;
            complete once the first token of the text is committed.
        filter: rules out drafted tokens that cannot follow; None for none.
        plain: whether it is decoded without drafts, whatever the method, and teaches the drafter nothing.
        untaught: number of its last tokens that its session learns only at the end of a pause of drafting.
        crowded: whether there was no room for a drafting pass, so that the rest is decoded without drafts.
        late: time that its sizing took to learn from the last round, in seconds of the work clock, which counts as
            drafting time of the next one.
        rounds: its rounds that have not been collected yet, if it is watched; otherwise None.
    """

    def __init__(
        self,
        cache: TargetCache,
        sampler: Sampler,
        start: SessionRequest,
        stats: Stats,
        *,
        recorder: LogprobRecorder | None = None,
        prompt_recorder: LogprobRecorder | None = None,
        plain: bool = False,
        watched: bool = False,
    ) -> None:
        """Create a sequence that has not begun; if a recorder is None, no log-probabilities are recorded.

        Raises:
            UnsupportedError: the engine cannot return the logits of the prompt.
        """
        self.filter: DraftFilter | None = start.constraint
        self.cache, self.sampler, self.start, self.stats = cache, sampler, start, stats
        self._recorder, self.logprobs = recorder, list[TokenLogprobs]()
        self._prompt_recorder, self.prompt_logprobs = prompt_recorder, list[TokenLogprobs | None]()
        if prompt_recorder is not None:
            cache.watch_prompt(self._record_prompt)
            self.prompt_logprobs.append(None)
        self.session: Session | None = None
        self.sizing: SizingState | None = None
        self.first: Walk | None = None
        self.root = -1
        self.sources: list[Source] = []
        self.ended = False
        self.error: BaseException | None = None
        self.began: float | None = None
        self.plain = plain
        self.untaught = 0
        self.late = 0.0
        self.crowded = False
        self.rounds: list[Round] | None = [] if watched else None
        self._claimed = False

    @property
    def records_logprobs(self) -> bool:
        """Whether log-probabilities are recorded."""
        return self._recorder is not None

    @property
    def records_prompt(self) -> bool:
        """Whether log-probabilities of the prompt are recorded, which requires computing all of its rows."""
        return self._prompt_recorder is not None

    @property
    def active(self) -> bool:
        """Whether rounds can add tokens to it."""
        return self.session is not None and not self.ended and self.error is None

    @property
    def depth(self) -> int:
        """Maximum depth of a draft; the last token of the text needs none."""
        return 0 if self.plain or self.crowded else min(self.sampler.room - 1, self.cache.depth)

    def claim(self) -> None:
        """Claim it for one decoding loop.

        Raises:
            UsageError: another loop has claimed it before.
        """
        if self._claimed:
            raise UsageError("this request has already been decoded; prepare it again to decode it once more.")
        self._claimed = True

    def begin(self, session: Session, sizing: SizingState, token: int, result: Pass, *, ended: bool) -> None:
        """Set session and sizing, and commit the first token, which the prompt's pass `result` yielded."""
        if self._recorder is not None:
            self.logprobs = self._recorder.record(result.logits, [0], [token])
        self.session, self.sizing, self.root, self.ended = session, sizing, token, ended
        self.sources.append(Source.PLAIN)
        self.stats.tokens = 1

    def resume(self, session: Session, sizing: SizingState, root: int, *, began: float) -> None:
        """Set session and sizing, and continue after a root whose text is already cached; no prompt is read."""
        self.session, self.sizing, self.root = session, sizing, root
        self.began, self.ended = began, self.sampler.room == 0

    def commit(self, done: Round, result: Pass) -> None:
        """Commit a round: its tokens, statistics, and the cache rows of the root and the accepted path.

        Args:
            done: the draft, and the walk whose tokens are committed.
            result: the pass over its root and nodes, whose logits are still valid.
        """
        draft, walk = done.draft, done.walk
        if self._recorder is not None:
            rows = [0, *(node + 1 for node in walk.path)]
            self.logprobs[len(self.sources) :] = self._recorder.record(result.logits, rows, walk.tokens)
        self.stats.add_round(draft, walk.path, walk.tokens)
        if self.rounds is not None:
            self.rounds.append(done)
        self.sources += [Source.ACCEPTED] * len(walk.path) + [Source.BONUS if len(draft) else Source.PLAIN]
        self.root, self.ended = walk.tokens[-1], walk.ended
        self.cache.keep([0, *(node + 1 for node in walk.path)])  # last: if interrupted, the text may exceed its cache

    def teach(self, verified: Verified) -> None:
        """Let its session learn from the last round, and from a pause before it."""
        if self.untaught:
            self._end_pause(len(self.sources) - len(verified.tokens))
        if self.session is not None:
            self.session.observe(verified)

    def fail(self, error: BaseException) -> None:
        """End it because of an error; committed tokens stay."""
        if self.error is None:
            self.error = error
        if self.session is not None:  # before that, a failed pass has left the cache unchanged
            self.cache.rollback()

    def _record_prompt(self, start: int, logits: EngineArray) -> None:
        assert self._prompt_recorder is not None
        following = self.start.prompt[start + 1 : start + 1 + len(logits)].tolist()
        if following:  # the last row's next token belongs to the text, not to the prompt
            found = self._prompt_recorder.record(logits, range(len(following)), following)
            self.prompt_logprobs[start + 1 :] = found

    def close(self) -> None:
        """Close its session, once; the drafter and the sizing policy keep what they learned."""
        try:
            if self.untaught and self.error is None:
                self._end_pause(len(self.sources))
        finally:
            session, self.session = self.session, None
            if session is not None and self.sizing is not None and self.error is None:
                self.sizing.close()
            if session is not None:
                session.close()

    def _end_pause(self, end: int) -> None:
        """Let its session learn the tokens of a pause, which are the last ones before the token at `end`."""
        start, self.untaught = end - self.untaught, 0
        if self.session is not None:
            self.session.follow(np.array(self.sampler.tokens[start:end], np.int32))
