"""Iterative retrieval-augmented generation whose retrievals are guessed and verified (RaLMSpec, arXiv 2401.14021).

Every few tokens, the last words of the text become the query of a new retrieval, and the document it finds replaces the
previous one in the prompt. Retrieval is slow and often finds the same documents, so they are guessed from a small
cache: text is generated from the guesses, one search verifies several of them, and text generated after a wrong guess
is dropped and regenerated. The answer is the same as with a search every time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from speculant.api.detokenizer import Detokenizer
from speculant.api.prefix_cache import PrefixCache
from speculant.core.errors import TokenizerError, UsageError
from speculant.options.retrieval import RetrievalOptions
from speculant.options.sampling import SamplingOptions
from speculant.retrieval.local_cache import LocalCache
from speculant.retrieval.retriever import Ids, Retriever
from speculant.retrieval.stride import StrideScheduler

if TYPE_CHECKING:
    from speculant.api.batch import Batch
    from speculant.api.speculator import Speculator

PROMPTS = 1024  # number of documents whose encoded prompts are cached
TRIED = 8  # of this many searches without guesses, one checks whether a guess would have been right
MAX_GUESSES = 64  # maximum number of guesses that wait for a search


@dataclass(frozen=True, slots=True)
class Interval:
    """One retrieval and the tokens generated from it.

    Attributes:
        document: id of the document that the retrieval found.
        ids: the tokens; the last interval of an answer may be shorter.
        text: text of these tokens, up to the last complete character.
        guessed: whether the text was generated before the search that confirmed the document.
    """

    document: int
    ids: list[int]
    text: str
    guessed: bool


@dataclass(slots=True, kw_only=True)
class RetrievalStats:
    """Statistics of an answer.

    Attributes:
        retrievals: retrievals of the answer; without guesses, each is a search.
        searches: calls of the retriever.
        guesses, confirmed: retrievals that were guessed, and guessed retrievals that became part of the answer.
        dropped_tokens: tokens generated after wrong guesses.
        passes: target passes, without those of prompts.
        seconds: time of the whole answer.
        search_seconds: time in searches, including those concurrent with decoding.
    """

    retrievals: int = 0
    searches: int = 0
    guesses: int = 0
    confirmed: int = 0
    dropped_tokens: int = 0
    passes: int = 0
    seconds: float = 0.0
    search_seconds: float = 0.0


@dataclass(slots=True)
class RetrievalResult:
    """An answer.

    Attributes:
        text, ids: text and tokens of the answer.
        documents: ids of the documents, one for each interval.
        finish_reason: "stop" or "length".
        stats: statistics.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    stats: RetrievalStats = field(default_factory=RetrievalStats)


@dataclass(slots=True)
class _Guess:
    """A guessed retrieval and the tokens generated from it; `stopped` if they end the text."""

    query: Any
    document: int
    ids: list[int] = field(default_factory=list)
    stopped: bool = False


class RetrievalGenerator:
    """Answers questions from a collection of documents. One answer at a time."""

    def __init__(self, speculator: Speculator, retriever: Retriever, options: RetrievalOptions | None = None) -> None:
        """Create a generator.

        Args:
            speculator: decodes; its drafts can copy from the documents, which are part of the prompt.
            retriever: finds documents.
            options: how often to retrieve and how far to guess ahead; None for the defaults.

        Raises:
            TokenizerError: the speculator has no tokenizer.
        """
        if speculator.tokenizer is None:
            raise TokenizerError("retrieval needs a tokenizer, since queries are text; give the speculator one.")
        self._speculator, self._retriever = speculator, retriever
        self._options = RetrievalOptions() if options is None else options
        self._prefixes = PrefixCache("256MB")
        self._known = LocalCache(retriever, self._options.cached_documents)
        self._schedule = StrideScheduler(self._options.stride, concurrent=not self._options.in_turn)

    def generate(self, question: str, sampling: SamplingOptions | None = None) -> RetrievalResult:
        """Return the whole answer; the parameters are those of `stream`."""
        result = RetrievalResult()
        for _ in self.stream(question, sampling, result=result):
            pass
        return result

    def stream(
        self, question: str, sampling: SamplingOptions | None = None, *, result: RetrievalResult | None = None
    ) -> Iterator[Interval]:
        """Yield the answer interval by interval, each once its retrieval is verified.

        Args:
            question: the question.
            sampling: how tokens are chosen, without `stop`; interval i of a sampled answer draws with seed + i.
            result: updated with the answer so far.

        Raises:
            UsageError: the question is empty, or an option is not supported.
            PromptError: a document and the text after it exceed the model's positions.
        """
        sampling = SamplingOptions() if sampling is None else sampling
        if not question.strip():
            raise UsageError("the question is empty.")
        if sampling.stop:
            raise UsageError("retrieval takes no stop texts; answers end by the model's own token or their length.")
        found = RetrievalResult() if result is None else result
        with (
            self._speculator.batch(1, prefix_cache=self._prefixes) as batch,
            ThreadPoolExecutor(1, thread_name_prefix="retrieval") as worker,
        ):
            yield from _Answer(self, question, sampling, found, batch, worker).run()


