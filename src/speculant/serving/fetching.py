"""Fetching of files that a request names by URL: only from listed hosts, within limits of size and time.

A server that fetches URLs from clients could be made to read its own network (SSRF). So the address that a host name
resolves to is checked and connected to directly, redirects are not followed, and non-public addresses are refused
unless the address itself is listed.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from speculant.serving.errors import ApiError


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Fetches files.

    Attributes:
        hosts: names or addresses, "*.example.com" for all subdomains, "*" for any host; none to fetch nothing.
        max_bytes: maximum size of a file.
        seconds: maximum time for a file.
    """

    hosts: Sequence[str]
    max_bytes: int
    seconds: float

    def fetch(self, url: str, *, kind: str, param: str) -> bytes:
        """Fetch a file of a kind, "image" or "video"; blocks, so it must not be called on the event loop.

        Raises:
            ApiError: the file may not be fetched, or could not be fetched within the limits.
        """
        until = time.monotonic() + self.seconds
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise _make_refusal("it is no address", param) from None
        if parts.scheme not in ("http", "https") or not host or parts.username is not None:
            raise _make_refusal("an address begins with https:// or http:// and holds no user", param)
        if not self._is_listed(host):
            named = "fetches nothing" if not self.hosts else f"does not fetch from {host:.80}"
            raise _make_refusal(f"this server {named}; send the file itself as a data: URL", param)
        try:
            address = self._resolve(host, port)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            return self._read(parts.scheme, host, port, address, path, kind, until, param)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise _make_refusal(f"it could not be fetched ({type(error).__name__})", param) from error

    def _is_listed(self, host: str) -> bool:
        return any(
            each == "*" or host == each or (each.startswith("*.") and host.endswith(each[1:])) for each in self.hosts
        )

    def _resolve(self, host: str, port: int) -> str:
        """Resolve a host to an address that may be connected to.

        Raises:
            OSError: there is no such address.
        """
        for *_, (address, *_) in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            found = ipaddress.ip_address(str(address))
            mapped = getattr(found, "ipv4_mapped", None) or found
            if (mapped.is_global and not mapped.is_multicast) or str(found) in self.hosts:
                return str(found)
        raise ConnectionRefusedError("no public address")

    def _read(
        self, scheme: str, host: str, port: int, address: str, path: str, kind: str, until: float, param: str
    ) -> bytes:
        connection = http.client.HTTPConnection(host, port)
        plain = found = socket.create_connection((address, port), timeout=_left(until))
        end = threading.Timer(_left(until), _shut, [plain])  # a socket timeout would restart with every byte
        end.daemon = True
        end.start()
        try:
            if scheme == "https":
                found = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
            connection.sock = found
            connection.request("GET", path, headers={"Accept": f"{kind}/*", "User-Agent": "speculant"})
            response = connection.getresponse()
            if response.status != 200:
                raise _make_refusal(f"it answered with status {response.status}; redirects are not followed", param)
            body = response.read(self.max_bytes + 1)
            _left(until)
            if len(body) > self.max_bytes:
                raise _make_refusal(f"it is larger than {self.max_bytes} bytes", param)
            return body
        finally:
            end.cancel()
            connection.close()
            found.close()


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _make_refusal(reason: str, param: str) -> ApiError:
    return ApiError(400, f"the file of '{param}' is not taken: {reason}.", param=param, code="invalid_media")
