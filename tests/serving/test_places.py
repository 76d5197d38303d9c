"""The places of a model: what a tenant may take while others ask."""

from __future__ import annotations

import pytest

from speculant.serving.errors import ApiError
from speculant.serving.places import Places


def test_no_key_takes_the_whole_queue() -> None:
    """Guards the place that is kept for each key that has asked: others cannot take it, by one request or several."""
    places = Places(1, 4)
    places.take("quiet", 1)
    places.release("quiet")
    with pytest.raises(ApiError, match="at most 4 texts"):
        places.take("busy", 5)
    places.take("busy", 4)
    with pytest.raises(ApiError, match="at most 4 texts") as refusal:
        places.take("busy", 1)
    assert refusal.value.status == 429
    places.take("quiet", 1)
    with pytest.raises(ApiError, match="at most 5 texts"):
        places.take("new", 1)
    assert (places.count_used(), places.count_used("busy"), places.count_used("quiet")) == (5, 4, 1)


def test_kept_places_are_half_of_the_queue_and_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards a server with many keys, most of which are silent: the queue stays open for those that ask."""
    places = Places(1, 4)
    for tenant in "abcdef":
        places.take(tenant, 1)
        places.release(tenant)
    with pytest.raises(ApiError, match="at most 3 texts"):
        places.take("busy", 4)
    places.take("busy", 3)
    places.release("busy", 3)
    monkeypatch.setattr("speculant.serving.places._RECENT", 0.0)
    places.take("busy", 5)
