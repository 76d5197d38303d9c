"""What `speculant demo` prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from speculant.bench import demo as bench
from speculant.bench.demo import DemoAnswer, DemoRequest, Measured, Scene
from speculant.cli import demo
from speculant.cli.main import main


def measured(name: str, *, identical: bool = True) -> Measured:
    """Return a scene of two requests, the second twice as fast with drafts."""
    answers = [
        DemoAnswer(
            request=DemoRequest(label, label),
            tokens=20,
            plain=2.0,
            drafted=seconds,
            identical=identical,
            parts=[("plain ", False), ("guessed", True)],
        )
        for label, seconds in (("a story", 2.0), ("a story that was " + "very " * 20 + "long", 1.0))
    ]
    return Measured(Scene(name=name, method="mix", requests=(), maximum=1), answers)


def rendered(part: object, **options: object) -> str:
    """Return what a console of 100 columns prints."""
    console = Console(width=100, highlight=False, **options)  # type: ignore[arg-type]
    with console.capture() as capture:
        console.print(part)
    return capture.get()


def test_every_request_has_its_speed_up() -> None:
    """The rise over a session is what the first scene shows."""
    lines = rendered(demo.scene_block(measured("session"))).splitlines()
    assert lines[1].split()[0] == "1.00x"
    assert lines[2].split()[0] == "2.00x"
    assert lines[2].count("█") == 2 * lines[1].count("█")
    assert len(lines[2]) <= 100


def test_an_edit_shows_its_text_and_what_was_guessed() -> None:
    """Colour says which tokens were drafted, on terminals only."""
    block = demo.scene_block(measured("edit"))
    assert "plain guessed" in rendered(block)
    assert "\x1b[" not in rendered(block)
    assert "\x1b[32mguessed" in rendered(block, force_terminal=True, color_system="standard")


def test_the_table_says_how_fast_and_whether_identical() -> None:
    """The last thing printed is the result."""
    table = rendered(demo.summary([measured("session"), measured("edit", identical=False)]))
    rows = [line.strip("│ ").split("│") for line in table.splitlines() if "x" in line]
    assert [[cell.strip() for cell in row[1:]] for row in rows] == [
        ["10", "13", "1.33x", "yes"],
        ["10", "13", "1.33x", "no"],
    ]


def test_the_command_measures_every_scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards the whole, on scenes cut short."""
    short = [
        Scene(name=scene.name, method=scene.method, requests=scene.requests[:1], maximum=6, base=scene.base)
        for scene in bench.scenes()
    ]
    monkeypatch.setattr(bench, "scenes", lambda: short)
    monkeypatch.setattr(bench, "REPETITIONS", 1)
    path = tmp_path / "demo.json"
    assert main(["demo", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.rstrip().splitlines()[-2].split("│")[-2].strip() == "yes"
    found = json.loads(path.read_text())
    assert [scene["scene"] for scene in found["scenes"]] == ["session", "edit", "base"]
    assert found["environment"]["threads"] == 1
