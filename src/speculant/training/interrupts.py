"""Lets Ctrl-C and SIGTERM end a training after the current step, so that its state can be saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Whether a signal was received, and which."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __bool__(self) -> bool:
        return self.number is not None


@contextmanager
def defer_interrupts() -> Iterator[Interrupt]:
    """Defer the first signal; a second one takes effect at once, as do all outside of the main thread.

    Yields:
        An object that tells whether a signal was received. On exit, the deferred signal is delivered.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def note(number: int, _frame: FrameType | None) -> None:
        interrupt.number = number
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield interrupt
    finally:
        restore()
    if interrupt.number is not None:
        signal.raise_signal(interrupt.number)
