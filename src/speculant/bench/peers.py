"""Other projects' drafters behind our contract, for comparison; none is needed to use Speculant."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from speculant.drafters.base import Needs, Session, Verified
from speculant.errors import UnsupportedError
from speculant.tree import DraftTree, Int32


class OfficialAded:
    """The drafter that ADED's authors released (`draftretriever`), with an empty initial table.

    It keeps its memory over requests and converts the whole text on every search.
    """

    needs = Needs()

    def __init__(self) -> None:
        """Make an empty table and open it.

        Raises:
            UnsupportedError: the package is not installed.
        """
        try:
            import draftretriever
        except ImportError as error:
            raise UnsupportedError(
                "the official ADED drafter is not installed: pip install 'speculant[peers]'"
            ) from error
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "empty.bin"
            writer = draftretriever.Writer(str(table))
            writer.finalize()
            del writer  # it writes again when it goes
            self._reader: Any = draftretriever.Reader(str(table))

    def open(self, prompt: Int32, *, target: Any = None, seed: int = 0) -> Session:
        return _OfficialSession(self._reader, prompt)

    def save(self, path: Path) -> None:
        raise UnsupportedError("the official ADED drafter cannot save what it learned.")

    def load(self, path: Path) -> None:
        raise UnsupportedError("the official ADED drafter cannot load what it did not build.")


class _OfficialSession:
    def __init__(self, reader: Any, prompt: Int32) -> None:
        self._reader = reader
        self._text: list[int] = prompt.tolist()

    def propose(self, max_nodes: int) -> DraftTree:
        paths = [[token for token in path if token >= 0] for path in self._reader.search(self._text, choices=64)[0]]
        return DraftTree.from_paths(path for path in paths if path).head(max_nodes)

    def observe(self, verified: Verified) -> None:
        self._text += verified.tokens.tolist()

    def close(self) -> None:
        pass
