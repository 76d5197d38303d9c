"""Structured output: the text obeys the grammar, drafts change none of its tokens, and none of them is forbidden."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from models import tiny_model
from speculant import Constraint, Result, Speculator
from speculant.api.constraints import ConstraintCompiler, check_constraint
from speculant.api.result import CUT
from speculant.core.errors import SpeculantError, TokenizerError, UsageError
from speculant.core.tree import DraftTree
from speculant.engines.hf.sampling.grammar_state import GrammarState
from speculant.registry import METHODS, drafts_from_text
from trees import leaves
from vocabularies import byte_level

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 6},
        "kind": {"enum": ["dog", "bird"]},
    },
    "required": ["name", "ages", "kind"],
    "additionalProperties": False,
}
CONSTRAINTS = {
    "json": Constraint.json_schema(SCHEMA, compact=True),
    "regex": Constraint.regex("(the (dog|bird) ran, ){3,6}the end"),
    "grammar": Constraint.grammar('start: pair ("; " pair){2,8} "."\npair: WORD " " WORD\nWORD: /[a-c]{1,3}/'),
}
TEXT_METHODS = [name for name, method in METHODS.items() if drafts_from_text(method)]
DECODING: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0}, "seeded": {"temperature": 1.5, "seed": 3}}
PROMPT = "The little dog ran to the bird, the dog ran, the bird ran, "


@pytest.fixture(scope="module")
def model() -> Any:
    tokenizer = byte_level()
    return tiny_model("llama", vocab_size=len(tokenizer) + 3, eos_token_id=tokenizer.eos_token_id, bos_token_id=None)


@pytest.fixture(scope="module")
def plain(model: Any) -> Speculator:
    return Speculator.from_transformers(model, byte_level(), method="none")


@pytest.fixture(scope="module")
def expected(plain: Speculator) -> Callable[[str, str], Result]:
    """Return what plain decoding gives for a constraint and a way of decoding, computed once."""
    return cache(
        lambda name, decoding: plain.generate(
            PROMPT, constraint=CONSTRAINTS[name], max_new_tokens=180, **DECODING[decoding]
        )
    )


def holds(name: str, text: str) -> bool:
    """Return whether a text is what the constraint of that name describes."""
    if name == "json":
        found = json.loads(text)
        small = all(isinstance(age, int) and 0 <= age < 100 for age in found["ages"]) and len(found["ages"]) <= 6
        return set(found) == set(SCHEMA["properties"]) and len(found["name"]) <= 8 and small  # type: ignore[arg-type]
    pattern = r"(the (dog|bird) ran, ){3,6}the end"
    if name == "grammar":
        pattern = r"[a-c]{1,3} [a-c]{1,3}(; [a-c]{1,3} [a-c]{1,3}){2,8}\."
    return re.fullmatch(pattern, text) is not None


def cases() -> list[Any]:
    """Return methods, constraints and samplers; each method meets two of the six pairs among the fast ones."""
    pairs = [(name, decoding) for name in CONSTRAINTS for decoding in DECODING]
    return [
        pytest.param(method, *pair, marks=() if place % 3 == number % 3 else pytest.mark.slow)
        for number, method in enumerate(TEXT_METHODS)
        for place, pair in enumerate(pairs)
    ]


@pytest.mark.parametrize(("method", "name", "decoding"), cases())
def test_constrained_tokens_are_those_of_plain_decoding(
    expected: Callable[[str, str], Result], model: Any, method: str, name: str, decoding: str
) -> None:
    """Guards masks inside drafts: each row has that of the grammar after its own path, and texts match to the end."""
    given: dict[str, Any] = {"constraint": CONSTRAINTS[name], "max_new_tokens": 180, **DECODING[decoding]}
    wanted = expected(name, decoding)
    drafting = Speculator.from_transformers(model, byte_level(), method=method, nodes=8)
    found = [drafting.generate(PROMPT, **given) for _ in range(2)]  # the second time from memory
    assert [each.ids for each in found] == [wanted.ids] * 2
    assert wanted.finish_reason == "stop"
    assert holds(name, wanted.text)


def test_no_drafted_node_is_forbidden(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the filter: of the trees that are verified, the grammar allows every node, and drafts are still taken."""
    drafting = Speculator.from_transformers(model, byte_level(), method="lookup", nodes=8)
    given: dict[str, Any] = {"constraint": CONSTRAINTS["regex"], "max_new_tokens": 120, "temperature": 0}
    result = drafting.generate(PROMPT, **given)
    prompt, ends = byte_level()(PROMPT)["input_ids"], frozenset([byte_level().eos_token_id])
    verified, forward = list[tuple[int, DraftTree]](), drafting.engine.forward

    def watched(batch: Any, needs: Any) -> Any:
        verified.extend((cache.length - len(prompt) + 1, tree) for cache, _, tree in batch)
        return forward(batch, needs)

    monkeypatch.setattr(drafting.engine, "forward", watched)
    assert drafting.generate(PROMPT, **given).ids == result.ids
    assert result.stats.accepted > 0
    for committed, tree in verified:
        for node, token in enumerate(tree.tokens.tolist()):
            text = [*result.ids[:committed], *tree.tokens[tree.path(node)[:-1]].tolist()]
            state = drafting._preparation._compiler.open(CONSTRAINTS["regex"], prompt=0, ends=ends)
            assert state(torch.tensor([text]), torch.zeros(1, 330))[0, token] == 0


