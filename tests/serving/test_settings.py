"""Settings: their order, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dotenv")

from speculant.core.errors import FileError, UsageError
from speculant.integrations.settings import read_settings
from speculant.options.serving import ServingOptions
from speculant.serving import settings


def load_settings(flags: dict[str, Any], *, config: Path | None = None) -> ServingOptions:
    """Return the options of the server alone."""
    return settings.load_settings(flags, config=config)[-1]


def test_flags_then_environment_then_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the order of sources."""
    file = tmp_path / "settings"
    file.write_text("SPECULANT_PORT=1\nSPECULANT_MAX_QUEUE=1\nSPECULANT_MAX_CONCURRENCY=1\nSPECULANT_API_KEYS=a, b\n")
    monkeypatch.setenv("SPECULANT_PORT", "2")
    monkeypatch.setenv("SPECULANT_MAX_QUEUE", "2")
    found = load_settings({"port": 3}, config=file)
    assert (found.port, found.max_queue, found.max_concurrency) == (3, 2, 1)
    assert found.api_keys == ("a", "b")
    assert "a', 'b" not in repr(found)


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
        ({"save_seconds": float("inf")}, "save_seconds"),
        ({"request_seconds": float("nan")}, "request_seconds"),
        ({"body_seconds": 0}, "body_seconds"),
        ({"stall_seconds": 1e12}, "stall_seconds"),
        ({"drain_seconds": 1 << 40}, "drain_seconds"),
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


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("SPECULANT_MAX_QUEU=1", "SPECULANT_MAX_QUEU is not a setting .*Did you mean SPECULANT_MAX_QUEUE?"),
        ("api_keys=x", "api_keys is not a setting .*Did you mean SPECULANT_API_KEYS?"),
        ("port = 9000", "port is not a setting .*Did you mean SPECULANT_PORT?"),
        ("SPECULANT_PORT 9000", "is not of the form SPECULANT_NAME=value"),
        ("SPECULANT_PORT", "is not of the form SPECULANT_NAME=value"),
        ("SPECULANT_HOST='open", "is not of the form SPECULANT_NAME=value"),
        ("SPECULANT_PORT=abc", "SPECULANT_PORT must be a whole number .*'abc'"),
        ("SPECULANT_MEMORY_LIMIT=lots", "SPECULANT_MEMORY_LIMIT must be .*lots"),
        ("SPECULANT_API_KEYS=with space", "SPECULANT_API_KEYS must be printable"),
    ],
)
def test_lines_of_the_file_that_are_refused(tmp_path: Path, line: str, match: str) -> None:
    """Guards lines that were ignored, which left a server open, and errors that did not name file, line and setting."""
    file = tmp_path / "settings"
    file.write_text(f"# of the server\nSPECULANT_SAVE_SECONDS=60\n\n{line}\n")
    with pytest.raises(UsageError, match=f"settings, line 4:? .*{match}") as caught:
        load_settings({}, config=file)
    assert "with space" not in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("PORT", "abc"), ("MEMORY_LIMIT", "lots"), ("LOG_FORMAT", "xml")])
def test_wrong_values_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Guards the message of a wrong value: it names the variable, also where a file has a right one."""
    file = tmp_path / "settings"
    file.write_text("SPECULANT_PORT=1\n")
    monkeypatch.setenv(f"SPECULANT_{name}", value)
    with pytest.raises(UsageError, match=f"the environment variable SPECULANT_{name} must be .*{value}"):
        load_settings({}, config=file)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    """Guards the message of a file in another encoding."""
    file = tmp_path / "settings"
    file.write_bytes(b"SPECULANT_HOST=\xff\xfe\n")
    with pytest.raises(FileError, match="settings"):
        load_settings({}, config=file)


@pytest.mark.parametrize(("name", "near"), [("API_KEY", "API_KEYS"), ("HOTS", "HOST")])
def test_unknown_variables_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, near: str) -> None:
    """Guards misspelled variables: `SPECULANT_API_KEY` would leave a server open."""
    monkeypatch.setenv(f"SPECULANT_{name}", "1")
    with pytest.raises(UsageError, match=f"SPECULANT_{name} is not .*SPECULANT_{near}"):
        load_settings({})


def test_variables_of_other_commands_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards variables that are no settings."""
    monkeypatch.setenv("SPECULANT_BASES", "folder")
    monkeypatch.setenv("SPECULANT_DATA", "folder")
    assert load_settings({}).port == 8000


@pytest.mark.parametrize("text", ["inf", "nan", "-1", "0", "1e9"])
def test_seconds_have_the_same_bounds_everywhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """Guards flags and the environment against values that the other refuses; fractions are taken by both."""
    from speculant.cli.main import main

    assert main(["serve", "--save-seconds", text]) == 2
    assert "save" in capsys.readouterr().err
    monkeypatch.setenv("SPECULANT_SAVE_SECONDS", text)
    with pytest.raises(UsageError, match="SPECULANT_SAVE_SECONDS"):
        load_settings({})
    monkeypatch.setenv("SPECULANT_SAVE_SECONDS", "0.3")
    assert load_settings({}).save_seconds == 0.3


def test_fractions_of_seconds_as_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """Guards `--save-seconds 0.3`, which the environment takes; the host is refused before anything is loaded."""
    from speculant.cli.main import main

    assert main(["serve", "--save-seconds", "0.3", "--host", "0.0.0.0"]) == 2
    assert "--allow-no-key" in capsys.readouterr().err
