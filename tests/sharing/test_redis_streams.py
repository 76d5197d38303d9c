"""The channel over a real server: delivery, bounds, outages, tenants and bad input."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("redis")

from redis_server import Server, needs_server, wait_for
from speculant.core.errors import UsageError
from speculant.sharing import redis_streams
from speculant.sharing.address import parse_address
from speculant.sharing.channel import Channel, SharedTokens
from speculant.sharing.encoding import MAX_BYTES, encode
from speculant.sharing.redis_streams import RedisChannel

pytestmark = needs_server
VOCABULARY = 1000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Start a server for a test."""
    found = Server(tmp_path)
    yield found
    found.kill()


@pytest.fixture
def opened() -> Iterator[list[RedisChannel]]:
    """Collect channels, to be closed after the test."""
    found = list[RedisChannel]()
    yield found
    for channel in found:
        channel.close()


def channel(opened: list[RedisChannel], url: str, tokenizer: str = "t") -> RedisChannel:
    """Return a channel that has found out where the stream ends."""
    found = RedisChannel(parse_address(url), tokenizer=tokenizer, vocabulary=VOCABULARY)
    opened.append(found)
    assert isinstance(found, Channel)
    return found


def piece(*tokens: int, request: int = 1, start: int = 0) -> SharedTokens:
    """Return a piece."""
    return SharedTokens(request=request, start=start, tokens=np.array(tokens, np.int32))


def tokens_of(channel: RedisChannel, count: int) -> list[int]:
    """Poll until so many tokens have arrived; return them."""
    found = list[int]()

    def enough() -> bool:
        for each in channel.poll(0.1):
            found.extend(each.tokens.tolist())
        return len(found) >= count

    wait_for(enough)
    return found


def test_pieces_arrive_at_all_others_once(server: Server, opened: list[RedisChannel]) -> None:
    """Guards delivery: every other replica gets a piece, the one that published it does not."""
    channels = [channel(opened, server.url) for _ in range(3)]
    channels[0].publish(piece(1, 2, 3))
    channels[1].publish(piece(4, 5))
    assert sorted(tokens_of(channels[2], 5)) == [1, 2, 3, 4, 5]
    assert tokens_of(channels[1], 3) == [1, 2, 3]
    assert tokens_of(channels[0], 2) == [4, 5]
    assert all(not each.poll(0.01) for each in channels)


def test_a_new_replica_learns_what_was_published_before(server: Server, opened: list[RedisChannel]) -> None:
    """Guards replicas that join: what the stream still holds is theirs too."""
    channel(opened, server.url).publish(piece(1, 2))
    wait_for(lambda: opened[0].counts.messages)
    assert tokens_of(channel(opened, server.url), 2) == [1, 2]


def test_tenants_streams_and_tokenizers_are_apart(server: Server, opened: list[RedisChannel]) -> None:
    """Guards privacy, and drafts: other tenants, services and vocabularies get nothing."""
    sender = channel(opened, f"{server.url}?tenant=a")
    same = channel(opened, f"{server.url}?tenant=a")
    others = [
        channel(opened, f"{server.url}?tenant=b"),
        channel(opened, server.url),
        channel(opened, f"{server.url}?tenant=a&stream=s"),
        channel(opened, f"{server.url}?tenant=a", tokenizer="u"),
        channel(opened, f"{server.url}/1?tenant=a"),
    ]
    sender.publish(piece(1, 2))
    assert tokens_of(same, 2) == [1, 2]
    assert all(not other.poll(0.01) for other in others)


def test_the_stream_is_bounded_and_expires(server: Server, opened: list[RedisChannel]) -> None:
    """Guards the store: no more than the given number of messages, none of them kept for good."""
    sender = channel(opened, f"{server.url}?entries=5")
    for number in range(20):
        sender.publish(piece(number))
        wait_for(lambda done=number: sender.counts.messages > done)
    client, key = server.client(), parse_address(server.url).key("t")
    assert client.xlen(key) == 5
    assert 0 < client.ttl(key) <= redis_streams.EXPIRY
    assert tokens_of(channel(opened, server.url), 5) == [15, 16, 17, 18, 19]
    client.close()


def test_rounds_share_messages(server: Server, opened: list[RedisChannel]) -> None:
    """Guards the number of messages: what is committed within a moment leaves in one."""
    sender = channel(opened, server.url)
    for start in range(0, 300, 3):
        sender.publish(piece(1, 2, 3, start=start))
    assert len(tokens_of(channel(opened, server.url), 300)) == 300
    assert sender.counts.messages < 20