def test_requests_of_a_batch_have_grammars_of_their_own(
    expected: Callable[[str, str], Result], plain: Speculator, model: Any
) -> None:
    """Guards batches: states are not shared, and a request without a constraint is as it would be alone."""
    drafting = Speculator.from_transformers(model, byte_level(), method="mix")
    given: dict[str, Any] = {"max_new_tokens": 180, "temperature": 0}
    with drafting.batch(4) as batch:
        added = {name: batch.add(PROMPT, constraint=each, **given) for name, each in CONSTRAINTS.items()}
        free = batch.add(PROMPT, max_new_tokens=60, temperature=0)
        for _ in batch:
            pass
    for name, generation in added.items():
        assert generation.result.ids == expected(name, "greedy").ids
    assert free.result.ids == plain.generate(PROMPT, max_new_tokens=60, temperature=0).ids


def test_a_text_that_its_length_cuts_says_so(plain: Speculator) -> None:
    """Guards users of JSON that is none: a text that ends early is noted, one that may end there is not."""
    given: dict[str, Any] = {"max_new_tokens": 6, "temperature": 0}
    for method in (plain, Speculator.from_transformers(plain.model, byte_level(), method="mix")):
        cut = method.generate(PROMPT, constraint=CONSTRAINTS["json"], **given)
        assert (cut.finish_reason, cut.stats.notes.count(CUT)) == ("length", 1)
        whole = method.generate(PROMPT, constraint=Constraint.regex("[a-c]*"), **given)
        assert CUT not in whole.stats.notes


def test_forbidden_nodes_go_with_what_is_below_them() -> None:
    """Guards pruning: subtrees leave, the rest keeps its order, and sampled drafts are refused."""
    tree = DraftTree.from_paths([[1, 2, 3], [1, 4], [5, 6]], [0.5, 0.3, 0.2])
    allowed = np.array([tree.tokens[node] != 2 for node in range(len(tree))])
    pruned = tree.pruned(allowed)
    assert sorted(tuple(pruned.tokens[pruned.path(leaf)].tolist()) for leaf in leaves(pruned)) == [(1, 4), (5, 6)]
    assert tree.pruned(np.ones(len(tree), bool)) is tree
    assert len(tree.pruned(np.zeros(len(tree), bool))) == 0


