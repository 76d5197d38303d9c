"""Token Recycling: the target's top successors of every token, linked into a tree of fixed shape.

Luo, Wang, Zhu, Zhang, Zhang, Yang, Xu: "Turning Trash into Treasure: Accelerating Inference of Large Language Models
with Token Recycling", ACL 2025, arXiv 2408.08696. A matrix stores, for each token, the target's eight best successors
at its last occurrence. The tree is read from it, starting at the root. Every verified row overwrites the matrix row of
its token, including rows of rejected nodes; if a token occurs several times in a pass, its accepted occurrence wins.

The published tree of 80 nodes was found by a search on data. Ours follows a formula: the 80 most probable paths if the
successor of rank r is accepted with probability 0.31 (r + 1)^-2.3, an exponent and a factor chosen so that the sizes of
its levels are close to the published ones (8, 23, 25, 17, 6, 1 nodes against 8, 21, 25, 15, 8, 3). The shape is fixed;
the weights are products of the measured acceptance rates of the ranks, so a smaller budget gets the most probable part
of the tree.

The prompt yields logits for its last token only, so the memory, V x 8 ids, is worth saving.
"""

from __future__ import annotations

import heapq
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numba import njit

from speculant.core.byte_size import MEMORY_LIMIT
from speculant.core.drafter import Budget, Drafter, Persistent, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.tree import ROOT, Array, DraftTree, Int32
from speculant.drafters.copying.context import heaviest_first, warm_up
from speculant.memory.file import read_memory, write_memory

KIND = "recycling"
UNKNOWN = -1
_FACTOR, _EXPONENT = 0.31, -2.3
_PRIOR_TRIALS = 32.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecyclingSettings:
    """Settings of Token Recycling; the defaults are the published ones.

    Attributes:
        successors: number of the target's best tokens kept after each token.
        nodes: maximum nodes per tree.

    Raises:
        UsageError: `successors` is below 1.
    """

    successors: int = 8
    nodes: int = 80

    def __post_init__(self) -> None:
        if self.successors < 1:
            raise UsageError("a token needs 1 successor or more; give a larger number.")


class RecyclingDrafter(Drafter, Persistent):
    """Drafter whose matrix is shared by all requests of a process, guarded by one lock."""

    def __init__(
        self,
        *,
        vocabulary: int,
        tokenizer: str = "",
        memory_limit: int = MEMORY_LIMIT,
        settings: RecyclingSettings | None = None,
    ) -> None:
        """Start with an empty matrix.

        Args:
            vocabulary: V, the number of token ids.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: maximum bytes for the matrix; it takes 4 bytes per successor, 32 V by default.
            settings: None for the defaults.

        Raises:
            UnsupportedError: the matrix exceeds the limit.
        """
        self.settings = settings or RecyclingSettings()
        self.vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        needed = 4 * vocabulary * self.settings.successors
        if needed > memory_limit:
            raise UnsupportedError(
                f"the matrix of {vocabulary} token ids takes {needed} bytes, but the memory limit is {memory_limit}. "
                "Raise the limit, or use the method lookup, which keeps no memory."
            )
        self._successors = np.full((vocabulary, self.settings.successors), UNKNOWN, np.int32)
        self._ranks, self._parents = tree_shape(prior_rates(self.settings.successors), self.settings.nodes)
        hits = prior_hits(self.settings.successors)
        self._hits = hits.copy()
        warm_up(self.open(SessionRequest(prompt=np.zeros(2, np.int32))))
        self._successors.fill(UNKNOWN)
        self._hits = hits

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs this drafter needs: the best tokens at every row."""
        return RequestedOutputs(top_k=self.settings.successors, always=True)  # its only source to learn from

    @property
    def memory_bytes(self) -> int:
        """Current size of the memory in bytes."""
        return self._successors.nbytes

    def open(self, start: SessionRequest) -> Session:
        """Start a request; nothing is learned from the prompt itself."""
        return RecyclingSession(self, start.prompt)

    def draft(self, root: int, budget: Budget) -> DraftTree:
        """Return the known part of the tree below `root`, within the budget."""
        with self._lock:
            tokens, parents, weights = read_tree(
                self._successors, root, self._ranks, self._parents, self._hits[:-1] / self._hits[-1],
                budget.nodes, budget.depth,
            )  # fmt: skip
        return DraftTree.trusted(tokens, parents, weights).within(depth=budget.depth, trees=budget.trees)

    def learn(self, root: int, verified: Verified) -> None:
        """Store the target's best tokens at every row of a pass with the given root."""
        assert verified.top_ids is not None
        contexts = np.append(np.int32(root), verified.tree.tokens)
        rows = np.append(np.int32(0), verified.path + np.int32(1))
        with self._lock:
            recycle(self._successors, self._hits, contexts, rows, verified.tokens, verified.top_ids)

    def save(self, path: Path) -> None:
        """Write the matrix and the acceptance counts of the ranks.

        Raises:
            FileError: the file cannot be written; an existing file is left unchanged.
        """
        with self._lock:
            arrays = {"successors": self._successors.copy(), "hits": self._hits.copy()}
        write_memory(path, kind=KIND, tokenizer=self._tokenizer, arrays=arrays, facts={"vocabulary": self.vocabulary})

    def load(self, path: Path) -> None:
        """Replace the matrix by a saved one.

        Raises:
            FileError, CorruptMemoryError, ForeignMemoryError: the file cannot be used.
            UnsupportedError: it has another number of successors per token.
        """
        arrays, _ = read_memory(path, kind=KIND, tokenizer=self._tokenizer)
        saved = arrays["successors"]
        if saved.shape[1] != self.settings.successors:
            raise UnsupportedError(
                f"{path} keeps {saved.shape[1]} successors per token, but the settings ask for "
                f"{self.settings.successors}. Use RecyclingSettings(successors={saved.shape[1]}), or another memory "
                "file."
            )
        # The same tokenizer may serve models whose vocabularies are padded differently.
        successors = np.full((self.vocabulary, saved.shape[1]), UNKNOWN, np.int32)
        rows = min(self.vocabulary, len(saved))
        successors[:rows] = np.where(saved[:rows] < self.vocabulary, saved[:rows], UNKNOWN)
        with self._lock:
            self._successors, self._hits = successors, arrays["hits"].copy()


