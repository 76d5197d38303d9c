"""Setting up sharing: checks its preconditions and wraps a drafter."""

from __future__ import annotations

from typing import Any

from speculant.core.drafter import Drafter
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.packages import check_packages
from speculant.registry import Method, learns_from_text
from speculant.sharing.address import parse_address
from speculant.sharing.channel import Channel
from speculant.sharing.drafter import SharingDrafter
from speculant.sharing.redis_streams import RedisChannel


def check_sharing(method: Method) -> None:
    """Check that a method's memory can be shared.

    Raises:
        UnsupportedError: it has no memory, or does not learn from text alone.
    """
    if not learns_from_text(method):
        raise UnsupportedError(
            f"the method '{method.name}' has no memory that learns from committed tokens alone, so it cannot learn "
            "from other replicas; leave out share=, --share in a command, or use 'mix'."
        )


def check_address(share: str) -> None:
    """Check that a URL is a valid address for sharing, and that redis-py is installed.

    Raises:
        UsageError: the URL is not a valid address.
        UnsupportedError: redis-py is not installed.
    """
    parse_address(share)
    check_packages(["redis"], what="sharing", extra="share")


def open_sharing(drafter: Drafter, share: Any, *, method: Method, tokenizer: str, vocabulary: int) -> SharingDrafter:
    """Wrap a drafter in one that publishes committed tokens and learns what other replicas publish.

    Args:
        drafter: the drafter that the method has built.
        share: a URL, see `parse_address`, or a `Channel`.
        method: method of the drafter.
        tokenizer: fingerprint of the target's tokenizer; replicas with different ones never exchange tokens.
        vocabulary: V of the target.

    Raises:
        UsageError: the URL is not a valid address.
        UnsupportedError: the method cannot learn from text, or redis-py is not installed.
    """
    check_sharing(method)
    if isinstance(share, str):
        share = RedisChannel(parse_address(share), tokenizer=tokenizer, vocabulary=vocabulary)
    elif not isinstance(share, Channel):
        raise UsageError(
            f"share takes a URL such as redis://host:6379, or an object with publish, poll and close, not "
            f"{type(share).__name__}."
        )
    return SharingDrafter(drafter, share)
