"""Addresses for sharing: redis://[user:password@]host:port[/db][?stream=NAME&tenant=NAME&entries=N].

Speculant's own parameters are removed from the query; the rest of the URL is passed to redis-py, which supports
passwords, rediss:// for TLS with its options, and unix:// sockets. Addresses are shown without user and password.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from speculant.core.errors import UsageError

SCHEMES = ("redis", "rediss", "unix")
STREAM, TENANT, ENTRIES = "speculant", "default", 4096
MAX_ENTRIES = 1 << 20
_FORM = "redis://host:port[/db][?stream=NAME&tenant=NAME&entries=N]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A store and a stream in it.

    Attributes:
        url: URL for redis-py; may contain a password, so it is never shown.
        shown: the URL for display, without user, password and options.
        stream: a name that all replicas of a service use.
        tenant: the tenant whose texts are shared; tenants do not learn from each other.
        entries: maximum number of messages in the stream.
    """

    url: str
    shown: str
    stream: str = STREAM
    tenant: str = TENANT
    entries: int = ENTRIES

    def key(self, tokenizer: str) -> str:
        """Return the stream's key for a tokenizer fingerprint; names are quoted so that keys are unique."""
        return ":".join(["speculant", *(quote(part, safe="") for part in (self.stream, self.tenant, tokenizer))])

    def __repr__(self) -> str:
        return f"Address({self.shown}, stream={self.stream!r}, tenant={self.tenant!r})"


def parse_address(text: str) -> Address:
    """Parse an address from a URL.

    Raises:
        UsageError: the URL is invalid. The message does not repeat it, since it may contain a password.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise UsageError(f"the sharing URL cannot be parsed. Its form is {_FORM}.") from None
    place = parts.path if parts.scheme == "unix" else parts.hostname
    if parts.scheme not in SCHEMES or not place:
        raise UsageError(
            f"the sharing URL must begin with redis://, rediss:// or unix:// and name a host or socket: {_FORM}."
        )
    if parts.scheme != "unix" and parts.path.strip("/") and not parts.path.strip("/").isdigit():
        raise UsageError("the database in the sharing URL must be a number, as in redis://host:6379/0.")
    own, rest = dict[str, str](), list[tuple[str, str]]()
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in ("stream", "tenant", "entries"):
            own[name] = value
        else:
            rest.append((name, value))
    entries = own.pop("entries", str(ENTRIES))
    if not entries.isdigit() or not 1 <= int(entries) <= MAX_ENTRIES:
        raise UsageError(f"entries= of the sharing URL must be a whole number from 1 to {MAX_ENTRIES}.")
    if not all(own.values()):
        raise UsageError("stream= and tenant= of the sharing URL must not be empty; leave them out for the defaults.")
    shown = place if parts.scheme == "unix" else f"{place}:{port or 6379}{parts.path}"
    return Address(
        url=text.partition("?")[0] + ("?" + urlencode(rest) if rest else ""),
        shown=shown,
        stream=own.get("stream", STREAM),
        tenant=own.get("tenant", TENANT),
        entries=int(entries),
    )
