"""Retrieval between tokens: how often, with which query, and how far ahead it is guessed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from speculant.core.errors import UsageError
from speculant.options import kinds, option

_option = partial(option.option, panel="Retrieval")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalOptions:
    """How `speculant.retrieval.RetrievalGenerator` retrieves.

    Attributes:
        interval: tokens that are generated behind a retrieval.
        query_tokens: the last tokens of question and answer, which are the query (32 in Ram et al. 2023).
        sequential: whether each search precedes its text, and nothing is guessed.
        stride: guesses before a verification; None to choose it by measured times and accuracy.
        prefetch: documents that a search puts into the cache of which guesses are made (20 in RaLMSpec).
        cached_documents: maximum number of documents in that cache; those found last stay.
        in_turn: whether decoding waits for verification, which otherwise runs on a thread of its own.
        template: the prompt of a base model, with {document} and {question}; as a user's message with `chat`.
        chat: whether the prompt is a message in the model's chat template.

    Raises:
        UsageError: the template lacks a part.
    """

    interval: int = _option(4, "tokens generated after each retrieval", kinds.whole(1))
    query_tokens: int = _option(32, "number of last tokens of question and answer that form the query", kinds.whole(1))
    sequential: bool = _option(False, "search before each interval, without guessing", kinds.FLAG)
    stride: int | None = _option(
        None, "guesses per verification, up to 64; default: chosen by measured times", kinds.whole(1, 64)
    )
    prefetch: int = _option(20, "documents per search that are kept for later guesses", kinds.whole(1, 1000))
    cached_documents: int = _option(1000, "maximum documents kept for guesses", kinds.whole(1))
    in_turn: bool = _option(False, "wait for each verification instead of decoding meanwhile", kinds.FLAG)
    template: str = _option(
        "{document}\n\n{question}",
        "prompt template, with {document} and {question}; default: both, with a blank line between them",
        kinds.text("a prompt has both parts"),
    )
    chat: bool = _option(False, "send the prompt as a user message, in the model's chat template", kinds.FLAG)

    def __post_init__(self) -> None:
        for part in ("{document}", "{question}"):
            if self.template.count(part) != 1:
                raise UsageError(f"the template must contain {part} once, as in '{{document}}\\n\\n{{question}}'.")
