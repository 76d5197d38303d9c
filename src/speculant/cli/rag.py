"""`speculant rag`: answers a question from documents, retrieving again every few tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.core.errors import UsageError
from speculant.options import kinds, option
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions
from speculant.options.retrieval import RetrievalOptions
from speculant.options.sampling import SamplingOptions

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator
    from speculant.retrieval.generation import RetrievalResult
    from speculant.retrieval.retriever import Retriever

HELP = """\
Answer a question from documents that are searched every few tokens.

Search results are guessed from earlier ones and verified several at once during decoding (RaLMSpec, arXiv 2401.14021):
the answer is that of searching each time, sooner. The answer is written to standard output, statistics to standard
error. Requires speculant[rag]."""

EXAMPLES = """
speculant rag "Who built it?" --documents notes.txt --model your/model --chat
speculant rag "Why?" --documents pages.jsonl --compare  # same answer, sooner?
"""
RETRIEVERS = ("bm25", "dense", "graph")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweringOptions:
    """What is asked, of which documents, and where the answer goes.

    Raises:
        UsageError: the retriever and the encoder do not go together.
    """

    question: str = option.option(option.REQUIRED, "question; - reads standard input", kinds.name())
    documents: str = option.option(
        option.REQUIRED,
        '.jsonl with a text or {"text": ...} per row; other files are split into passages of 100 words',
        kinds.FILE_NAME,
    )
    retriever: str = option.option(
        RETRIEVERS[0],
        "bm25 (words), dense or graph (vectors of --encoder, exact or approximate); default: bm25",
        kinds.choice(*RETRIEVERS),
    )
    encoder: str | None = option.option(
        None, "sentence-transformers model, for dense and graph", kinds.name(metavar="PATH|ID")
    )
    compare: bool = option.option(
        False, "also decode with a search before every interval: speed-up, and same answer?", kinds.FLAG
    )
    json: str | None = option.option(
        None, "write answer, documents and statistics as JSON; - prints them", kinds.FILE_NAME
    )

    def __post_init__(self) -> None:
        if (self.encoder is None) != (self.retriever == RETRIEVERS[0]):
            raise UsageError(
                "--retriever dense and graph need --encoder, a sentence-transformers model; bm25 takes none."
            )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rag", cls=Command, help=HELP, epilog=EXAMPLES)(bind(rag))


def rag(
    options: Annotated[AnsweringOptions, Take(arguments={"question": "QUESTION"})],
    retrieval: RetrievalOptions,
    sampling: Annotated[SamplingOptions, Take(without=("stop",))],
    drafting: DraftingOptions,
    model: ModelOptions,
) -> int:
    """Check the options, load the model, index the documents, answer."""
    from speculant.cli.files import JSON, check_result
    from speculant.cli.loading import load_speculator
    from speculant.cli.loading_checks import check_drafting, check_memory, check_named
    from speculant.cli.prompts import read_prompt_argument
    from speculant.cli.terminal import importing, say, waiting

    if options.compare and retrieval.sequential:
        raise UsageError("--compare already searches before every interval; leave out --sequential.")
    if options.compare and sampling.temperature and sampling.seed is None:
        say("note: to compare, both must draw the same random numbers; --seed 0 is used.")
        sampling = replace(sampling, seed=0)
    check_memory(drafting, [options.documents])
    check_result("--json", options.json, JSON, [options.documents, drafting.memory])
    question = read_prompt_argument(options.question)
    check_drafting(drafting)
    check_named(model, drafting)
    with importing("the retriever"):
        from speculant.retrieval.retriever import read_documents
    texts = read_documents(options.documents)
    with waiting(f"indexing {len(texts):,} documents"):
        retriever = open_retriever(options.retriever, texts, options.encoder)
    loaded = load_speculator(model, drafting)
    try:
        result, searched = answer(loaded.speculator, retriever, question, retrieval, sampling, options)
    finally:
        if loaded.memory is not None:
            loaded.speculator.save(loaded.memory)
        loaded.speculator.close()
    report(result, searched, options.json)
    return 0


def answer(
    speculator: Speculator,
    retriever: Retriever,
    question: str,
    retrieval: RetrievalOptions,
    sampling: SamplingOptions,
    options: AnsweringOptions,
) -> tuple[RetrievalResult, RetrievalResult | None]:
    """Answer, printing the text meanwhile; return the result, and that of searching each time if both are compared."""
    from speculant.retrieval.generation import RetrievalGenerator, RetrievalResult

    result = RetrievalResult()
    generator = RetrievalGenerator(speculator, retriever, retrieval)
    for each in generator.stream(question, sampling, result=result):
        if options.json != "-":
            print(each.text, end="", flush=True)
    if not options.compare:
        return result, None
    plain = RetrievalGenerator(speculator, retriever, replace(retrieval, sequential=True))
    return result, plain.generate(question, sampling)


def report(result: RetrievalResult, searched: RetrievalResult | None, json: str | None) -> None:
    """Print the figures of an answer, and write its record.

    Args:
        result: the answer.
        searched: that of searching each time; None without a comparison.
        json: file of the record, "-" for standard output; None for none.
    """
    from speculant.cli.files import write_record
    from speculant.cli.terminal import say

    if json != "-":
        print()
    if json is not None:
        write_record(json, {"text": result.text, "documents": result.documents, "stats": asdict(result.stats)})
    say(describe(result))
    if searched is not None:
        same = "the same answer" if searched.ids == result.ids else "ANOTHER ANSWER; please report this"
        say(f"searching each time: {searched.stats.seconds:.2f} s, {same}")


def open_retriever(name: str, texts: list[str], encoder: str | None) -> Retriever:
    """Return a retriever for documents.

    Raises:
        UnsupportedError: a package is missing.
        ModelNotFoundError: the encoder cannot be loaded.
        UsageError: the documents cannot be searched.
    """
    if encoder is None:
        from speculant.retrieval.bm25 import Bm25Retriever

        return Bm25Retriever(texts)
    from speculant.retrieval.dense import DenseRetriever, GraphRetriever
    from speculant.retrieval.encoder import TextEncoder

    vectors = TextEncoder(encoder)
    kind = DenseRetriever if name == "dense" else GraphRetriever
    return kind(texts, vectors.encode_queries, encode_documents=vectors.encode_documents)


def describe(result: RetrievalResult) -> str:
    """Return the figures of an answer as one line."""
    stats = result.stats
    share = f", {stats.confirmed} of {stats.guesses} guesses right" if stats.guesses else ""
    return (
        f"{len(result.ids)} tokens in {stats.seconds:.2f} s; {stats.retrievals} retrievals by {stats.searches} searches"
        f"{share}; {len(set(result.documents))} documents, first: {result.documents[0]}"
    )