class _Answer:
    """The state of one answer: its verified part and the guesses after it."""

    def __init__(
        self,
        generator: RetrievalGenerator,
        question: str,
        sampling: SamplingOptions,
        result: RetrievalResult,
        batch: Batch,
        worker: ThreadPoolExecutor,
    ) -> None:
        speculator, self._options = generator._speculator, generator._options
        self._speculator, self._retriever, self._known = speculator, generator._retriever, generator._known
        self._question, self._sampling, self._result, self._stats = question, sampling, result, result.stats
        self._batch, self._worker = batch, worker
        self._question_ids: list[int] = speculator.tokenizer(question, add_special_tokens=False)["input_ids"]
        self._seed = int(np.random.default_rng().integers(1 << 62)) if sampling.seed is None else sampling.seed
        self._schedule = generator._schedule
        self._detokenizer = Detokenizer(speculator.tokenizer, self._question_ids[-4:])
        self._prompt = lru_cache(PROMPTS)(self._encode_prompt)
        self._guesses: list[_Guess] = []  # not verified yet, oldest first

    def run(self) -> Iterator[Interval]:
        """Yield verified intervals until the answer ends."""
        began = time.perf_counter()
        try:
            yield self._retrieve()
            while not self._ended:
                if self._options.sequential or (not self._guesses and not self._schedule.stride):
                    yield self._retrieve()
                else:
                    yield from self._verify(*self._search_ahead())
        finally:
            self._stats.seconds += time.perf_counter() - began

    @property
    def _ended(self) -> bool:
        result = self._result
        return result.finish_reason == "stop" or len(result.ids) >= self._sampling.max_new_tokens

    def _retrieve(self) -> Interval:
        """Search before generating text; occasionally check whether a guess would have been right."""
        query = self._query()
        tried = not self._options.sequential and self._stats.searches % TRIED == TRIED - 1
        guess = self._known.guess(query) if tried else None
        found, seconds = self._search([query])
        best = self._learn(found, seconds)[0]
        if tried:
            self._schedule.observe_verification(seconds, confirmed=int(guess == best), failed=guess != best)
        return self._generate_behind(best)

    def _search_ahead(self) -> tuple[Ids, float]:
        """Guess until a search returns for the first guesses; return its results, Int64[Q, k], and its time.

        If searches run concurrently with decoding, one starts as soon as its last query is known, and guessing
        continues until it ends.
        """
        concurrent, guesses = not self._options.in_turn, self._guesses
        stride = max(self._schedule.stride, 1)
        searching: Future[tuple[Ids, float]] | None = None
        while True:
            last = self._last
            if searching is None and guesses and (last or len(guesses) >= stride):
                searching = self._begin_search()
            if searching is not None and (
                not concurrent or searching.done() or last or len(guesses) >= max(stride, MAX_GUESSES)
            ):
                return searching.result()
            began = time.perf_counter()
            query = self._query()
            guesses.append(_Guess(query, self._known.guess(query)))
            if concurrent and searching is None and len(guesses) >= stride:
                searching = self._begin_search()
            self._decode(guesses[-1])
            self._schedule.observe_guess(time.perf_counter() - began)
            self._stats.guesses += 1

    def _verify(self, found: Ids, seconds: float) -> Iterator[Interval]:
        """Yield the intervals that a search confirmed, and the regenerated one of the first wrong guess."""
        checked, best = self._guesses[: len(found)], self._learn(found, seconds)
        right = [guess.document == document for guess, document in zip(checked, best, strict=True)]
        confirmed = right.index(False) if False in right else len(right)
        self._schedule.observe_verification(seconds, confirmed=confirmed, failed=confirmed < len(right))
        for guess in checked[:confirmed]:
            self._stats.confirmed += 1
            yield self._take(guess, guessed=True)
        if confirmed == len(right):
            self._guesses = self._guesses[confirmed:]
            return
        self._stats.dropped_tokens += sum(len(guess.ids) for guess in self._guesses[confirmed:])
        self._guesses = []
        yield self._generate_behind(best[confirmed])

    def _generate_behind(self, document: int) -> Interval:
        guess = _Guess(None, document)
        self._decode(guess)
        return self._take(guess, guessed=False)

    def _take(self, guess: _Guess, *, guessed: bool) -> Interval:
        """Add the tokens of a guess to the answer."""
        result = self._result
        result.ids += guess.ids
        result.documents.append(guess.document)
        self._stats.retrievals += 1
        text = "".join(map(self._detokenizer.push, guess.ids))
        if guess.stopped:
            result.finish_reason = "stop"
        if self._ended:
            text += self._detokenizer.flush()
        result.text += text
        return Interval(guess.document, guess.ids, text, guessed)

    def _begin_search(self) -> Future[tuple[Ids, float]]:
        return self._worker.submit(self._search, [each.query for each in self._guesses])

    def _search(self, queries: list[Any]) -> tuple[Ids, float]:
        """Return the results of a search, Int64[Q, k], and the seconds it took; may run on either thread."""
        began = time.perf_counter()
        found = self._retriever.search(queries, 1 if self._options.sequential else self._options.prefetch)
        return found, time.perf_counter() - began

    def _learn(self, found: Ids, seconds: float) -> list[int]:
        """Add the results of a search to the cache of guesses; return the best document of each query."""
        for row in found:
            self._known.add(row.tolist())
        self._stats.searches += 1
        self._stats.search_seconds += seconds
        best: list[int] = found[:, 0].tolist()
        return best

    @property
    def _last(self) -> bool:
        """Whether no further guess can follow."""
        guessed = len(self._result.ids) + sum(len(guess.ids) for guess in self._guesses)
        return guessed >= self._sampling.max_new_tokens or bool(self._guesses and self._guesses[-1].stopped)

    def _text(self) -> list[int]:
        """Return the answer so far, including tokens of unverified guesses."""
        return [*self._result.ids, *(token for guess in self._guesses for token in guess.ids)]

    def _query(self) -> Any:
        ids = [*self._question_ids, *self._text()][-self._options.query_tokens :]
        return self._retriever.encode(self._speculator.tokenizer.decode(ids, skip_special_tokens=True))

    def _decode(self, guess: _Guess) -> None:
        """Generate the tokens of a retrieval: the last guess or, without guesses, the answer's next interval."""
        text, asked = self._text(), self._sampling
        size = min(self._options.interval, asked.max_new_tokens - len(text))
        place = self._stats.retrievals + max(len(self._guesses) - 1, 0)
        generation = self._batch.add(
            [*self._prompt(guess.document), *text],
            max_new_tokens=size,
            temperature=asked.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k,
            seed=self._seed + place,
        )
        (result,) = self._batch.run([generation])
        guess.ids, guess.stopped = result.ids, result.finish_reason == "stop"
        self._stats.passes += result.stats.rounds

    def _encode_prompt(self, document: int) -> tuple[int, ...]:
        """Return the encoded prompt with a document and the question, to be continued by the answer."""
        parts = {"document": self._retriever.documents[document], "question": self._question}
        prompt = re.sub(r"\{(document|question)\}", lambda found: parts[found[1]], self._options.template)
        if self._options.chat:
            return tuple(self._speculator.encode_chat([{"role": "user", "content": prompt}]))
        return tuple(self._speculator.tokenizer(prompt)["input_ids"])
