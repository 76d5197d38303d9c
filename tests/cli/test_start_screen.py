"""The screen that `speculant serve` shows once requests are accepted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from speculant.cli.start_screen import start_screen
from speculant.options.serving import ServingOptions
from speculant.serving.start_speed import StartSpeed

LOADED: Any = SimpleNamespace(speculator=SimpleNamespace(method="mix"), threads="2, all cores")


def screen(speed: StartSpeed | None = None, **options: Any) -> dict[str, str]:
    """Return the lines by their titles."""
    given = {name: options.pop(name) for name in ("keys", "keeps", "unused") if name in options}
    serving = ServingOptions(**options)
    text = start_screen(
        LOADED, serving, name="tiny", address="http://127.0.0.1:8000", speed=speed, prefixes=1 << 31, **given
    )
    return {line[:12].rstrip(): line[12:] for line in text.splitlines()}


def test_all_that_is_to_be_known_stands_there() -> None:
    """Guards the screen: model, address, method, speed, memory, keys, how to stop and the page."""
    lines = screen(StartSpeed(plain=310.4, drafted=1402.0))
    assert list(lines) == ["serving", "method", "speed", "memory", "prompts", "keys", "threads", "API", "stop", "page"]
    assert lines["serving"] == "tiny on http://127.0.0.1:8000"
    assert lines["speed"] == "1,402 tokens/s with drafts on a new text, 310 tokens/s without drafts"
    assert lines["memory"] == "up to 256 MiB, not saved; --memory FILE keeps it"
    assert lines["prompts"] == "up to 2,048 MiB of what they have in common is kept"
    assert lines["keys"].startswith("none")
    assert lines["page"].startswith("http://127.0.0.1:8000/ ")


def test_memories_and_keys_in_words(tmp_path: Path) -> None:
    """Guards what is said of files: where memories are saved, which could not be used, and which methods have none."""
    file = tmp_path / "m.speculant"
    assert screen(memory=file, memory_limit="1GiB")["memory"] == f"up to 1,024 MiB, saved to {file}"
    by_key = screen(memory=file, api_keys=("a", "b"), memory_scope="key", keys=2)
    assert by_key["memory"] == f"up to 256 MiB in all, one per key, saved next to {file}"
    assert by_key["keys"] == "2 API keys; requests must carry one"
    assert "cannot be used" in screen(memory=file, unused=[file])["memory"]
    assert screen(keeps=False)["memory"] == "none: the method keeps none"
    assert screen(keeps=False, corpus=file)["memory"].startswith(f"starts from {file}, not saved")


def test_a_speed_that_was_not_measured_is_left_out() -> None:
    """Guards models that decode no texts, and those on which drafts would take long to measure."""
    assert "speed" not in screen()
    assert screen(StartSpeed(plain=4.21))["speed"] == "4.21 tokens/s without drafts"
