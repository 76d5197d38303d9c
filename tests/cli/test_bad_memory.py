"""A memory file that cannot be read or written costs speed, never the text."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from memories import saved
from speculant import Speculator
from speculant.cli.main import main
from speculant.core.drafter import SessionRequest

GENERATE = ["generate", "Once upon a time", "--max-new-tokens", "12"]
CaptureFixture = pytest.CaptureFixture[str]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def of_another_tokenizer(path: Path) -> None:
    saved(path, "mix", [1, 2, 3])


def of_another_method(path: Path) -> None:
    saved(path, "aded", [1, 2, 3])


def locked(path: Path) -> None:
    path.chmod(0o200)


FAULTS = {
    "cut": (cut, "is cut short"),
    "flipped": (flip_a_bit, "is damaged"),
    "empty": (empty, "is not a Speculant memory file"),
    "tokenizer": (of_another_tokenizer, "was made with another tokenizer"),
    "kind": (of_another_method, "holds a memory of kind 'trigram'"),
    "unreadable": (locked, "cannot read the memory file"),
}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """Return a memory of the bundled model, large enough to be damaged anywhere."""
    path, speculator = tmp_path / "memory", Speculator.from_pretrained()
    speculator.generate("The little dog ran", max_new_tokens=8, temperature=0)
    speculator.save(path)
    return path


def random_ids(length: int) -> np.ndarray:
    """Return ids of the bundled model that hardly repeat."""
    return np.random.default_rng(0).integers(0, 4096, length).astype(np.int32)


def plain(capsys: CaptureFixture) -> str:
    """Return the text without a memory."""
    assert main(GENERATE) == 0
    return capsys.readouterr().out


def refused(err: str, path: Path, cause: str) -> bool:
    """Say whether there is one warning, and it names file, cause and what happens now."""
    warnings = [line for line in err.splitlines() if line.startswith("warning: ")]
    named = [str(path) in line and cause in line and "begins with an empty memory" in line for line in warnings]
    return named == [True] and "error: " not in err


@pytest.mark.parametrize(("spoil", "cause"), FAULTS.values(), ids=FAULTS)
def test_generate_goes_on_without(
    spoil: Callable[[Path], None], cause: str, good: Path, capsys: CaptureFixture
) -> None:
    """The text is what it always is, a warning says why nothing was remembered, and the file stays for its owner."""
    if spoil is locked and os.geteuid() == 0:
        pytest.skip("nothing is locked to root")
    spoil(good)
    mode, size = good.stat().st_mode, good.stat().st_size
    expected = plain(capsys)
    assert main([*GENERATE, "--memory", str(good)]) == 0
    out, err = capsys.readouterr()
    assert out == expected
    assert refused(err, good, cause)
    assert (good.stat().st_mode, good.stat().st_size) == (mode, size)


def test_a_bad_file_is_not_overwritten(good: Path, capsys: CaptureFixture) -> None:
    """Whoever has no copy may still want to rescue what is in it."""
    flip_a_bit(good)
    before = good.read_bytes()
    assert main([*GENERATE, "--memory", str(good), "--compare"]) == 0
    assert refused(capsys.readouterr().err, good, "is damaged")
    assert good.read_bytes() == before
    assert os.listdir(good.parent) == ["memory"]


def test_a_memory_above_the_limit(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A limit that became too small is said, and the memory is not lost to it."""
    path, speculator = tmp_path / "memory", Speculator.from_pretrained()
    speculator.drafter.open(SessionRequest(prompt=random_ids(60_000)))
    speculator.save(path)
    before = path.read_bytes()
    assert main([*GENERATE, "--memory", str(path), "--memory-limit", "1MiB"]) == 0
    assert refused(capsys.readouterr().err, path, "Raise the limit")
    assert path.read_bytes() == before


def test_chat_goes_on_without(good: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture) -> None:
    """The conversation is held all the same."""
    cut(good)
    before = good.read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Tom\nSue\n")))
    assert main(["chat", "--max-new-tokens", "12", "--memory", str(good)]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) >= 2
    assert refused(err, good, "is cut short")
    assert good.read_bytes() == before


@pytest.mark.parametrize("command", [GENERATE, ["chat", "--max-new-tokens", "12"]], ids=["generate", "chat"])
def test_a_full_disk_at_the_end(
    command: list[str], good: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """The text is out, the old memory stands, and message and exit code tell that nothing new was saved."""

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    before = good.read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Once upon a time\n")))
    monkeypatch.setattr(os, "fsync", fail)
    assert main([*command, "--memory", str(good)]) == 1
    out, err = capsys.readouterr()
    assert len(out) > 12
    assert err.splitlines()[-1].startswith(f"error: cannot write the memory file {good}: No space left on device.")
    assert good.read_bytes() == before
    assert os.listdir(good.parent) == ["memory"]


def test_a_missing_file_is_no_fault(tmp_path: Path, capsys: CaptureFixture) -> None:
    """It is how every memory begins."""
    assert main([*GENERATE, "--memory", str(tmp_path / "memory")]) == 0
    assert "warning" not in capsys.readouterr().err
    Speculator.from_pretrained(memory=tmp_path / "memory")


def test_methods_without_memory_refuse_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """The request makes no sense, whatever the file."""
    monkeypatch.setattr("speculant.api.loading.load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    assert main([*GENERATE, "--method", "lookup", "--memory", "memory"]) == 2
    assert "'lookup' keeps no memory; leave out --memory" in capsys.readouterr().err
