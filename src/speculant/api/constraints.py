"""Structured output: constraints on a text, and their compilation for a model's tokenizer by llguidance.

    speculator.generate(prompt, constraint=Constraint.json_schema({"type": "object", ...}))

A grammar is compiled once and copied for each request. Its size and matching cost are limited, since servers accept
constraints from their clients.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from speculant.api.open_parts import open_parts, open_parts_of_grammar
from speculant.api.repetitions import max_repeats, patterns_of
from speculant.core.errors import TokenizerError, UnsupportedError, UsageError
from speculant.engines.hf.sampling.grammar_state import GrammarState, first_line

MAX_CHARACTERS = 65_536  # maximum length of a schema, regular expression or grammar
MAX_REPEATS = 10_000  # maximum counted repetitions; nested ones multiply
MAX_OPEN_PARTS = 401  # maximum in sequence; 400, or a character repeated up to 10,000 times, cost 0.2 s per token
COMPILED = 32  # number of cached grammars
TOKENIZERS = 4  # number of cached tokenizer forms, one per set of end tokens
LIMITS = {
    "max_grammar_size": 20_000,
    "initial_lexer_fuel": 100_000,
    "step_lexer_fuel": 50_000,
    "max_lexer_states": 20_000,
    "precompute_large_lexemes": False,
    "verbose_errors": False,
}


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint that a whole generated text must match; independent of any tokenizer.

    Attributes:
        kind: format of `text`.
        text: a JSON schema in JSON, a regular expression, or a grammar in llguidance's dialect of Lark.
        compact: for JSON, whether whitespace between its parts is excluded.
        tokens: special tokens named by a grammar, such as `<tool_call>`.
        spelled: the grammar for tokenizers that lack one of these and encode it as text.
    """

    kind: Literal["json", "regex", "lark"]
    text: str
    compact: bool = False
    tokens: tuple[str, ...] = ()
    spelled: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("json", "regex", "lark"):
            raise UsageError(f"a constraint must be of the kind 'json', 'regex' or 'lark', not {self.kind!r:.60}.")
        if not isinstance(self.text, str) or not self.text.strip():
            raise UsageError(f"a constraint must be non-empty text, not {self.text!r:.60}.")
        if len(self.text) > MAX_CHARACTERS:
            raise UsageError(f"the constraint has {len(self.text)} characters; at most {MAX_CHARACTERS} are allowed.")
        try:
            self.text.encode()
            patterns = [*patterns_of(json.loads(self.text))] if self.kind == "json" else [self.text]
        except UnicodeEncodeError as error:
            raise UsageError("the constraint is not text: it holds half of a surrogate pair.") from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the JSON schema cannot be read: {error}.") from error
        repeats = max(map(max_repeats, patterns), default=1)
        if repeats > MAX_REPEATS:
            raise UsageError(
                f"the constraint repeats a part {repeats} times, counted repetitions inside others multiplied; at "
                f"most {MAX_REPEATS} are allowed."
            )
        parts = open_parts_of_grammar(self.text) if self.kind == "lark" else max(map(open_parts, patterns), default=0)
        if parts > MAX_OPEN_PARTS:
            raise UsageError(
                "the constraint is too ambiguous: more than 400 optional, repeated or alternative parts follow each "
                "other, repetitions counted. Write fewer of them, or bound the text by its tokens."
            )

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str, *, compact: bool = False) -> Constraint:
        """Return a constraint to JSON that matches a schema.

        Args:
            schema: a JSON schema, as an object or as JSON. Keywords that llguidance cannot enforce are refused.
            compact: whether to exclude whitespace between the parts.

        Raises:
            UsageError: it is not valid JSON.
        """
        try:
            found = json.loads(schema) if isinstance(schema, str) else schema
            text = json.dumps(found)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"the JSON schema cannot be read: {error}.") from error
        if not isinstance(found, Mapping | bool):
            raise UsageError(f"a JSON schema must be an object, true or false, not {text:.60}.")
        return cls("json", text, compact)

    @classmethod
    def json_object(cls, *, compact: bool = False) -> Constraint:
        """Return a constraint to any JSON object."""
        return cls("json", '{"type": "object"}', compact)

    @classmethod
    def regex(cls, pattern: str) -> Constraint:
        """Return a constraint to texts that fully match a regular expression (Rust's syntax, no look-around)."""
        return cls("regex", pattern)

    @classmethod
    def grammar(cls, lark: str, *, tokens: tuple[str, ...] = (), spelled: str = "") -> Constraint:
        """Return a constraint to texts derived from `start` by a grammar in llguidance's dialect of Lark.

        Args:
            lark: the grammar.
            tokens: special tokens that it names. llguidance treats every added token in angle brackets as special, even
                if it is text to the tokenizer, and only its name matches it: a literal would never match. Others are
                named with angle brackets around them: `<[TOOL_CALLS]>`.
            spelled: the grammar for tokenizers that lack one of them.
        """
        return cls("lark", lark, tokens=tokens, spelled=spelled)


@dataclass(frozen=True, slots=True, eq=False)
class CompiledConstraint:
    """A compiled constraint for requests; created by `Speculator.compile_constraint`.

    Attributes:
        constraint: the source constraint.
        ends: ids of the tokens that end a text.
        matcher: an `llguidance.LLMatcher` at the grammar's start, to copy for each request.
    """

    constraint: Constraint
    ends: frozenset[int]
    matcher: Any


