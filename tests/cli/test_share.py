"""`--share` in the commands that take `--memory`."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

pytest.importorskip("redis")

from redis_server import Server, needs_server
from speculant.cli.main import main

CaptureFixture = pytest.CaptureFixture[str]
SHORT = ["--max-new-tokens", "12"]


@needs_server
def test_a_second_process_drafts_what_the_first_one_decoded(
    capsys: CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the way through the options, the variable too: what is committed is published before the command ends."""
    server = Server(tmp_path)
    try:
        assert main(["generate", "Once upon a time", *SHORT, "--share", server.url]) == 0
        first = capsys.readouterr().out
        client = server.client()
        [key] = client.keys()
        assert key.startswith(b"speculant:speculant:default:")
        client.close()
        monkeypatch.setenv("SPECULANT_SHARE", server.url)
        monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
        assert main(["chat", *SHORT]) == 0
        assert main(["generate", "Once upon a time", *SHORT, "--method", "suffix"]) == 0
        assert first in capsys.readouterr().out
    finally:
        server.kill()


def test_without_a_server_the_text_is_the_same(capsys: CaptureFixture, caplog: pytest.LogCaptureFixture) -> None:
    """Guards text: a store that is not there is a warning."""
    assert main(["generate", "Once upon a time", *SHORT]) == 0
    alone = capsys.readouterr().out
    assert main(["generate", "Once upon a time", *SHORT, "--share", "redis://:secret@127.0.0.1:1"]) == 0
    assert capsys.readouterr().out == alone
    assert "127.0.0.1:1 cannot be used" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--share", "localhost"], "begin with redis://"),
        (["--share", ""], "name a store"),
        (["--share", "redis://h", "--method", "lookup"], "no memory that learns from committed tokens"),
    ],
)
def test_what_cannot_be_shared_is_refused(options: list[str], message: str, capsys: CaptureFixture) -> None:
    """Guards users from waiting for a model in vain."""
    assert main(["generate", "Once", *options]) == 2
    assert message in capsys.readouterr().err
