"""uvicorn around the application: binds early, drains on the first signal, exits immediately on the second.

SIGHUP reloads files (`serving.reloading`). If it means that the terminal was closed, it acts like SIGTERM, and further
ones are ignored, since terminals and service managers send several.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from speculant.core.errors import UsageError
from speculant.serving.connection import BoundedConnection

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from speculant.options.serving import ServingOptions

HEADER_BYTES = 32 << 10
KEEP_ALIVE_SECONDS = 30
HANGUP = getattr(signal, "SIGHUP", None)  # not on Windows
SIGNALS = tuple(each for each in (signal.SIGINT, signal.SIGTERM, HANGUP) if each is not None)


class Server(uvicorn.Server):
    """Runs the application.

    Attributes:
        ready: called once requests are accepted.
        reload: called on the event loop on SIGHUP.
    """

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], reload: Callable[[], object]) -> None:
        super().__init__(config)
        self.ready, self.reload = ready, reload
        self._has_terminal = has_terminal()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting requests, and call `ready`."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self.ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals in this context; none is raised again afterwards, so that a drained server exits normally."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]  # `nohup` ignores SIGHUP
        before = {each: signal.signal(each, self.handle_exit) for each in signals}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first signal; on the second, exit as if there were no handler. Reload files on SIGHUP."""
        if sig == HANGUP and (self.should_exit or not self._has_terminal or has_terminal()):
            if not self.should_exit and self._loop is not None:
                self._loop.call_soon_threadsafe(self.reload)
            return
        if self.should_exit:
            signal.signal(sig, signal.SIG_DFL)
            os.kill(os.getpid(), sig)
        super().handle_exit(sig, frame)


def has_terminal() -> bool:
    """Return whether the process has a terminal that has not been closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except (OSError, AttributeError):  # Windows has neither the file nor the flag
        return False
    return True


def bind(settings: ServingOptions) -> socket.socket:
    """Return a socket that listens on the configured address, so that a port in use is noticed before loading a model.

    Raises:
        UsageError: it is not possible to listen there.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind)
    except OSError as error:
        raise UsageError(f"--host {settings.host}: {error.strerror}. Name an address of this machine.") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        raise UsageError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}. Name another --port."
        ) from error
    return bound


def url(bound: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(
    app: Starlette,
    settings: ServingOptions,
    ready: Callable[[], None],
    reload: Callable[[], object] = lambda: None,
) -> Server:
    """Return a server of the application; its `run(sockets=[...])` returns once it is drained; see `Server`."""
    options: dict[str, Any] = {
        "access_log": False,
        "log_config": None,
        "http": partial(
            BoundedConnection,
            head_seconds=settings.body_seconds,
            stall_seconds=settings.stall_seconds,
            maximum=settings.max_connections,
        ),  # based on h11, whose header size limit is known
        "h11_max_incomplete_event_size": HEADER_BYTES,
        "ws": "none",
        "lifespan": "on",
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        "timeout_graceful_shutdown": settings.drain_seconds,
        "server_header": False,
    }
    server = Server(uvicorn.Config(app, **options), ready, reload)
    app.state.leaving = lambda: server.should_exit
    return server