class ConstraintCompiler:
    """Compiles constraints for one model's tokenizer. Thread-safe; no thread waits for another's grammar."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        """Take the tokenizer, or None, and the model's vocabulary; nothing is compiled yet."""
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._tokenizers: OrderedDict[frozenset[int], Any] = OrderedDict()
        self._compiled: OrderedDict[tuple[Constraint, frozenset[int]], CompiledConstraint] = OrderedDict()
        self._lock = threading.Lock()  # guards these; held for look-ups only

    def open(self, constraint: Constraint | CompiledConstraint, *, prompt: int, ends: frozenset[int]) -> GrammarState:
        """Return the grammar state of a new request.

        Args:
            constraint: the constraint on its text. A compiled one takes no time.
            prompt: the length of its prompt.
            ends: ids of the tokens that end its text.

        Raises:
            UsageError, TokenizerError, UnsupportedError: see `compile`.
        """
        if isinstance(constraint, CompiledConstraint):
            compiled = constraint if constraint.ends == ends else self.compile(constraint.constraint, ends=ends)
        else:
            compiled = self.compile(constraint, ends=ends)
        return GrammarState(compiled.matcher.deep_copy(), prompt=prompt, ends=ends)

    def compile(self, constraint: Constraint, *, ends: frozenset[int]) -> CompiledConstraint:
        """Compile a constraint, caching recent ones. The global interpreter lock is released meanwhile.

        Args:
            constraint: the constraint on texts.
            ends: ids of the tokens that end them.

        Raises:
            UsageError: the constraint is invalid or too complex, or nothing ends the text.
            TokenizerError: there is no tokenizer.
            UnsupportedError: llguidance is not installed, or does not support this kind of tokenizer.
        """
        if not isinstance(constraint, Constraint):
            raise UsageError(
                f"constraint must be a speculant.Constraint, not {type(constraint).__name__}: Constraint('json', "
                "json.dumps(schema)), Constraint('regex', ...) or Constraint('lark', ...)."
            )
        if not ends:
            raise UsageError("a constraint needs a token that ends the text; set eos_token_id.")
        key = constraint, ends
        with self._lock:
            found = self._compiled.get(key)
            if found is not None:
                self._compiled.move_to_end(key)
                return found
        library = _library()
        limits = library.LLParserLimits(**LIMITS)
        tokenizer = self._tokens(ends)
        matcher = library.LLMatcher(tokenizer, _grammar(library, constraint, tokenizer), log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # some limits are only checked here
        if matcher.is_error():
            raise UsageError(f"the constraint is refused: {first_line(matcher.get_error())}")
        found = CompiledConstraint(constraint, ends, matcher)
        with self._lock:
            _put(self._compiled, key, found, maximum=COMPILED)
        return found

    def _tokens(self, ends: frozenset[int]) -> Any:
        """Return llguidance's form of the tokenizer; creating it takes about a second for a large vocabulary."""
        with self._lock:
            found = self._tokenizers.get(ends)
        if found is None:
            found = _open_tokenizer(self._tokenizer, self._vocabulary, sorted(ends))
        with self._lock:
            _put(self._tokenizers, ends, found, maximum=TOKENIZERS)
        return found


def check_constraint(constraint: Constraint) -> None:
    """Check a regular expression or a JSON schema as far as possible without a tokenizer.

    Raises:
        UsageError: it is refused.
    """
    library = _library()
    if wrong := library.LLMatcher.validate_grammar(_grammar(library, constraint, None)):
        raise UsageError(f"the constraint is refused: {first_line(wrong)}")


def _put(kept: OrderedDict[Any, Any], key: Any, value: Any, *, maximum: int) -> None:
    """Store a value as the most recent one, evicting the oldest beyond `maximum`."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > maximum:
        kept.popitem(last=False)


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise UnsupportedError("constraints need llguidance: pip install 'speculant[structured]'.") from error
    return llguidance


def _grammar(library: Any, constraint: Constraint, tokenizer: Any) -> str:
    """Return llguidance's form of a constraint; errors in it are found by compilation."""
    text: str = constraint.text
    if constraint.kind == "json":
        options = {"whitespace_flexible": False} if constraint.compact else None
        try:
            text = library.LLMatcher.grammar_from_json_schema(text, overrides=options)
        except ValueError as error:  # only with options, when it parses the schema at once
            raise UsageError(f"the constraint is refused: {first_line(str(error))}") from error
    elif constraint.kind == "regex":
        text = library.LLMatcher.grammar_from_regex(text)
    else:
        named = all(_is_special(tokenizer, token) for token in constraint.tokens)
        for token in constraint.tokens if named else ():
            if not token.startswith("<"):
                text = text.replace(f"<{token}>", f"<[{tokenizer.tokenize_str(token)[0]}]>")
        text = library.LLMatcher.grammar_from_lark(text if named else constraint.spelled)
    return text


def _is_special(tokenizer: Any, text: str) -> bool:
    """Return whether a text is a single token that llguidance treats as special."""
    ids = tokenizer.tokenize_str(text)
    return len(ids) == 1 and bool(tokenizer.is_special_token(ids[0]))


def _open_tokenizer(tokenizer: Any, vocabulary: int, ends: list[int]) -> Any:
    if tokenizer is None:
        raise TokenizerError("constraints need a tokenizer; give one to the speculator.")
    library = _library()
    try:
        if hasattr(tokenizer, "for_grammars"):  # of another library than transformers
            return tokenizer.for_grammars(vocabulary=vocabulary, ends=ends)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UnsupportedError(
                f"a {type(tokenizer).__name__} has no `tokenizers` backend, which constraints need; load the fast one."
            )
        size = max(vocabulary, backend.get_vocab_size())
        return library.LLTokenizer(backend.to_str(), n_vocab=size, eos_token=ends)
    except (ValueError, RuntimeError) as error:
        raise UnsupportedError(f"llguidance does not know this kind of tokenizer: {error}") from error
