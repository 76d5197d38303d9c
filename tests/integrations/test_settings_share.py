"""Sharing inside other engines: the setting, and which processes share."""

from __future__ import annotations

import pytest

from speculant.core.errors import UnsupportedError, UsageError
from speculant.integrations.settings import IntegrationSettings, read_settings
from speculant.sharing.drafter import SharingDrafter

URL = "redis://:secret@127.0.0.1:1?tenant=a"


def test_the_url_is_checked_and_never_shown() -> None:
    """Guards secrets, and servers from a start with a URL that names no store."""
    settings = read_settings({"SPECULANT_SHARE": URL})
    assert settings.share == URL
    assert "secret" not in repr(settings)
    with pytest.raises(UsageError, match="sharing URL"):
        read_settings({"SPECULANT_SHARE": "localhost"})
    with pytest.raises(UnsupportedError, match="'lookup' has no memory"):
        read_settings({"SPECULANT_SHARE": URL, "SPECULANT_METHOD": "lookup"})


def test_one_process_of_several_shares() -> None:
    """Guards streams from the same tokens by every rank."""
    pytest.importorskip("redis")
    settings = IntegrationSettings(share=URL, method="maxgram")
    assert not isinstance(settings.build(vocabulary=9, tokenizer="t", shares=False), SharingDrafter)
    drafter = settings.build(vocabulary=9, tokenizer="t")
    assert isinstance(drafter, SharingDrafter)
    drafter.close()