def test_the_filter_reads_paths_from_the_grammars_state(plain: Speculator) -> None:
    """Guards the filter itself, and that asking it leaves the state as it was."""
    tokenizer, ends = byte_level(), frozenset([byte_level().eos_token_id])
    state = plain._preparation._compiler.open(Constraint.regex("[a-z]+[0-9]"), prompt=0, ends=ends)
    assert isinstance(state, GrammarState)
    [a], [one], [end] = tokenizer("a")["input_ids"], tokenizer("1")["input_ids"], list(ends)
    tree = DraftTree.from_paths([[a, one, end], [one], [a, a, end], [end]])
    for _ in range(2):
        allowed = {tuple(tree.tokens[tree.path(i)].tolist()): bool(ok) for i, ok in enumerate(state.allowed(tree, []))}
        assert allowed == {(a,): True, (a, one): True, (a, one, end): True, (one,): False, (a, a): True} | {
            (a, a, end): False,
            (end,): False,
        }
    tail = DraftTree.from_paths([[end], [a]])
    assert state.allowed(tail, [a, one]).tolist() == [True, False]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constraint.json_schema("{"),
        lambda: Constraint.json_schema("[1]"),
        lambda: Constraint.json_schema({"type": "objec"}),
        lambda: Constraint.json_schema({"type": "array", "uniqueItems": True}),
        lambda: Constraint.json_schema('{"items":' * 5000 + "{}" + "}" * 5000),
        lambda: Constraint.regex("("),
        lambda: Constraint.regex(""),
        lambda: Constraint.regex("a" * 70_000),
        lambda: Constraint.regex("(a{1000}){1000}"),
        lambda: Constraint.regex("(" * 30_000 + "a" + ")" * 30_000),
        lambda: Constraint.grammar("start: nothing"),
        lambda: Constraint("yaml", "a: 1"),
    ],
)
def test_wrong_and_explosive_constraints_are_refused(plain: Speculator, make: Any) -> None:
    """Guards servers: what a client may send is refused with a reason, and nothing crashes."""
    with pytest.raises(UsageError):
        plain.stream(PROMPT, constraint=make(), temperature=0)


def test_a_wrong_regular_expression_is_refused_with_its_parsers_reason() -> None:
    """Guards the message: the parser gives what is wrong lines below the first; no tokenizer is needed for it."""
    with pytest.raises(UsageError, match="unclosed group"):
        check_constraint(Constraint.regex("("))
    check_constraint(Constraint.regex("[a-c]{3}"))
    check_constraint(Constraint.json_object(compact=True))


LONG_KEYS = Constraint.json_schema(
    {
        "type": "object",
        "properties": {f"the name of property number {place}": {"enum": [1, 2]} for place in range(6)},
        "required": [f"the name of property number {place}" for place in range(6)],
        "additionalProperties": False,
    },
    compact=True,
)


