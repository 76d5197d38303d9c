"""Heads of every kind draft for targets of several architectures, and never change their text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from guesses import prompts
from heads import HEADED, NAMES, PAIRS, SINGLE, begun, head_for, oracle, random_head
from interrupts import interrupted
from models import PHI3, endless
from pairwise import every_other, in_turn
from passes import plain_text
from speculant import Speculator
from speculant.core.errors import UsageError
from speculant.core.sampler import Sampling
from speculant.drafters.heads.drafter import HeadDrafter
from speculant.drafters.heads.head import TextHead
from speculant.drafters.heads.kept import KeptStates
from speculant.drafters.heads.text import HeadText
from speculant.drafters.models.level_session import LevelSession
from speculant.registry import METHODS, find_rule

PROMPT = [5, 9, 14, 3, 8]
MODELS = ["llama", "qwen2", "qwen3", "gemma3", "mistral", "mixtral", "phi3", "gpt2", "gpt_neox", "bloom"]
NOISE = 0.6  # of an oracle, so that drafts are accepted in part
SMALL = 5  # tokens
STATIC: dict[str, Any] = {"settings": {"tree": "static"}}
TOKENS = 10  # with the prompt more than a window
GREEDY: dict[str, Any] = {"max_new_tokens": TOKENS, "temperature": 0, "eos_token_id": None}
SHORT = GREEDY | {"max_new_tokens": 8}
DRAWN = SHORT | {"temperature": 1.5, "seed": 2}


def speculator_of(model: Any, head: Any = None, method: str = "eagle2", **options: Any) -> Speculator:
    """Return a speculator with a head, by default a random one."""
    options = {"nodes": 8} | options
    return Speculator.from_transformers(model, method=method, head=head or head_for(method, model), **options)


@pytest.mark.parametrize(
    ("name", "fast"),
    [
        pytest.param(*each.values, marks=[*each.marks, PHI3]) if "phi3" in each.values else each
        for each in in_turn(MODELS, [None, False])
    ],
)
def test_greedy_text_is_the_targets(name: str, fast: bool | None) -> None:
    """Guards every architecture, sliding windows included: in chunks, in batches, with CPU code, in turns."""
    model = endless(name)
    speculator = speculator_of(model, oracle(model, begin=5, noise=NOISE), fast=fast, settings={"depth": 3}, nodes=6)
    plain = plain_text(model, torch.tensor([PROMPT]), TOKENS)
    config = type(model.generation_config)(prefill_chunk_size=2)
    first = speculator.generate(PROMPT, generation_config=config, **GREEDY)
    assert first.ids == plain
    assert first.stats.accepted > 0
    asked = [*PROMPT, *plain, 17, 4]
    again = plain_text(model, torch.tensor([asked]), TOKENS)
    assert speculator.generate(asked, cache=first.cache, **GREEDY).ids == again
    several = [prompts()[0], prompts()[2]]  # the latter longer than the window
    together = speculator_of(model, random_head(model)).generate_batch(several, **GREEDY)
    assert [each.ids for each in together] == [plain_text(model, torch.tensor([each]), TOKENS) for each in several]


@pytest.fixture(scope="module")
def small() -> tuple[Any, list[list[int]], list[list[int]]]:
    """A target of few tokens, which random heads draft often, prompts, and its texts: greedy, and one drawn."""
    model = endless("llama", vocab_size=SMALL, num_hidden_layers=2)
    asked = [[token % SMALL for token in prompt] for prompt in (prompts()[0], prompts()[1], prompts()[3])]
    plain = Speculator.from_transformers(model, method="none")
    return (
        model,
        asked,
        [each.ids for each in plain.generate_batch(asked, **SHORT)] + [plain.generate(asked[0], **DRAWN).ids],
    )


@pytest.mark.parametrize(("method", "name"), every_other(PAIRS, first=False))  # the others: test_exactness.py
def test_every_method_keeps_the_text_with_every_head(
    method: str, name: str, small: tuple[Any, list[list[int]], list[list[int]]]
) -> None:
    """Guards each row of the table with each head that it takes: by seed, and greedy in a batch that others join."""
    model, asked, texts = small
    speculator = speculator_of(model, random_head(model, name), method)
    drawn = speculator.generate(asked[0], **DRAWN)
    assert drawn.ids == texts[-1]
    results = speculator.generate_batch(asked, size=2, **SHORT)
    assert [each.ids for each in results] == texts[:-1]
    assert sum(each.stats.accepted for each in (drawn, *results)) > 0


@pytest.mark.parametrize(("method", "name"), every_other(SINGLE, first=True))
def test_turns_chunks_and_generate(method: str, name: str, small: tuple[Any, list[list[int]], list[list[int]]]) -> None:
    """Guards a second turn on the kept cache, prompts that are read in chunks, and `generate` of transformers."""
    model, asked, texts = small
    speculator = speculator_of(model, random_head(model, name), method)
    config = type(model.generation_config)(prefill_chunk_size=3)
    first = speculator.generate(asked[0], generation_config=config, **SHORT)
    assert first.ids == texts[0]
    longer = [*asked[0], *first.ids, 4, 3]
    second = speculator.generate(longer, cache=first.cache, **SHORT)
    assert second.ids == plain_text(model, torch.tensor([longer]), 8)
    ids = torch.tensor([[0, 0, *asked[1]]])  # left padding
    settings: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "attention_mask": (ids != 0).long()}
    plain = model.generate(ids, **settings)
    assert torch.equal(model.generate(ids, custom_generate=speculator, **settings), plain)


@pytest.mark.parametrize(("method", "name"), every_other(SINGLE, first=False))
@pytest.mark.parametrize("options", [SHORT, pytest.param(DRAWN | {"top_p": 0.9}, marks=pytest.mark.slow)])
def test_sliding_windows_and_seeds(method: str, name: str, options: dict[str, Any]) -> None:
    """Guards targets that forget, greedy and by seed: with chosen drafts sampled text is plain decoding's."""
    model = endless("mistral" if name == "glide" else "gemma3", vocab_size=SMALL)  # GLIDE takes one rotary embedding
    prompt = [token % SMALL for token in prompts()[2]]  # longer than the window
    plain = Speculator.from_transformers(model, method="none")
    speculator = speculator_of(model, random_head(model, name), method)
    found = speculator.generate(prompt, **options)
    assert found.ids == plain.generate(prompt, **options).ids
    assert found.stats.drafted
    batch = speculator.generate_batch([prompt, prompt[:2]], **options)
    assert batch[0].ids == found.ids


