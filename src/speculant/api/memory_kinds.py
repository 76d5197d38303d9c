"""The kinds of memory files, and the methods that read them."""

from __future__ import annotations

from speculant.core.errors import ForeignMemoryError
from speculant.core.references import load_object
from speculant.memory.kind import MemoryKind
from speculant.registry import METHODS, Method
from speculant.registry.methods import learns_online

# Frozen bases, which are never written, and weights learned online are not listed in any method's row.
BASE = "speculant.drafters.mix.base_memory:BASE"
ONLINE = "speculant.training.online.memory:ONLINE"


def find_memory_kind(kind: str) -> MemoryKind:
    """Return the memory kind of that name, which is the `kind` in memory files.

    Raises:
        ForeignMemoryError: no method reads it.
    """
    references = [method.memory for method in METHODS.values() if method.memory is not None]
    for reference in dict.fromkeys([*references, BASE, ONLINE]):  # the last needs torch
        found: MemoryKind = load_object(reference)
        if found.name == kind:
            return found
    raise ForeignMemoryError(
        f"this version of Speculant has no method that reads memories of kind '{kind}'. "
        "Use the version that wrote the file."
    )


def methods_reading(kind: str) -> list[Method]:
    """Return the methods whose drafters load memory files of that kind, as a memory or as a corpus.

    Raises:
        ForeignMemoryError: no method does.
    """
    found = find_memory_kind(kind)
    if found is load_object(ONLINE):
        return [method for method in METHODS.values() if learns_online(method)]
    if found is load_object(BASE):
        return [method for method in METHODS.values() if method.takes_bases]
    return [
        method
        for method in METHODS.values()
        if method.corpus == kind or (method.memory is not None and load_object(method.memory) is found)
    ]
