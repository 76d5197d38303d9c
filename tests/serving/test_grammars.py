"""Grammars are compiled beside decoding, once, and within bounds."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from servers import Connect, chat, completion
from speculant import Constraint, Speculator
from speculant.api.constraints import CompiledConstraint, ConstraintCompiler
from speculant.core.errors import UsageError
from speculant.serving.errors import ApiError
from speculant.serving.formats import AnswerFormat
from speculant.serving.grammars import GrammarCompiler

pytestmark = pytest.mark.anyio
LETTERS = {"structured_outputs": {"regex": "[ab]{3}"}}


class Gate:
    """Compiles when it is let; records on which threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.open, self.threads = threading.Event(), threading.Event(), set[str]()
        compile_one = ConstraintCompiler.compile

        def held(own: Any, constraint: Constraint, **options: Any) -> CompiledConstraint:
            if constraint.kind == "regex":
                self.threads.add(threading.current_thread().name)
                self.entered.set()
                assert self.open.wait(60)
            return compile_one(own, constraint, **options)

        monkeypatch.setattr(ConstraintCompiler, "compile", held)


async def test_others_are_decoded_while_a_grammar_is_compiled(
    connect: Connect, ending: Speculator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards rounds and prompts of other requests: they go on before, while and after a grammar is compiled."""
    gate = Gate(monkeypatch)
    async with connect(served=ending) as client:
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=chat(**LETTERS)))
        assert await asyncio.to_thread(gate.entered.wait, 60)
        others = [await client.post("/v1/completions", json=completion(text)) for text in ("The dog", "A cat")]
        assert [each.status_code for each in others] == [200, 200]
        assert not waiting.done()
        gate.open.set()
        answer = await waiting
    assert len(answer.json()["choices"][0]["message"]["content"]) == 3
    assert len(gate.threads) == 1
    assert next(iter(gate.threads)).startswith("speculant-grammar")


async def test_a_client_that_leaves_frees_its_place(
    connect: Connect, ending: Speculator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the queue: who waits for a grammar has a place, and gives it back."""
    gate = Gate(monkeypatch)
    async with connect(served=ending, max_concurrency=1, max_queue=0) as client:
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=chat(**LETTERS)))
        assert await asyncio.to_thread(gate.entered.wait, 60)
        assert (await client.post("/v1/completions", json=completion())).status_code == 429
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        answer = await client.post("/v1/completions", json=completion())
        gate.open.set()
    assert answer.status_code == 200


async def test_the_same_schema_is_compiled_once(ending: Speculator) -> None:
    """Guards the cache, its bound, and that copies of one grammar do not share a state."""
    compiler = ending._preparation._compiler
    ends = frozenset([ending.tokenizer.eos_token_id])
    one, two = Constraint.regex("[ab]+"), Constraint.regex("[ab]+")
    assert compiler.compile(one, ends=ends) is compiler.compile(two, ends=ends)
    assert ending.compile_constraint(one) is compiler.compile(two, ends=ends)
    for number in range(40):
        compiler.compile(Constraint.regex(f"a{{{number + 1}}}"), ends=ends)
    assert len(compiler._compiled) == 32
    for end in range(8):
        compiler.compile(one, ends=frozenset([end + 5]))
    assert len(compiler._tokenizers) == 4


async def test_waiting_for_a_grammar_ends(ending: Speculator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards time: a grammar that takes too long is refused by the parameter's name, and so is a wrong one."""
    gate = Gate(monkeypatch)
    compiler = GrammarCompiler(ending, seconds=0.05)
    try:
        with pytest.raises(ApiError, match="too long") as found:
            await compiler.compile(AnswerFormat(Constraint.regex("a"), "structured_outputs"), None)
        assert found.value.param == "structured_outputs"
    finally:
        gate.open.set()
        compiler.close()
    patient = GrammarCompiler(ending)
    try:
        with pytest.raises(ApiError, match="refused") as refused:
            await patient.compile(AnswerFormat(Constraint.regex("("), "response_format"), None)
        assert (refused.value.status, refused.value.param) == (400, "response_format")
        with pytest.raises(UsageError):
            ending.compile_constraint(Constraint.regex("("))
    finally:
        patient.close()


@pytest.mark.parametrize("grammar", ["start", "#", "?", "\n", "// nothing", "A: B", "%ignore /x/", ":", "{"])
async def test_grammars_without_a_rule_are_refused(connect: Connect, ending: Speculator, grammar: str) -> None:
    """Guards against 500 for texts that define nothing: 400, with the parameter's name."""
    async with connect(served=ending) as client:
        answer = await client.post("/v1/completions", json=completion(structured_outputs={"grammar": grammar}))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "structured_outputs"
