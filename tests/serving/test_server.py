"""Signals: the first one drains, and a drained server has ended well."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn

from speculant.serving import server as module
from speculant.serving.server import Server


@pytest.fixture
def server() -> Server:
    """Return a server that is not started."""
    return Server(uvicorn.Config(lambda: None), ready=lambda: None, reload=lambda: None)


@pytest.fixture
def closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Close the terminal of the server."""
    server._has_terminal = True
    monkeypatch.setattr(module, "has_terminal", lambda: False)


@pytest.mark.usefixtures("closed")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_drains(server: Server, number: signal.Signals) -> None:
    """Guards the end by any of the signals: it is asked for once, and not raised again after the drain."""
    raised: list[int] = []
    before = signal.signal(number, lambda sig, _frame: raised.append(sig))
    try:
        with server.capture_signals():
            signal.raise_signal(number)
            assert server.should_exit
        assert raised == []
    finally:
        signal.signal(number, before)


def test_further_hangups_do_not_cut_the_drain_short(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards terminals and service managers, which send SIGHUP beside other signals or several times."""
    killed: list[Any] = []
    monkeypatch.setattr("speculant.serving.server.os.kill", lambda *given: killed.append(given))
    with server.capture_signals():
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGHUP):
            signal.raise_signal(number)
    assert server.should_exit
    assert killed == []


@pytest.mark.parametrize("terminal", [False, True])
def test_a_hangup_reads_files_again(server: Server, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards SIGHUP of service managers, and of users whose terminal is open: it ends nothing."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under `nohup`, whose servers ignore it
    server._has_terminal = terminal
    monkeypatch.setattr(module, "has_terminal", lambda: terminal)
    calls: list[int] = []

    async def hang_up() -> None:
        server._loop, server.reload = asyncio.get_running_loop(), lambda: calls.append(1)
        signal.raise_signal(signal.SIGHUP)
        await asyncio.sleep(0)

    with server.capture_signals():
        asyncio.run(hang_up())
    assert calls == [1]
    assert not server.should_exit


def test_nohup_is_respected(server: Server) -> None:
    """Guards `nohup speculant serve`: a hangup that is ignored stays ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with server.capture_signals():
            signal.raise_signal(signal.SIGHUP)
            assert not server.should_exit
    finally:
        signal.signal(signal.SIGHUP, before)
