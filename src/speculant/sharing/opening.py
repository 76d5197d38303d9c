"""From a drafter to one that shares what it learns."""

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
        UnsupportedError: it keeps none, or what it learns from is not text alone.
    """
    if not learns_from_text(method):
        raise UnsupportedError(
            f"the method '{method.name}' has no memory that learns from committed tokens alone, so it cannot learn "
            "from other replicas; leave out share=, --share in a command, or use 'mix'."
        )


def check_address(share: str) -> None:
    """Check that a URL names a place to share by, and that redis-py is there.

    Raises:
        UsageError: it names none.
        UnsupportedError: redis-py is not installed.
    """
    parse_address(share)
    check_packages(["redis"], what="sharing", extra="share")


def open_sharing(drafter: Drafter, share: Any, *, method: Method, tokenizer: str, vocabulary: int) -> SharingDrafter:
    """Return the drafter that owns this one, publishes what is committed and learns what others publish.

    Args:
        drafter: what the method has built.
        share: a URL, see `parse_address`, or a `Channel`.
        method: of the drafter.
        tokenizer: fingerprint of the target's tokenizer; replicas with others never exchange tokens.
        vocabulary: V of the target.

    Raises:
        UsageError: the URL names no place.
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
