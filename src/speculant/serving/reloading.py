"""Reloading of the key file, frozen bases and memory files while the server runs.

Requests continue meanwhile. A new memory is built next to the active one, from its file if another program has replaced
that (as `speculant memory merge` does), else from its current contents, above reopened bases; then it replaces the old
one, which requests that began on it use until they end. If something cannot be used, it is logged and the active state
is kept.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.api.bases import open_bases
from speculant.core.drafter import Background, Drafter, Loadable, Persistent
from speculant.core.errors import SpeculantError, UnsupportedError
from speculant.memory.fingerprint import tokenizer_fingerprint
from speculant.registry import find_method
from speculant.serving.keys import KeyRing, tenant_name
from speculant.serving.memory_keeper import MemoryKeeper
from speculant.serving.routing import can_route, new_memory

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator
    from speculant.drafters.mix.base import MixBase
    from speculant.options.serving import ServingOptions

logger = logging.getLogger(__name__)


class Reloader:
    """Reloads files; concurrent reload requests run one after the other."""

    def __init__(
        self,
        keys: KeyRing,
        settings: ServingOptions,
        tenants: Sequence[str],
        memories: Callable[[], Sequence[MemoryReloader]],
    ) -> None:
        """Set the parts of the server.

        Args:
            keys: the active API keys.
            settings: settings of the server.
            tenants: tenants with separate memories.
            memories: returns the reloaders of the loaded models.
        """
        self._keys, self._settings, self._tenants, self._memories = keys, settings, {*tenants}, memories
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start reloading everything; called on the event loop."""
        task = asyncio.create_task(self.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self) -> None:
        """Reload everything; failures are logged."""
        async with self._lock:
            steps = [("keys", self._read_keys), *(("memories and bases", each.read) for each in self._memories())]
            for what, read in steps:
                try:
                    logger.info("%s: %s", what, await asyncio.to_thread(read))
                except (SpeculantError, OSError, MemoryError) as error:
                    logger.error("%s were not read again, those in force stay: %s", what, error)

    def _read_keys(self) -> str:
        """Reload the key file; return a summary.

        Raises:
            FileError, UsageError: the file cannot be used.
            UnsupportedError: a new key would need a memory of its own.
        """
        found = self._keys.read()
        if self._settings.memory_scope == "key" and {tenant_name(key) for key in found} - self._tenants:
            raise UnsupportedError("memory scope 'key' makes memories on start only; restart the server for new keys.")
        self._keys.use(found)
        return f"{len(found)} in force" if self._keys.file is not None else "there is no file of them"


class MemoryReloader:
    """Reloads the memories of one model."""

    def __init__(
        self,
        speculator: Speculator,
        drafters: dict[str, Drafter],
        keeper: MemoryKeeper,
        settings: ServingOptions,
        method_settings: Any = None,
    ) -> None:
        """Set the parts of a model.

        Args:
            speculator: the model.
            drafters: drafters by tenant, replaced in place.
            keeper: knows the memories' files.
            settings: settings of the server.
            method_settings: settings of the drafter.
        """
        self._speculator, self._drafters, self._keeper = speculator, drafters, keeper
        self._settings, self._method_settings = settings, method_settings

    def read(self) -> str:
        """Rebuild the memories; return a summary.

        Raises:
            SpeculantError, OSError: a file cannot be used.
        """
        speculator = self._speculator
        if not can_route(speculator) or any(isinstance(each, Background) for each in self._drafters.values()):
            return f"the method '{speculator.method}' reads them on start only, as do memories that are shared"
        method, vocabulary = find_method(speculator.method), speculator.engine.capabilities.vocabulary
        bases: Sequence[MixBase] = speculator.bases
        if method.takes_bases:
            tokenizer = tokenizer_fingerprint(speculator.tokenizer, vocabulary)
            bases = open_bases(method, self._settings.base, vocabulary=vocabulary, tokenizer=tokenizer)
        with self._keeper.pause_saving():
            replaced = {tenant: self._keeper.find_replaced(tenant) for tenant in self._drafters}
            made = {
                tenant: self._renew_drafter(drafter, replaced[tenant], bases)
                for tenant, drafter in self._drafters.items()
            }
            speculator.bases = tuple(bases)
            self._drafters.update(made)
            files = [path for path in replaced.values() if path is not None]
            for tenant, path in replaced.items():
                if path is not None:
                    self._keeper.accept(tenant, path)
        read = f"read {', '.join(map(str, files))}" if files else "no file of a memory was replaced"
        return f"{read}; {len(bases)} bases in force"

    def _renew_drafter(self, drafter: Drafter, path: Path | None, bases: Sequence[MixBase]) -> Drafter:
        """Return a new drafter with the memory of a file or, without one, with the memory of another drafter.

        If its method saves none, it begins with the corpus again.
        """
        limit = self._settings.memory_limit // len(self._drafters)
        made = new_memory(self._speculator, limit=limit, settings=self._method_settings, bases=bases)
        if isinstance(made, Persistent) and isinstance(drafter, Persistent):
            if path is not None:
                made.load(path)
            else:
                with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
                    drafter.save(Path(folder) / "memory")
                    made.load(Path(folder) / "memory")
        elif isinstance(made, Loadable) and self._settings.corpus is not None:
            made.load(self._settings.corpus)
        return made