def test_a_slow_replica_skips_what_is_old(
    server: Server, opened: list[RedisChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the lag: a replica that is behind goes on with what is new."""
    monkeypatch.setattr(redis_streams, "WINDOW", 1.0)
    reader, client, key = channel(opened, server.url), server.client(), parse_address(server.url).key("t")
    for second in range(100):
        message = encode([piece(second)], 7)
        client.xadd(key, {b"d": message}, id=f"{1000 * (second + 1)}-0")
        if not second:
            assert tokens_of(reader, 1) == [0]
    found = tokens_of(reader, redis_streams.READ + 1)
    assert found[:3] == [1, 2, 3]
    assert found[redis_streams.READ :] == [98, 99] or found[redis_streams.READ :] == [99]
    client.close()


def test_bad_messages_are_skipped(server: Server, opened: list[RedisChannel], caplog: pytest.LogCaptureFixture) -> None:
    """Guards against whatever else is written to the stream: skipped and counted, with one warning."""
    reader, client, key = channel(opened, server.url), server.client(), parse_address(server.url).key("t")
    good = encode([piece(1, 2)], 7)
    bad = [{b"d": b""}, {b"d": good[:-1]}, {b"x": good}, {b"d": bytes(MAX_BYTES + 1)}, {b"d": b"\xff" * 999}]
    bad.append({b"d": encode([piece(VOCABULARY)], 7)})
    with caplog.at_level(logging.WARNING):
        for fields in [*bad, {b"d": good}]:
            client.xadd(key, fields)
        assert tokens_of(reader, 2) == [1, 2]
    assert reader.counts.refused == len(bad)
    assert len(caplog.records) == 1
    client.close()


def test_outages_are_survived(server: Server, opened: list[RedisChannel], caplog: pytest.LogCaptureFixture) -> None:
    """Guards rounds: while the server is gone nothing raises or waits; one warning; then sharing goes on."""
    sender, reader = channel(opened, server.url), channel(opened, server.url)
    sender.publish(piece(1))
    assert tokens_of(reader, 1) == [1]
    server.kill()
    with caplog.at_level(logging.WARNING):
        assert reader.poll(0.01) == []
        for number in range(2, 5):
            sender.publish(piece(number, start=number))
        assert reader.poll(0.01) == []
        wait_for(lambda: len(caplog.records) == 2)  # one of each channel
        server.start()
        assert tokens_of(reader, 3)[-3:] == [2, 3, 4]  # a message whose answer was lost is sent again
    assert len(caplog.records) == 2
    assert all("decoding continues" in record.getMessage() for record in caplog.records)


def test_a_server_with_an_earlier_clock_is_read(server: Server, opened: list[RedisChannel]) -> None:
    """Guards restarts: ids of a new server may be smaller than those that were read from the old one."""
    client, key = server.client(), parse_address(server.url).key("t")
    client.xadd(key, {b"d": encode([piece(1)], 7)}, id=f"{int(time.time() * 1000) + 10**9}-0")
    reader = channel(opened, server.url)
    assert tokens_of(reader, 1) == [1]
    server.kill()
    reader.poll(0.01)
    server.start()
    channel(opened, server.url).publish(piece(2))
    assert tokens_of(reader, 1) == [2]
    client.close()


def test_a_key_of_another_kind_is_an_outage(
    server: Server, opened: list[RedisChannel], caplog: pytest.LogCaptureFixture
) -> None:
    """Guards against stores that others use too: what cannot be read as a stream is reported, nothing raises."""
    client = server.client()
    client.set(parse_address(server.url).key("t"), "text")
    with caplog.at_level(logging.WARNING):
        found = channel(opened, server.url)
        found.publish(piece(1))
        assert found.poll(0.01) == []
    assert "WRONGTYPE" in caplog.text
    client.close()


def test_passwords(tmp_path: Path, opened: list[RedisChannel], caplog: pytest.LogCaptureFixture) -> None:
    """Guards secrets: a password in the URL is used, and neither it nor a wrong one is ever logged."""
    server = Server(tmp_path, password="sesame")
    try:
        with caplog.at_level(logging.DEBUG):
            right = channel(opened, server.url)
            channel(opened, server.url).publish(piece(1))
            assert tokens_of(right, 1) == [1]
            wrong = channel(opened, server.url.replace("sesame", "mellon"))
            assert wrong.poll(0.01) == []
        assert "cannot be used" in caplog.text
        assert not any(secret in caplog.text for secret in ("sesame", "mellon"))
    finally:
        server.kill()


def test_options_that_redis_does_not_know_are_refused() -> None:
    """Guards users from misspelled options, which would else fail in the background for ever."""
    with pytest.raises(UsageError, match="options of the sharing URL"):
        RedisChannel(parse_address("redis://h?tennant=a"), tokenizer="t", vocabulary=VOCABULARY)
