"""Settings of online distillation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from speculant.core.byte_size import check_bytes
from speculant.core.errors import UsageError
from speculant.registry.settings import find_name

WHEN = ("thread", "idle", "manual")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineSettings:
    """Settings for a drafter's learning while it serves.

    Attributes:
        every: number of requests between updates.
        steps: optimizer steps per update.
        batch: windows of text per step.
        lr: constant learning rate of AdamW; a draft model of the bundled one's size takes ten times the default.
        buffer: maximum bytes of stored text and target outputs, evicting the oldest first; "64MB" also works.
        window: maximum tokens of a stored window; longer texts make several.
        top_k: number of the target's top tokens stored per position, for draft models; heads store hidden states.
        held_out: number of windows that evaluate an update, from those that are never trained on.
        when: "idle" for a thread that waits while any request is open; "thread" for one that works alongside requests,
            sharing processor and interpreter with rounds, which never wait for it; "manual" for updates when
            `OnlineDrafter.update` is called.
        seed: seed of the choice of windows.

    Raises:
        UsageError: a setting is out of range.
    """

    every: int = 8
    steps: int = 8
    batch: int = 4
    lr: float = 1e-4
    buffer: int = 64 << 20
    window: int = 256
    top_k: int = 16
    held_out: int = 16
    when: str = "idle"
    seed: int = 0

    def __post_init__(self) -> None:
        buffer: Any = self.buffer
        if isinstance(buffer, str):
            object.__setattr__(self, "buffer", check_bytes(buffer, name="buffer"))
        minimum = {"every": 1, "steps": 1, "batch": 1, "buffer": 1 << 10, "window": 8, "top_k": 1, "held_out": 1}
        for name, smallest in minimum.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
                raise UsageError(f"the setting {name!r} of online distillation is at least {smallest}, not {value!r}.")
        if not 0 < self.lr < 1:
            raise UsageError(f"the setting 'lr' of online distillation is between 0 and 1, not {self.lr!r}.")
        if self.when not in WHEN:
            raise UsageError(f"the setting 'when' of online distillation is {' or '.join(WHEN)}, not {self.when!r}.")


def settings_of(online: Any) -> OnlineSettings:
    """Return the settings for a user's argument: True for the defaults, an `OnlineSettings`, or a dict of settings.

    Raises:
        UsageError: it is something else, or has an unknown setting.
    """
    if isinstance(online, OnlineSettings):
        return online
    if online is True:
        return OnlineSettings()
    if not isinstance(online, Mapping):
        raise UsageError(f"online is True, an OnlineSettings or a dict, not {type(online).__name__}.")
    known = {each.name: each.default for each in fields(OnlineSettings)}
    return OnlineSettings(**{find_name("online distillation", known, name): value for name, value in online.items()})
