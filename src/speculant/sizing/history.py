"""What earlier requests showed about pauses of drafting, separately for new and for repeated prompts.

A prompt that was given before usually gets the same answer again, which the drafter has learned: drafts gain a lot on
it even where they lose on new prompts, as in large batches of a small model. In one common history, new prompts would
put off the drafts of repeated ones until these have ended. Requests of different tenants are never repetitions.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from speculant.core.drafter import SessionRequest
from speculant.sizing.pausing import Pausing
from speculant.sizing.plain_checks import PlainChecks
from speculant.sizing.reading import Reading

_PROMPTS = 1 << 14  # most recent prompts, of which a hash is kept: about 2 MB


class RecentPauses:
    """The pauses of the most recent requests of one kind, some of which may still run.

    A new request begins with the mean of as many as are decoded together. That of one would do in a stream; in a batch
    it would be the state of whichever began last. As requests become fewer, so do those of the mean, one at a time.
    """

    def __init__(self, first: Pausing, size: int) -> None:
        """Begin with the state `first`; `size` is the maximum number of requests decoded together."""
        self._recent = deque([first], maxlen=size)
        self._width = 1

    def begin(self, running: int = 1) -> Pausing:
        """Return the state of a new request, which from now on is one of the recent ones.

        Args:
            running: number of requests that are decoded together.
        """
        self._width = min(len(self._recent), max(1, running, self._width - 1))
        begun = Pausing.mean_of(list(self._recent)[-self._width :]).begin()
        self._recent.append(begun)
        return begun


class PausingHistory:
    """The pauses of earlier requests, with new and with repeated prompts.

    Attributes:
        reading: what reading a text takes, and whether its rest repays it.
        checks: when plain decoding is measured.
    """

    def __init__(self, size: int = 1, *, learns: bool = False) -> None:
        """Begin with the initial credit, which the `size` requests of a batch share on new prompts.

        Args:
            size: maximum number of requests of a batch; 1 for a stream.
            learns: whether the drafter keeps a memory of what it reads.
        """
        self._new = RecentPauses(Pausing.begun(size, learns=learns), size)
        self._repeated = RecentPauses(Pausing.begun(1, learns=learns), size)
        self.reading, self.checks = Reading(), PlainChecks()
        self._prompts: OrderedDict[int, None] = OrderedDict()

    def of(self, start: SessionRequest | None) -> RecentPauses:
        """Return the pauses of the requests that are like this new one, and note its prompt; None for a new prompt."""
        if start is None:
            return self._new
        key = hash((start.tenant, start.prompt.tobytes()))
        repeated = key in self._prompts
        self._prompts[key] = None
        self._prompts.move_to_end(key)
        if len(self._prompts) > _PROMPTS:
            self._prompts.popitem(last=False)
        return self._repeated if repeated else self._new