@pytest.mark.parametrize("decoding", DECODING)
def test_forced_tokens_are_drafted(
    plain: Speculator, model: Any, decoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards drafts of what the grammar forces: far fewer rounds with an empty memory, and the tokens stay."""
    given: dict[str, Any] = {"constraint": LONG_KEYS, "max_new_tokens": 250, **DECODING[decoding]}
    expected = plain.generate(PROMPT, **given)
    found = Speculator.from_transformers(model, byte_level(), method="mix", nodes=16).generate(PROMPT, **given)
    assert found.ids == expected.ids
    assert found.finish_reason == "stop"
    monkeypatch.setattr(GrammarState, "find_forced", lambda *_: [])
    drafted = Speculator.from_transformers(model, byte_level(), method="mix", nodes=16).generate(PROMPT, **given)
    assert drafted.ids == expected.ids
    assert 2 * found.stats.rounds < drafted.stats.rounds < expected.stats.rounds


def test_masks_are_computed_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the masks of accepted rows: those that filtered the draft are the sampler's."""
    drafting, computed = Speculator.from_transformers(model, byte_level(), method="lookup", nodes=16), list[Any]()
    mask = GrammarState._mask

    def counted(state: GrammarState, path: tuple[int, ...]) -> Any:
        if path not in state._masks:
            computed.append(state._read + len(path))
        return mask(state, path)

    monkeypatch.setattr(GrammarState, "_mask", counted)
    result = drafting.generate(PROMPT, constraint=LONG_KEYS, max_new_tokens=250, temperature=0)
    assert result.stats.accepted > 100
    assert sorted(computed) == list(range(len(result.ids)))  # one for each token: all drafts were accepted


def test_only_single_tokens_are_forced(plain: Speculator) -> None:
    """Guards the difference of text and tokens: what is forced is what the mask leaves alone, never the text's end."""
    tokenizer, ends = byte_level(), frozenset([byte_level().eos_token_id])
    compiler = plain._preparation._compiler
    state = compiler.open(Constraint.regex("the dog (ran|sat) home"), prompt=0, ends=ends)
    text, maximum = list[int](), 64
    while True:
        forced = state.find_forced(text, maximum)
        assert state.find_forced(text, maximum) == forced
        assert state.find_forced(text, 1) == forced[:1]
        for token in forced:
            scores = state(torch.tensor([text]), torch.zeros(1, 330))
            assert (scores[0] == 0).nonzero().flatten().tolist() == [token]
            text.append(token)
        allowed = (state(torch.tensor([text]), torch.zeros(1, 330))[0] == 0).nonzero().flatten().tolist()
        assert len(allowed) > 1 or set(allowed) <= ends
        if set(allowed) <= ends:
            break
        text.append(allowed[0])
    assert tokenizer.decode(text) in ("the dog ran home", "the dog sat home")


@pytest.mark.parametrize("added", [False, True])
def test_special_tokens_are_named(added: bool) -> None:
    """Guards tokens in angle brackets: a grammar takes the token that it names, or its spelling where there is none."""
    tokenizer = copy.deepcopy(byte_level())
    if added:
        tokenizer.add_tokens(["<call>"])
    ends = frozenset([tokenizer.eos_token_id])
    constraint = Constraint.grammar('start: <call> "x"', tokens=("<call>",), spelled='start: "<call>x"')
    state = ConstraintCompiler(tokenizer, 330).open(constraint, prompt=0, ends=ends)
    assert state.find_forced([], 20) == tokenizer("<call>x")["input_ids"]


def test_rules_of_a_checkpoint_yield_to_a_constraint(model: Any) -> None:
    """Guards checkpoints that force an end or a length, as BART's: a text that was cut looks cut."""
    own = tiny_model("llama", vocab_size=model.config.vocab_size, eos_token_id=model.config.eos_token_id)
    own.generation_config.forced_eos_token_id = model.config.eos_token_id
    own.generation_config.min_length = 400
    speculator = Speculator.from_transformers(own, byte_level(), method="lookup")
    options: dict[str, Any] = {"constraint": CONSTRAINTS["regex"], "temperature": 0}
    cut, whole = (speculator.generate(PROMPT, max_new_tokens=length, **options) for length in (6, 180))
    assert model.config.eos_token_id not in cut.ids
    assert holds("regex", whole.text)
    assert all("forced_eos_token_id" in note and "min_length" in note for note in whole.stats.notes)


def test_what_a_constraint_needs(model: Any, plain: Speculator) -> None:
    """Guards the remaining refusals: no tokenizer, no end of text, options that contradict it."""
    given: dict[str, Any] = {"constraint": CONSTRAINTS["json"], "temperature": 0}
    with pytest.raises(TokenizerError, match="tokenizer"):
        Speculator.from_transformers(model, method="none").stream([5, 6], **given)
    with pytest.raises(UsageError, match="min_new_tokens"):
        plain.stream(PROMPT, min_new_tokens=5, **given)
    endless = tiny_model("llama", vocab_size=330, eos_token_id=None)
    with pytest.raises(SpeculantError, match="eos_token_id"):
        Speculator.from_transformers(endless, byte_level(), method="none").stream(PROMPT, **given)


def test_json_of_the_bundled_model_parses() -> None:
    """Guards a real tokenizer, with spaces and bytes of its own."""
    stories = Speculator.from_pretrained()
    given: dict[str, Any] = {"max_new_tokens": 160, "temperature": 0}
    schema = Constraint.json_schema(SCHEMA, compact=True)
    found = stories.generate("Tell me of a dog: ", constraint=schema, **given)
    assert holds("json", found.text)
    story = stories.generate("Once upon a time", constraint=Constraint.regex("[A-Z][a-z ,]{10,80}[.]"), **given)
    assert re.fullmatch("[A-Z][a-z ,]{10,80}[.]", story.text.strip())