@pytest.mark.parametrize("name", [name for name in NAMES if name in ("eagle", "medusa", "hydra", "hydra++")])
def test_published_static_trees(name: str, small: tuple[Any, list[list[int]], list[list[int]]]) -> None:
    """Guards the trees that come with heads, cut to a budget and whole, greedy and by seed."""
    model, asked, texts = small
    for nodes in (6, 64):
        speculator = speculator_of(model, random_head(model, name), name.strip("+"), nodes=nodes, **STATIC)
        assert speculator.generate(asked[0], **SHORT).ids == texts[0]
        assert speculator.generate(asked[0], **DRAWN).ids == texts[-1]


def test_an_oracle_is_always_accepted() -> None:
    """Guards pairing and positions: where the head is right, every draft is accepted whole, greedy and sampled."""
    model = endless("llama")
    greedy = speculator_of(model, oracle(model, begin=5), "eagle", nodes=4).generate(PROMPT, **GREEDY)
    assert greedy.stats.accepted == greedy.stats.drafted > 0
    sampled = speculator_of(model, oracle(model, begin=5), "eagle", nodes=4, verifier="speculative-sampling")
    result = sampled.generate(PROMPT, **GREEDY | {"temperature": 0.9, "seed": 2})
    assert result.stats.accepted == result.stats.drafted > 0
    tree = speculator_of(model, oracle(model, begin=5), "eagle2", nodes=12, settings={"depth": 3})
    assert tree.generate(PROMPT, **GREEDY).stats.mat > 2.5


def test_a_head_of_some_depth_drafts_no_deeper() -> None:
    """Guards heads that predict a fixed number of tokens."""
    model = endless("llama")
    for method, nodes in (("eagle", 8), ("eagle2", 20)):
        stats = (
            speculator_of(model, oracle(model, begin=5, depth=2), method, nodes=nodes).generate(PROMPT, **GREEDY).stats
        )
        assert len(stats.offered_by_depth) == 2
        assert 2.5 < stats.mat <= 3


