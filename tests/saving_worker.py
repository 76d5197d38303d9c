"""A worker process of an engine, in a module that a spawned process can import."""

from __future__ import annotations

import signal
from multiprocessing.synchronize import Event
from pathlib import Path

from memories import drafter, learn
from speculant.integrations.kept_memory import BackgroundSaver


def work(path: Path, text: tuple[int, ...], ready: Event, terminated: bool) -> None:
    """Learn a text, then end by returning, or when it is asked to."""
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(SystemExit()))
    held = drafter("aded")
    learn(held, text)
    counts = [0]
    saver = BackgroundSaver(held, path, every=1e6, learned=lambda: counts[0])  # type: ignore[arg-type]
    counts[0] = 1
    ready.set()
    if terminated:
        signal.pause()
    assert saver is not None
