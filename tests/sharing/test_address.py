"""URLs of the store: what is ours, what is redis-py's, and what is never shown."""

from __future__ import annotations

import pytest

from speculant.core.errors import UsageError
from speculant.sharing.address import ENTRIES, parse_address


def test_defaults() -> None:
    """A place alone is enough."""
    found = parse_address("redis://host")
    assert (found.url, found.shown, found.entries) == ("redis://host", "host:6379", ENTRIES)
    assert found.key("f") == "speculant:speculant:default:f"


def test_own_options_leave_the_url() -> None:
    """Guards redis-py from options that it does not know, and keeps those that it does."""
    found = parse_address("rediss://u:p%40ss@h:7/2?tenant=a&ssl_ca_certs=x.pem&stream=s&entries=9")
    assert found.url == "rediss://u:p%40ss@h:7/2?ssl_ca_certs=x.pem"
    assert (found.stream, found.tenant, found.entries, found.shown) == ("s", "a", 9, "h:7/2")
    assert parse_address("unix:///run/redis.sock?tenant=b").url == "unix:///run/redis.sock"


def test_secrets_are_not_shown() -> None:
    """Guards logs: neither what is shown nor `repr` holds user, password or options."""
    found = parse_address("redis://name:secret@h:7/2?password=secret")
    assert not any(secret in f"{found!r} {found.shown}" for secret in ("name", "secret"))


def test_names_share_no_key() -> None:
    """Guards tenants: no choice of names gives the key of others."""
    keys = {
        parse_address(f"redis://h?stream={stream}&tenant={tenant}").key("f")
        for stream, tenant in (("a%3Ab", "c"), ("a", "b%3Ac"), ("a", "b"), ("a%2Fb", "c"))
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    "url",
    [
        "host:6379",
        "http://host",
        "redis://",
        "redis://:secret@",
        "redis://h:secret",
        "redis://:secret@h/name",
        "redis://:secret@h?entries=0",
        "redis://:secret@h?entries=x",
        "redis://:secret@h?tenant=",
        "redis://[h",
    ],
)
def test_other_urls_are_refused_without_being_repeated(url: str) -> None:
    """Guards users from silent defaults, and passwords from error messages."""
    with pytest.raises(UsageError, match="sharing URL") as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)
