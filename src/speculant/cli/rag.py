"""`speculant rag`: answers a question from documents, retrieving again every few tokens."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from speculant.cli.binding import Take, bind, parse
from speculant.cli.commands import Command
from speculant.core.errors import UsageError
from speculant.options import kinds
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions
from speculant.options.retrieval import RetrievalOptions
from speculant.options.sampling import SamplingOptions

if TYPE_CHECKING:
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


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rag", cls=Command, help=HELP, epilog=EXAMPLES)(bind(rag))


def rag(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="question; - reads standard input")],
    documents: Annotated[
        str,
        typer.Option(
            "--documents",
            metavar="FILE",
            help='.jsonl with a text or {"text": ...} per row; other files are split into passages of 100 words',
        ),
    ],
    retriever: Annotated[
        str,
        typer.Option(
            "--retriever",
            metavar="NAME",
            parser=parse(kinds.choice(*RETRIEVERS)),
            help="bm25 (words), dense or graph (vectors of --encoder, exact or approximate); default: bm25",
        ),
    ] = "bm25",
    encoder: Annotated[
        str | None,
        typer.Option("--encoder", metavar="PATH|ID", help="sentence-transformers model, for dense and graph"),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="also decode with a search before every interval: speed-up, and same answer?"),
    ] = False,
    json: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="write answer, documents and statistics as JSON; - prints them"),
    ] = None,
    *,
    retrieval: RetrievalOptions,
    sampling: Annotated[SamplingOptions, Take(without=("stop",))],
    drafting: DraftingOptions,
    model: ModelOptions,
) -> int:
    """Check the options, load the model, index the documents, answer."""
    from speculant.cli.files import JSON, check_no_input, check_result, check_writable
    from speculant.cli.loading import load_speculator
    from speculant.cli.loading_checks import check_drafting, check_named
    from speculant.cli.prompts import read_prompt_argument
    from speculant.cli.terminal import importing, say, waiting

    if (encoder is None) != (retriever == "bm25"):
        raise UsageError("--retriever dense and graph need --encoder, a sentence-transformers model; bm25 takes none.")
    if compare and retrieval.sequential:
        raise UsageError("--compare already searches before every interval; leave out --sequential.")
    if compare and sampling.temperature and sampling.seed is None:
        say("note: to compare, both must draw the same random numbers; --seed 0 is used.")
        sampling = replace(sampling, seed=0)
    if drafting.memory is not None:
        check_writable(drafting.memory)
        check_no_input("--memory", drafting.memory, [documents])
    check_result("--json", json, JSON, [documents, drafting.memory])
    text = read_prompt_argument(question)
    check_drafting(drafting)
    check_named(model, drafting)
    with importing("the retriever"):
        from speculant.retrieval.retriever import read_documents
    texts = read_documents(documents)
    with waiting(f"indexing {len(texts):,} documents"):
        found = open_retriever(retriever, texts, encoder)
    loaded = load_speculator(model, drafting)

    from speculant.retrieval.generation import RetrievalGenerator, RetrievalResult

    result, searched = RetrievalResult(), None
    try:
        generator = RetrievalGenerator(loaded.speculator, found, retrieval)
        for each in generator.stream(text, sampling, result=result):
            if json != "-":
                print(each.text, end="", flush=True)
        if compare:
            plain = RetrievalGenerator(loaded.speculator, found, replace(retrieval, sequential=True))
            searched = plain.generate(text, sampling)
    finally:
        if loaded.memory is not None:
            loaded.speculator.save(loaded.memory)
        loaded.speculator.close()
    record: dict[str, Any] = {"text": result.text, "documents": result.documents, "stats": asdict(result.stats)}
    if json == "-":
        print(json_module.dumps(record, ensure_ascii=False))
    else:
        print()
        if json is not None:
            with open(json, "w", encoding="utf-8") as file:
                file.write(json_module.dumps(record, ensure_ascii=False, indent=1) + "\n")
    say(describe(result))
    if searched is not None:
        same = "the same answer" if searched.ids == result.ids else "ANOTHER ANSWER; please report this"
        say(f"searching each time: {searched.stats.seconds:.2f} s, {same}")
    return 0


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
