"""REST: draft a tree of the most frequent continuations of the text's longest suffix that occurs in a datastore.

He, Zhong, Cai, Lee, He: "REST: Retrieval-Based Speculative Decoding", NAACL 2024, arXiv 2311.08252, section 3. The
datastore is a memory-mapped suffix array over a corpus, as written by `speculant corpus build --kind suffix`. Past
requests are searched too: prompt and output are added, when a request is closed, to a suffix tree, which counts
continuations as a trie does. The draft comes from the longer match, or from past requests if both are equal. The
defaults follow the authors' code: suffixes of 16 down to 2 tokens, and 10 tokens of each match. Our addition: at most
5000 matches, evenly spaced, are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speculant.core.byte_size import MEMORY_LIMIT
from speculant.core.drafter import Budget, Session, SessionRequest, Verified
from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree, Int32
from speculant.drafters.suffix.array import SORTED, CorpusBlock, continuations, longest_match
from speculant.drafters.suffix.continuations import most_frequent
from speculant.drafters.suffix.history import END, HistoryDrafter, PastTexts, documents_of
from speculant.drafters.suffix.search import expand, find_suffixes
from speculant.drafters.suffix.tree import SuffixTree
from speculant.memory.file import read_memory, write_memory

KIND = "suffix-array"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestSettings:
    """Settings of REST; the defaults follow the authors' code.

    Attributes:
        longest: maximum tokens of context that are looked up, at most 24.
        shortest: minimum tokens of context that must match.
        max_matches: maximum number of continuations taken from a corpus.
        length: tokens of each continuation.
    """

    longest: int = 16
    shortest: int = 2
    max_matches: int = 5000
    length: int = 10


class RestDrafter(HistoryDrafter[SuffixTree]):
    """Drafter that shares a corpus and past requests among all requests; a mapped corpus counts towards the limit."""

    kind = KIND

    def __init__(
        self,
        *,
        vocabulary: int,
        tokenizer: str = "",
        memory_limit: int = MEMORY_LIMIT,
        settings: RestSettings | None = None,
    ) -> None:
        """Start without a corpus.

        Args:
            vocabulary: V, the number of token ids.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: maximum bytes for the corpus, and for past text and its index.
            settings: None for the defaults.

        Raises:
            UnsupportedError: the vocabulary has more ids than the tree can hold.
            ValueError: `settings.longest` exceeds the number of tokens by which suffix arrays are sorted.
        """
        self.settings = settings or RestSettings()
        if self.settings.longest > SORTED:
            raise ValueError(f"contexts have at most {SORTED} tokens, not {self.settings.longest}")
        self._corpus: list[CorpusBlock] = []
        super().__init__(vocabulary=vocabulary, tokenizer=tokenizer, memory_limit=memory_limit)
        self._warm_up()

    def _empty(self, limit: int) -> PastTexts[SuffixTree]:
        depth = self.settings.longest + self.settings.length
        return PastTexts(lambda share: SuffixTree(depth=depth, limit=share), limit=limit)

    def _warm_up(self) -> None:
        """Load the compiled kernels, so that the first request does not wait for them."""
        text = np.zeros(self.settings.shortest + 1, np.int32)
        tree = SuffixTree(depth=len(text))
        tree.extend(text)
        budget = Budget(nodes=1, depth=self.settings.length)
        _recall(tree, text[1:], self.settings, budget)
        block = CorpusBlock(np.append(text, END).astype(np.int32), np.arange(len(text), -1, -1, dtype=np.int32))
        for array in block:
            array.flags.writeable = False  # like mapped arrays, so that the kernels are compiled for those
        _retrieve([block], text[1:], self.settings, budget)

    @property
    def memory_bytes(self) -> int:
        """Current size of the memory in bytes, including a mapped corpus."""
        return self._history.nbytes + sum(block.nbytes for block in self._corpus)

    def open(self, start: SessionRequest) -> Session:
        """Start a request."""
        return RestSession(self, start.prompt)

    def search(self, context: Int32, budget: Budget) -> DraftTree:
        """Return the most frequent continuations of the longest suffix of the context that occurs."""
        context = context[-self.settings.longest :]
        with self._learning.lock:
            found = [_recall(tree, context, self.settings, budget) for tree in (self._history.young, self._history.old)]
            if self._corpus:
                found.append(_retrieve(self._corpus, context, self.settings, budget))
        return max(found, key=lambda pair: pair[0])[1].within(depth=budget.depth, trees=budget.trees)

    def save(self, path: Path) -> None:
        """Write the corpus and the past requests.

        Raises:
            FileError: the file cannot be written; an existing file is left unchanged.
        """
        with self._learning.lock:
            save_corpus(path, self._corpus, tokenizer=self._tokenizer, text=self._history.text)

    def load(self, path: Path) -> None:
        """Map a file's corpus and learn its past requests, replacing everything learned so far.

        Raises:
            FileError, CorruptMemoryError, ForeignMemoryError: the file cannot be used.
            UnsupportedError: its corpus is larger than the memory limit.
        """
        corpus, text = load_corpus(path, tokenizer=self._tokenizer)
        room = self._limit - sum(block.nbytes for block in corpus)
        if room < 0:
            raise UnsupportedError(
                f"the corpus {path} takes {(self._limit - room) >> 20} MB, but the memory limit is "
                f"{self._limit >> 20} MB. Raise the limit."
            )
        history = self._empty(room)
        for document in documents_of(text):
            history.learn(document)
        with self._learning.lock:
            self._corpus, self._history = corpus, history


class RestSession(Session):
    """Session of one request; its only state is its text."""

    def __init__(self, drafter: RestDrafter, prompt: Int32) -> None:
        self._drafter = drafter
        self._text: list[Int32] = [prompt]
        self._tail = prompt[-drafter.settings.longest :]

    def propose(self, budget: Budget) -> DraftTree:
        """Return the most frequent continuations."""
        return self._drafter.search(self._tail, budget) if min(budget.nodes, budget.depth) > 0 else DraftTree.empty()

    def observe(self, verified: Verified) -> None:
        """Append the committed tokens."""
        self._text.append(verified.tokens)
        self._tail = np.concatenate([self._tail, verified.tokens])[-self._drafter.settings.longest :]

    def close(self) -> None:
        """Add prompt and output to the tree over past requests."""
        if self._text:
            self._drafter.learn(np.concatenate(self._text))
            self._text = []


def _recall(tree: SuffixTree, context: Int32, settings: RestSettings, budget: Budget) -> tuple[int, DraftTree]:
    """Return the length of the match in past requests, and the draft."""
    places = find_suffixes(tree.tree, tree.log, context)
    if len(places) < settings.shortest:
        return 0, DraftTree.empty()
    limit, deepest = budget.nodes, min(settings.length, budget.depth)
    tokens, parents, joints = np.empty(limit, np.int32), np.empty(limit, np.int32), np.empty(limit, np.float64)
    node, used = places[-1]
    n, _ = expand(tree.tree, tree.log, node, used, limit, deepest, 0, 0.0, tokens, parents, joints)
    return len(places), DraftTree.trusted(tokens[:n], parents[:n], joints[:n].astype(np.float32))


def _retrieve(
    corpus: list[CorpusBlock], context: Int32, settings: RestSettings, budget: Budget
) -> tuple[int, DraftTree]:
    """Return the length of the match in the corpus, and the draft."""
    best = 0
    matches: list[tuple[CorpusBlock, int, int]] = []
    for block in corpus:
        length, begin, end = longest_match(block, context, max(settings.shortest, best))
        if length > best:
            best, matches = length, []
        if length:
            matches.append((block, begin, end))
    total = sum(end - begin for _, begin, end in matches)
    if not total:
        return 0, DraftTree.empty()
    share = min(1.0, settings.max_matches / total)
    rows = []
    for block, begin, end in matches:
        count = max(1, int((end - begin) * share))
        rows.append(np.empty((count, min(settings.length, budget.depth)), np.int32))
        continuations(block, begin, end, best, rows[-1])
    return best, DraftTree.trusted(*most_frequent(np.concatenate(rows), budget.nodes))


def save_corpus(path: Path, corpus: list[CorpusBlock], *, tokenizer: str, text: Int32 | None = None) -> None:
    """Write the blocks of a corpus, and a log of requests, as a memory file.

    Raises:
        FileError: the file cannot be written; an existing file is left unchanged.
    """
    arrays = {f"{name}-{i}": array for i, block in enumerate(corpus) for name, array in block._asdict().items()}
    arrays["text"] = np.empty(0, np.int32) if text is None else text
    write_memory(path, kind=KIND, tokenizer=tokenizer, arrays=arrays, facts={"blocks": len(corpus)})


def load_corpus(path: Path, *, tokenizer: str) -> tuple[list[CorpusBlock], Int32]:
    """Map the blocks of a corpus, and return them with the log of requests.

    Raises:
        FileError, CorruptMemoryError, ForeignMemoryError: the file cannot be used.
    """
    arrays, facts = read_memory(path, kind=KIND, tokenizer=tokenizer)
    blocks = [CorpusBlock(*(arrays[f"{name}-{i}"] for name in CorpusBlock._fields)) for i in range(facts["blocks"])]
    return blocks, arrays["text"]
