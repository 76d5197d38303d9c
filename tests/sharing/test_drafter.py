"""The drafter that shares: it drafts as the inner one, publishes what is committed, and learns in a thread."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from channels import LocalChannel
from redis_server import wait_for
from rounds import start
from speculant.bench.replay.player import replay
from speculant.bench.replay.traces import Recording
from speculant.core.drafter import Background, Drafter, Persistent
from speculant.core.errors import UnsupportedError, UsageError
from speculant.drafters.none import NoDrafter
from speculant.registry import BuildContext, build_drafter, find_method
from speculant.sharing.channel import SharedTokens
from speculant.sharing.drafter import MAX_PROMPT, SharingDrafter
from speculant.sharing.opening import open_sharing

VOCABULARY = 200
MIX = find_method("mix")


def mix() -> Drafter:
    """Return an empty drafter."""
    return build_drafter(MIX, BuildContext(vocabulary=VOCABULARY, tokenizer="t", memory_limit=8 << 20))


def recording(seed: int, length: int = 200) -> Recording:
    """Return a request with random tokens."""
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, length).astype(np.int32)
    return Recording(tokens[:50], tokens[50:])


def test_a_replica_drafts_what_another_decoded() -> None:
    """The purpose: text that one replica decoded is drafted by one that never saw it."""
    channels = LocalChannel(1), LocalChannel(2)
    channels[0].others = [channels[1]]
    first, second = (SharingDrafter(mix(), channel) for channel in channels)
    alone = replay(mix(), [recording(1)], nodes=8)
    assert replay(first, [recording(1)], nodes=8).accepted.tolist() == alone.accepted.tolist()
    wait_for(lambda: second.learned == 200)
    assert replay(second, [recording(1)], nodes=8).accepted.sum() > 100 > alone.accepted.sum()
    for drafter in (first, second):
        drafter.close()
    assert all(channel.closed for channel in channels)


def test_all_that_is_committed_is_published() -> None:
    """Guards completeness: prompt, accepted tokens and the target's own, in order, with positions that join."""
    channel = LocalChannel()
    drafter = SharingDrafter(mix(), channel)
    recordings = [recording(2), recording(2), recording(3)]
    replay(drafter, recordings, nodes=8)
    drafter.close()
    for request, each in enumerate(recordings):
        pieces = [piece for piece in channel.published if piece.request == request]
        tokens = np.concatenate([piece.tokens for piece in pieces])
        assert tokens.tolist() == [*each.prompt.tolist(), *each.output.tolist()]
        assert [piece.start for piece in pieces] == np.cumsum([0, *(len(p.tokens) for p in pieces)])[:-1].tolist()
        assert [piece.prompt for piece in pieces] == [50] + [0] * (len(pieces) - 1)
        assert [piece.ended for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_long_prompts_are_cut() -> None:
    """Guards the store: of a long prompt the end is published."""
    channel = LocalChannel()
    drafter = SharingDrafter(mix(), channel)
    drafter.open(start(np.arange(3 * MAX_PROMPT) % VOCABULARY)).close()
    drafter.close()
    assert len(channel.published[0].tokens) == MAX_PROMPT


def test_it_is_its_inner_drafter_in_all_else(tmp_path: Path) -> None:
    """Guards what is asked of drafters elsewhere: needs, memory files, sizes, and an end."""
    inner = mix()
    drafter = SharingDrafter(inner, LocalChannel())
    assert isinstance(drafter, Persistent)
    assert isinstance(drafter, Background)
    assert drafter.needs == inner.needs
    replay(drafter, [recording(4)], nodes=8)
    drafter.save(tmp_path / "memory")
    other = SharingDrafter(mix(), LocalChannel())
    other.load(tmp_path / "memory")
    assert replay(other, [recording(4)], nodes=8).accepted.sum() > 100
    assert drafter.memory_bytes == inner.memory_bytes  # type: ignore[attr-defined]
    for each in (drafter, other):
        each.close()
        each.close()


def test_poisoned_text_changes_drafts_only() -> None:
    """Guards text: whatever others publish, the tokens that are committed are the target's."""
    channel = LocalChannel()
    drafter = SharingDrafter(mix(), channel)
    random = np.random.default_rng(5)
    for request in range(200):
        tokens = random.integers(0, VOCABULARY, 64).astype(np.int32)
        channel.deliver(
            SharedTokens(replica=9, request=request % 9, start=int(random.integers(0, 99)), tokens=tokens, prompt=7)
        )
    result = replay(drafter, [recording(6)], nodes=8)  # which raises if other tokens were committed
    assert result.tokens == 150
    drafter.close()


def test_threads_end() -> None:
    """Guards processes that open many drafters: `close` ends the thread, and so does the end of the drafter."""
    before = threading.active_count()
    closed, dropped = (SharingDrafter(mix(), LocalChannel()) for _ in range(2))
    closed.close()
    del dropped
    wait_for(lambda: threading.active_count() == before)


def test_what_cannot_be_shared_is_refused() -> None:
    """Guards users: methods without a memory of text, and shares of other kinds, are refused by name."""
    with pytest.raises(UnsupportedError, match="recycling"):
        open_sharing(mix(), "redis://h", method=find_method("recycling"), tokenizer="t", vocabulary=VOCABULARY)
    with pytest.raises(UsageError, match="publish, poll and close"):
        open_sharing(mix(), 7, method=MIX, tokenizer="t", vocabulary=VOCABULARY)
    with pytest.raises(UnsupportedError, match="NoDrafter"):
        SharingDrafter(NoDrafter(), LocalChannel())