def test_drafts_end_at_the_targets_last_position() -> None:
    """Guards the end of the context: no draft goes beyond it, and the text is the target's up to there."""
    model = endless("llama", max_position_embeddings=24)
    speculator = speculator_of(model, oracle(model, begin=5), "eagle2", nodes=16)
    result = speculator.generate(PROMPT, **GREEDY | {"max_new_tokens": 19})
    assert result.ids == plain_text(model, torch.tensor([PROMPT]), 19)


@pytest.mark.parametrize(("name", "tree"), in_turn(NAMES, ["dynamic", "chain"]))
def test_states_are_those_of_heads_that_read_the_text_at_once(
    name: str, tree: str, small: tuple[Any, list[list[int]], list[list[int]]]
) -> None:
    """Guards rows kept, dropped and made anew: in every round of two turns q is that of a head without a history."""
    model, asked, _ = small
    head, seen = random_head(model, name), dict[tuple[int, ...], torch.Tensor]()
    speculator = speculator_of(
        model, head, head.method, settings={"tree": tree}, nodes=6, verifier="speculative-sampling"
    )
    drafter, propose = speculator.drafter, LevelSession.propose
    assert isinstance(drafter, HeadDrafter)

    def recorded(session: Any, *given: Any) -> Any:
        """Record q of a fixed draft below the text, before and after the draft that is asked for."""
        text = session.text
        found = draft_of(text)
        draft = propose(session, *given)
        torch.testing.assert_close(draft_of(text), found)
        seen[tuple(text.tokens)] = found
        return draft

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LevelSession, "propose", recorded)
        first = speculator.generate(asked[0], **DRAWN)
        assert len(drafter.states) == (not isinstance(head.head, TextHead))
        second = speculator.generate([*asked[0], *first.ids, 4, 3], cache=first.cache, **DRAWN | {"seed": 8})
    turns = first.stats, second.stats
    assert 0 < sum(stats.accepted for stats in turns) < sum(stats.drafted for stats in turns)
    assert len(seen) > first.stats.rounds
    for tokens, found in seen.items():
        states = KeptStates(head.head, head.target)
        _, start, prompt = begun(drafter.needs, model, tokens, sampling=Sampling(temperature=1.5))
        text = HeadText(states, start)
        text.observe(prompt)
        torch.testing.assert_close(found, draft_of(text), atol=1e-4, rtol=1e-3)


def draft_of(text: HeadText) -> torch.Tensor:
    """Return q after the root, and after nodes of a draft as deep as the head allows, up to 3 levels."""
    found, rows = [text.begin()], [-1]
    for tokens in ([3, 1], [4, 2])[: max(0, text.depth - 1)]:
        rows, q = text.read(tokens, [rows[0]] * 2)
        found.append(q)
    return torch.cat(found)


@pytest.fixture(scope="module")
def half() -> Any:
    """A target in bfloat16."""
    return endless("llama").to(torch.bfloat16)


@pytest.mark.parametrize(("method", "name", "options"), in_turn(SINGLE, [{}, {"temperature": 1.0, "seed": 1}], every=2))
def test_bfloat16(method: str, name: str, options: dict[str, Any], half: Any) -> None:
    """Guards dtypes: the head runs in the target's, greedy and with drawn drafts."""
    head = random_head(half, name)
    assert {each.dtype for each in getattr(head.head, "parameters", list)()} <= {torch.bfloat16}
    settings = {"threshold": 0.0} if name == "exit" else None  # a random adapter is sure of nothing
    verifier = "speculative-sampling" if options else None
    speculator = speculator_of(half, head, method, verifier=verifier, settings=settings)
    result = speculator.generate(PROMPT, **GREEDY | options)
    assert len(result.ids) == TOKENS
    assert result.stats.drafted > 0


