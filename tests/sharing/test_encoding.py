"""Messages: what arrives is what was sent, and anything else is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant.sharing.channel import SharedTokens
from speculant.sharing.encoding import MAX_BYTES, BadMessageError, decode, encode


def piece(tokens: list[int], **facts: int) -> SharedTokens:
    """Return a piece of request 7."""
    return SharedTokens(
        request=7, start=facts.get("start", 0), tokens=np.array(tokens, np.int32), prompt=facts.get("prompt", 0)
    )


@given(
    st.lists(st.lists(st.integers(0, (1 << 24) - 1), max_size=40), min_size=1, max_size=8), st.integers(0, 2**64 - 1)
)
def test_messages_arrive_as_they_were_sent(texts: list[list[int]], replica: int) -> None:
    """Guards the layout: any token ids, empty pieces too."""
    sent = [piece(text, start=at, prompt=len(text) // 2) for at, text in enumerate(texts)]
    for one, other in zip(decode(encode(sent, replica), 1 << 24), sent, strict=True):
        assert (one.replica, one.request, one.start, one.prompt) == (replica, 7, other.start, other.prompt)
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.tokens.dtype == np.int32


def test_two_bytes_per_token_where_that_is_enough() -> None:
    """Guards the size of messages: most tokens take two bytes."""
    assert len(encode([piece([65535] * 100)], 1)) == len(encode([piece([65536] * 100)], 1)) - 100


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused_or_harmless(message: bytes) -> None:
    """Guards decoding against whatever else is written to the stream."""
    try:
        found = decode(message, 50)
    except BadMessageError:
        return
    assert all(0 <= token < 50 for each in found for token in each.tokens.tolist())


def test_damaged_messages_are_refused() -> None:
    """Guards against truncation, other versions, ids outside the vocabulary, and lengths that lie."""
    good = encode([piece([1, 2, 3], prompt=1), piece([4])], 5)
    assert len(decode(good, 5)) == 2
    bad = [good[:end] for end in range(len(good))] + [good + b"x", bytes([9]) + good[1:], good[:1] + b"\x07" + good[2:]]
    bad.append(encode([piece([1], prompt=1)], 5)[:-5] + b"\xff" * 5)
    for message in bad:
        with pytest.raises(BadMessageError):
            decode(message, 5)
    with pytest.raises(BadMessageError, match="token id 4"):
        decode(good, 4)
    with pytest.raises(BadMessageError, match="bytes"):
        decode(bytes(MAX_BYTES + 1), 5)
