"""A drafter that reads two hidden layers: what it gets is what the layers output, on every path."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from guesses import prompts
from models import VOCABULARY, deep_model
from speculant import Speculator
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree
from speculant.decoding.step import DecodingComponents, step
from speculant.engines.recorded import RecordedCache, RecordedEngine, RecordedSampler
from speculant.options.drafting import DraftingOptions
from speculant.sizing.fixed import FixedSizing

LAYERS = (0, 2)
GREEDY: dict[str, Any] = {"max_new_tokens": 24, "temperature": 0}


class Tapping(Drafter):
    """Drafts small trees, and keeps the hidden states of every committed token."""

    def __init__(self, *, prompt: bool = True) -> None:
        self.prompt = prompt
        self.sessions: list[TappingSession] = []

    @property
    def needs(self) -> RequestedOutputs:
        return RequestedOutputs(hidden_layers=LAYERS, prompt=self.prompt, top_k=1)

    def open(self, start: SessionRequest) -> Session:
        self.sessions.append(TappingSession(start.prompt.tolist(), self.prompt))
        return self.sessions[-1]


class TappingSession(Session):
    """The text of a request, and the states [T, 2, D] of all its tokens but the last."""

    def __init__(self, prompt: list[int], whole: bool) -> None:
        self.text, self.whole = prompt, whole
        self.states: list[torch.Tensor] = []
        self.best = 0

    def propose(self, budget: Budget) -> DraftTree:
        paths = [[self.best, self.best], [(self.best + 1) % VOCABULARY, 3]]
        return DraftTree.from_paths(paths).head(budget.nodes).within(depth=budget.depth, trees=budget.trees)

    def observe(self, verified: Verified) -> None:
        assert verified.hidden is not None
        assert verified.top_ids is not None
        if not self.states:
            assert len(verified.hidden) == (len(self.text) if self.whole else 1)
            self.states.append(verified.hidden)
        else:
            assert len(verified.hidden) == len(verified.tree) + 1
            self.states.append(verified.hidden[[0, *(node + 1 for node in verified.path.tolist())]])
        self.text += verified.tokens.tolist()
        self.best = int(verified.top_ids[-1, 0]) if len(verified.path) == 0 else self.text[-1]

    def close(self) -> None:
        pass


def truth(model: Any, text: list[int]) -> torch.Tensor:
    """Return what the layers output over a whole text, [T, 2, D]."""
    found: dict[int, torch.Tensor] = {}
    hooks = [
        model.model.layers[layer].register_forward_hook(
            lambda _module, _inputs, output, layer=layer: found.update(
                {layer: output[0] if isinstance(output, tuple) else output}
            )
        )
        for layer in LAYERS
    ]
    with torch.no_grad():
        model(torch.tensor([text]))
    for hook in hooks:
        hook.remove()
    return torch.stack([found[layer][0] for layer in LAYERS], dim=1)


def tapping(model: Any, *, fast: bool = False, prompt: bool = True) -> tuple[Speculator, Tapping]:
    drafter, options = Tapping(prompt=prompt), DraftingOptions(nodes=4, fast=fast)
    return Speculator(model, None, drafter, method="tapping", verifier=rule(), options=options), drafter


def rule() -> Any:
    from speculant.verifiers.sample_then_follow import SampleThenFollow

    return SampleThenFollow()


def check(model: Any, session: TappingSession) -> None:
    states = torch.cat(session.states)
    torch.testing.assert_close(states, truth(model, session.text)[: len(states)], rtol=1e-4, atol=1e-4)
    assert len(states) == len(session.text) - 1


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "accelerated"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_alone(attention: str, fast: bool) -> None:
    """Guards taps of the prompt and of tree passes, also where compiled code runs whole layers."""
    model = deep_model("llama", attention)
    speculator, drafter = tapping(model, fast=fast)
    text = speculator.generate(prompts()[0], **GREEDY).ids
    assert text == Speculator.from_transformers(model, method="none").generate(prompts()[0], **GREEDY).ids
    check(model, drafter.sessions[0])


def test_prompts_in_chunks() -> None:
    """Guards the taps of a prompt that is read in pieces."""
    model = deep_model("llama")
    speculator, drafter = tapping(model)
    config = model.generation_config
    speculator.generate(prompts()[2], generation_config=type(config)(prefill_chunk_size=7), **GREEDY)
    check(model, drafter.sessions[0])


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "accelerated"])
def test_together(fast: bool) -> None:
    """Guards taps in a pass over several sequences, each of which gets its own rows."""
    model = deep_model("llama")
    speculator, drafter = tapping(model, fast=fast)
    speculator.generate_batch(prompts()[:4], **GREEDY)
    assert len(drafter.sessions) == 4
    for session in drafter.sessions:
        check(model, session)


def test_the_prompt_only_where_it_is_wanted() -> None:
    """Guards memory: without `RequestedOutputs.prompt` a session gets the last row of the prompt alone."""
    model = deep_model("llama")
    speculator, drafter = tapping(model, prompt=False)
    speculator.generate(prompts()[0], **GREEDY)
    [session] = drafter.sessions
    expected = truth(model, session.text)[len(prompts()[0]) - 1 : -1]
    torch.testing.assert_close(torch.cat(session.states), expected, rtol=1e-4, atol=1e-4)


def test_an_engine_without_hidden_states_refuses_by_name() -> None:
    """Guards against a need that is silently ignored."""
    from speculant.core.stats import Stats
    from speculant.decoding.sequence import Sequence

    parts = DecodingComponents(engine=RecordedEngine(), drafter=Tapping(), verifier=rule(), sizing=FixedSizing(2))
    start = SessionRequest(prompt=torch.tensor([3, 4], dtype=torch.int32).numpy())
    sequence = Sequence(RecordedCache(1), RecordedSampler([5, 6]), start, Stats(method=""))
    sequence.resume(parts.drafter.open(start), parts.sizing.open(), 4, began=0.0)
    with pytest.raises(UnsupportedError, match="hidden states"):
        step([sequence], parts)
