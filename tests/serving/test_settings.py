"""Settings: their order, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_settings")

from speculant.core.errors import FileError, UsageError
from speculant.integrations.settings import read_settings
from speculant.serving.settings import load_settings


def test_flags_then_environment_then_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the order of sources."""
    file = tmp_path / "settings"
    file.write_text("SPECULANT_PORT=1\nSPECULANT_MAX_QUEUE=1\nSPECULANT_MAX_CONCURRENCY=1\nSPECULANT_API_KEYS=a, b\n")
    monkeypatch.setenv("SPECULANT_PORT", "2")
    monkeypatch.setenv("SPECULANT_MAX_QUEUE", "2")
    found = load_settings({"port": 3, "host": None}, config=file)
    assert (found.port, found.max_queue, found.max_concurrency) == (3, 2, 1)
    assert [key.get_secret_value() for key in found.api_keys] == ["a", "b"]
    assert "a" not in str(found.api_keys)


def test_bytes_are_read_as_integrations_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards one meaning of `SPECULANT_MEMORY_LIMIT`: units, and bytes without one, in the server and elsewhere."""
    for text in ("1GB", "512 MiB", "268435456"):
        monkeypatch.setenv("SPECULANT_MEMORY_LIMIT", text)
        expected = read_settings({"SPECULANT_MEMORY_LIMIT": text}).memory_limit
        assert load_settings({}).memory_limit == expected
    monkeypatch.setenv("SPECULANT_MEMORY_LIMIT", "256")
    with pytest.raises(UsageError, match="256MiB"):
        load_settings({})
    assert load_settings({"memory_limit": 8 << 20, "prefix_cache": 0}).prefix_cache == 0
    file = tmp_path / "settings"
    file.write_text("SPECULANT_PREFIX_CACHE=64MiB\n")
    assert load_settings({"memory_limit": 8 << 20}, config=file).prefix_cache == 64 << 20


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        ({"host": "0.0.0.0"}, "allow-no-key"),
        ({"host": "example.org"}, "allow-no-key"),
        ({"memory_scope": "key"}, "api-key"),
        ({"port": 70000}, "port"),
        ({"api_keys": ("with space",)}, "api_keys"),
        ({"max_queue": -1}, "max_queue"),
        ({"memory_limit": "much"}, "memory_limit"),
        ({"memory_limit": 0}, "memory_limit"),
        ({"prefix_cache": -1}, "prefix_cache"),
        ({"log_format": "xml"}, "log_format"),
    ],
)
def test_what_is_refused(flags: dict[str, Any], match: str) -> None:
    """Guards unsafe and senseless settings; the message names them."""
    with pytest.raises(UsageError, match=match):
        load_settings(flags)


@pytest.mark.parametrize(
    "flags",
    [
        {"host": "::1"},
        {"host": "localhost"},
        {"host": "0.0.0.0", "allow_no_key": True},
        {"host": "0.0.0.0", "api_keys": ("k",)},
    ],
)
def test_what_is_taken(flags: dict[str, Any]) -> None:
    """Guards loopback addresses, keys and insistence."""
    assert load_settings(flags).host == flags["host"]


def test_config_file_must_exist(tmp_path: Path) -> None:
    """Guards against a misspelled file, which would leave the defaults."""
    with pytest.raises(FileError, match="nothing"):
        load_settings({}, config=tmp_path / "nothing")
    file = tmp_path / "settings"
    file.write_text("SPECULANT_PROT=1\n")
    with pytest.raises(UsageError, match="prot"):
        load_settings({}, config=file)
