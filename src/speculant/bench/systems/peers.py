"""Other projects' drafters behind our interface, for comparison; Speculant does not need them.

peer:draftretriever   the drafter released by ADED's authors; its table is initially empty
peer:arctic           the suffix tree of Arctic Inference (Oliaro et al., "SuffixDecoding", NeurIPS 2025,
                      arXiv 2411.04975), standalone
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.tree import DraftTree, Int32

PREFIX = "peer:"


class OfficialAded(Drafter):
    """The drafter released by ADED's authors (`draftretriever`).

    It keeps its memory across requests and converts the whole text on every search.
    """

    def __init__(self, documents: Iterable[Int32] = ()) -> None:
        """Build the initial table from a corpus, as in the paper, and open it.

        Args:
            documents: Int32[T] each; none for an empty table.

        Raises:
            UnsupportedError: the package is not installed.
        """
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "table.bin"
            write_official_table(table, documents)
            self._open(table)

    @classmethod
    def read(cls, table: Path) -> OfficialAded:
        """Open a table that was written before.

        Raises:
            UnsupportedError: the package is not installed.
        """
        drafter = cls.__new__(cls)
        drafter._open(table)
        return drafter

    def _open(self, table: Path) -> None:
        self._reader: Any = _draftretriever().Reader(str(table))

    @property
    def needs(self) -> RequestedOutputs:
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        return _OfficialSession(self._reader, start.prompt)


def write_official_table(path: Path, documents: Iterable[Int32]) -> None:
    """Write the table of a corpus, Int32[T] each document, with the package of ADED's authors.

    Raises:
        UnsupportedError: the package is not installed.
    """
    writer = _draftretriever().Writer(str(path))
    for document in documents:
        writer.add_entry(document.tolist())
    writer.finalize()
    del writer  # its destructor writes again


def _draftretriever() -> Any:
    try:
        import draftretriever
    except ImportError as error:
        raise UnsupportedError("the official ADED drafter is not installed: pip install 'speculant[peers]'") from error
    return draftretriever


class _OfficialSession(Session):
    def __init__(self, reader: Any, prompt: Int32) -> None:
        self._reader = reader
        self._text: list[int] = prompt.tolist()

    def propose(self, budget: Budget) -> DraftTree:
        paths = [[token for token in path if token >= 0] for path in self._reader.search(self._text, choices=64)[0]]
        return (
            DraftTree.from_paths(path for path in paths if path)
            .head(budget.nodes)
            .within(depth=budget.depth, trees=budget.trees)
        )

    def observe(self, verified: Verified) -> None:
        self._text += verified.tokens.tolist()

    def close(self) -> None:
        pass


class ArcticSuffix(Drafter):
    """Arctic's suffix trees: one of the request with its prompt, one of all outputs; the better draft is used.

    Depth 64, up to 4 times as many tokens as matched, no minimum probability, drafts as trees: the behaviour of its own
    simulator with these settings. Prompts are kept only for their request.
    """

    DEPTH = 64
    FACTOR = 4.0

    def __init__(self) -> None:
        """Create empty trees.

        Raises:
            UnsupportedError: the package is not installed.
        """
        try:
            from arctic_inference.suffix_decoding import SuffixDecodingCache
        except ImportError as error:
            raise UnsupportedError(
                "Arctic's suffix tree is not installed. It is built from source, with the torch that is here: "
                "pip install 'nanobind==2.9.2' cmake ninja grpcio-tools, then "
                "pip install --no-build-isolation --no-deps arctic-inference==0.3.0"
            ) from error
        self._cache: Any = SuffixDecodingCache(max_tree_depth=self.DEPTH)
        self._requests = 0

    @property
    def memory_bytes(self) -> int:
        """Its own estimate for the tree of all outputs; it has no public name for it."""
        held: int = self._cache._global_tree.estimate_memory()
        return held

    @property
    def needs(self) -> RequestedOutputs:
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        self._requests += 1
        return _ArcticSession(self._cache, self._requests, start.prompt)


class _ArcticSession(Session):
    def __init__(self, cache: Any, request: int, prompt: Int32) -> None:
        self._cache, self._request = cache, request
        self._tail = prompt[-ArcticSuffix.DEPTH :]
        cache.start_request(request, np.ascontiguousarray(prompt, np.int32))

    def propose(self, budget: Budget) -> DraftTree:
        draft = self._cache.speculate(
            self._request,
            self._tail,
            max_spec_tokens=budget.nodes if budget.trees else min(budget.nodes, budget.depth),
            max_spec_factor=ArcticSuffix.FACTOR,
            min_token_prob=0.0,
            use_tree_spec=budget.trees,
        )
        tokens, parents = np.array(draft.token_ids, np.int32), np.array(draft.parents, np.int32)
        weights = np.array(draft.probs, np.float32)
        for node, parent in enumerate(parents.tolist()):  # rounding may lift them slightly above the parent's
            weights[node] = min(weights[node], weights[parent] if parent >= 0 else 1.0)
        return DraftTree(tokens, parents, weights).within(depth=budget.depth, trees=budget.trees)

    def observe(self, verified: Verified) -> None:
        self._cache.add_active_response(self._request, verified.tokens)
        self._tail = np.concatenate([self._tail, verified.tokens])[-ArcticSuffix.DEPTH :]

    def close(self) -> None:
        self._cache.stop_request(self._request)


PEERS: Mapping[str, Callable[[], Drafter]] = MappingProxyType(
    {f"{PREFIX}draftretriever": OfficialAded, f"{PREFIX}arctic": ArcticSuffix}
)


def find_peer(name: str) -> Callable[[], Drafter]:
    """Return a function that creates the peer's drafter.

    Raises:
        UsageError: there is no such peer.
    """
    if name not in PEERS:
        raise UsageError(f"there is no peer '{name}'. There are {' and '.join(PEERS)}.")
    return PEERS[name]