class RecyclingSession(Session):
    """Session of one request; its only state is the last token."""

    def __init__(self, drafter: RecyclingDrafter, prompt: Int32) -> None:
        self._drafter = drafter
        self._root = int(prompt[-1]) if len(prompt) else UNKNOWN

    def propose(self, budget: Budget) -> DraftTree:
        """Return the known part of the tree, most probable nodes first."""
        return self._drafter.draft(self._root, budget) if min(budget.nodes, budget.depth) > 0 else DraftTree.empty()

    def observe(self, verified: Verified) -> None:
        """Learn from every row of the pass."""
        if verified.top_ids is not None:
            self._drafter.learn(self._root, verified)
        self._root = int(verified.tokens[-1])

    def close(self) -> None:
        """Do nothing: what was learned is in the matrix."""


def prior_rates(successors: int) -> npt.NDArray[np.float64]:
    """Return the assumed acceptance rate of each rank before any observation, Float64[K]."""
    return np.asarray(_FACTOR * np.arange(1.0, successors + 1) ** _EXPONENT)


def prior_hits(successors: int) -> npt.NDArray[np.float64]:
    """Return the prior counts, Float64[K + 1]: how often each rank was correct, and last the number of trials."""
    return np.append(prior_rates(successors) * _PRIOR_TRIALS, _PRIOR_TRIALS)


def tree_shape(rates: npt.NDArray[np.float64], nodes: int) -> tuple[Int32, Int32]:
    """Return ranks and parents, Int32[N] each, of the N paths with the largest products of rates, largest first."""
    ranks: list[int] = []
    parents: list[int] = []
    frontier = [(-float(rate), rank, ROOT) for rank, rate in enumerate(rates)]
    heapq.heapify(frontier)
    while frontier and len(ranks) < nodes:
        negative, rank, parent = heapq.heappop(frontier)
        for below, rate in enumerate(rates):
            heapq.heappush(frontier, (negative * float(rate), below, len(ranks)))
        ranks.append(rank)
        parents.append(parent)
    return np.array(ranks, np.int32), np.array(parents, np.int32)


@njit(cache=True, nogil=True)
def read_tree(
    successors: Array, root: int, ranks: Array, parents: Array, rates: Array, limit: int, deepest: int
) -> tuple[Array, Array, Array]:
    """Return tokens, parents and weights of the known nodes of the tree, heaviest first.

    Args:
        successors: Int32[V, K], the matrix.
        root: token at the root.
        ranks, parents: Int32[M] each, shape of the tree.
        rates: Float64[K], acceptance rate of each rank.
        limit: maximum number of nodes.
        deepest: maximum depth of a node.
    """
    tokens, above = np.empty(len(ranks), np.int32), np.empty(len(ranks), np.int32)
    weights, depths = np.empty(len(ranks), np.float64), np.empty(len(ranks), np.int64)
    place = np.full(len(ranks), UNKNOWN, np.int32)
    count = 0
    for node in range(len(ranks)):
        token, weight, parent, depth = np.int64(root), 1.0, np.int32(ROOT), 1
        if parents[node] != ROOT:
            parent = place[parents[node]]
            if parent == UNKNOWN:
                continue
            token, weight, depth = np.int64(tokens[parent]), weights[parent], depths[parent] + 1
        if depth > deepest or not 0 <= token < len(successors) or successors[token, ranks[node]] == UNKNOWN:
            continue
        tokens[count], above[count] = successors[token, ranks[node]], parent
        weights[count], depths[count] = weight * rates[ranks[node]], depth
        place[node] = count
        count += 1
    return heaviest_first(tokens[:count], above[:count], weights[:count], limit)


@njit(cache=True, nogil=True)
def recycle(successors: Array, hits: Array, contexts: Array, rows: Array, tokens: Array, best: Array) -> None:
    """Overwrite the matrix rows of all contexts, and count which rank was correct on the accepted path.

    Args:
        successors: Int32[V, K], the matrix.
        hits: Float64[K + 1], how often each rank was correct; last, the number of trials.
        contexts: Int32[N + 1], tokens of the root and the nodes.
        rows: Int32[A + 1], rows of the root and the accepted nodes.
        tokens: Int32[A + 1], the token that followed each of them.
        best: Int32[N + 1, k], target's best tokens after each context.
    """
    for i in range(min(len(rows), len(tokens))):
        context = contexts[rows[i]]
        if 0 <= context < len(successors) and successors[context, 0] != UNKNOWN:
            hits[-1] += 1
            for rank in range(successors.shape[1]):
                if successors[context, rank] == tokens[i]:
                    hits[rank] += 1
    kept = min(successors.shape[1], best.shape[1])
    for i in range(len(contexts) + len(rows)):
        row = i if i < len(contexts) else rows[i - len(contexts)]
        context = contexts[row]
        if 0 <= context < len(successors):
            for rank in range(kept):
                successors[context, rank] = best[row, rank]