def run_out_of_memory(head: Any, name: str, calls: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let these calls of a head's pass fail, the first of them after others."""
    passes, count = getattr(head, name), iter(range(1000))

    def run(*args: Any) -> Any:
        if next(count) in calls:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return passes(*args)

    monkeypatch.setattr(head, name, run)


@pytest.mark.parametrize("name", ["extend_all", "grow_all"])
def test_a_head_without_room_costs_no_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards full devices: a text goes on plainly and says so; of several, each goes on, and drafts begin again."""
    model = endless("llama", vocab_size=SMALL, num_hidden_layers=2)
    asked, options = [[2, 0, 4, 1], [3, 1, 4]], GREEDY | {"max_new_tokens": 24}
    plain = [plain_text(model, torch.tensor([each]), 24) for each in asked]
    speculator = speculator_of(model, head := random_head(model), fast=False, settings={"depth": 3})
    run_out_of_memory(head.head, name, range(2, 1000), monkeypatch)
    alone = speculator.generate(asked[0], **options)
    assert alone.ids == plain[0]
    assert alone.stats.accepted > 0
    assert "without drafts, since a drafting pass had no room: the device ran out" in "\n".join(alone.stats.notes)
    monkeypatch.undo()
    run_out_of_memory(head.head, name, range(2, 3), monkeypatch)
    together = speculator.generate_batch(asked, **options)
    assert [each.ids for each in together] == plain
    assert all(each.stats.accepted > alone.stats.accepted and not each.stats.notes for each in together)
    run_out_of_memory(head.head, name, range(2, 1000), monkeypatch)
    never = speculator.generate_batch(asked, **options)
    assert [each.ids for each in never] == plain
    assert all("without drafts" in "\n".join(each.stats.notes) for each in never)


def test_a_defect_of_a_head_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against heads that fail in every round, unseen: only full devices are put up with."""
    model = endless("llama", num_hidden_layers=2)
    head = random_head(model)

    def fail(*args: Any) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(head.head, "grow_all", fail)
    with pytest.raises(ValueError, match="a defect"):
        speculator_of(model, head, fast=False).generate(PROMPT, **GREEDY)


def test_an_interrupted_request_leaves_nothing_behind() -> None:
    """Guards Ctrl-C at any line: text so far is right, the next turn goes on, and kept rows are whole."""
    model, line, reached = endless("llama", num_hidden_layers=1), 3, True
    speculator = speculator_of(model, nodes=4, settings={"depth": 2, "top_k": 2})
    plain = plain_text(model, torch.tensor([PROMPT]), 7)
    options = GREEDY | {"max_new_tokens": 7}
    while reached:
        stream = speculator.stream(PROMPT, **options)
        pieces = iter(stream)
        next(pieces)
        reached = interrupted(lambda: next(pieces, None), line)  # noqa: B023
        ids, cache = stream.result.ids, stream.result.cache
        assert ids == plain[: len(ids)]
        if reached and len(ids) < 7:
            rest = speculator.generate([*PROMPT, *ids], cache=cache, **options | {"max_new_tokens": 7 - len(ids)})
            assert ids + rest.ids == plain
        drafter = speculator.drafter
        assert isinstance(drafter, HeadDrafter)
        for tokens, state in drafter.states._kept:
            assert state.length == len(tokens) - 1
        line += 41
    assert line > 200
    assert speculator.generate(PROMPT, **options).ids == plain


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("eagle", {"depth": 0}),
        ("eagle2", {"tree": "bush"}),
        ("eagle2", {"top_k": 0}),
        ("eagle2", {"min_probability": 1.0}),
        ("mix-head", {"proposed": 0}),
        ("mix-head", {"depth": -1}),
    ],
)
def test_bad_settings_are_refused(method: str, settings: dict[str, Any]) -> None:
    """Guards the limits, before the first request."""
    model = endless("llama")
    with pytest.raises(UsageError):
        speculator_of(model, random_head(model), method, settings=settings)


def test_headed_methods_are_all_in_the_table() -> None:
    """Guards this file: every kind of head that a method names has a builder, and no method is lossy by default."""
    assert {kind for name in HEADED for kind in METHODS[name].heads} - {"*"} <= set(NAMES)
    assert {method for method, _ in PAIRS} == set(HEADED)
    assert all(METHODS[name].exactness == "lossless" for name in HEADED)
    assert not any(find_rule(METHODS[name].verifier)[0].lossy for name in HEADED)
