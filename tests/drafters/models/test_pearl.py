"""PEARL: what is drafted ahead is used exactly where the text went that way."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch

from models import tiny_model
from pairwise import paired
from samplers import Branches, enumerate_outcomes
from speculant.core.drafter import Budget, SessionRequest, Verified
from speculant.core.engine import Pass
from speculant.core.errors import UsageError
from speculant.core.sampler import Sampler, Sampling
from speculant.core.tree import DraftTree
from speculant.drafters.models import ahead, pearl
from speculant.drafters.models.pearl import AheadLengths, PearlDrafter, PearlSession, PearlSettings
from speculant.engines.hf.engine import HFEngine
from speculant.verifiers.block import BlockVerification
from speculant.verifiers.rule import RuleVerifier
from speculant.verifiers.speculative_sampling import SpeculativeSampling

PROMPT = [5, 9, 14, 3]
LAWS = [
    (0.5, 0.25, 0.25),
    (0.25, 0.5, 0.25),
    (0.25, 0.25, 0.5),
]  # tests pass with 1/2 or 1
Text = tuple[int, ...]


def verified(tree: DraftTree, accepted: int, own: int) -> Verified:
    """Return a round that accepted the first nodes of a chain."""
    path = np.arange(accepted, dtype=np.int32)
    return Verified(tree=tree, path=path, tokens=np.array([*tree.tokens[:accepted], own], np.int32))


def opened(model: Any) -> PearlSession:
    """Return a session behind the prompt, whose draft model is the target."""
    engine = HFEngine(model)
    drafter = PearlDrafter(
        lambda prompt: engine.open(torch.from_numpy(prompt).long()[None]),
        vocabulary=61,
        settings=PearlSettings(ahead=4),
    )
    session = drafter.open(SessionRequest(prompt=np.array(PROMPT[:-1], np.int32)))
    session.observe(verified(DraftTree.empty(), 0, PROMPT[-1]))
    return session


def test_tokens_drafted_ahead_are_used() -> None:
    """Guards the pipeline: one token first; what was drafted behind it is the next draft, unless the text differs."""
    model = tiny_model("llama")
    session = opened(model)
    text = model.generate(torch.tensor([PROMPT]), max_new_tokens=12, do_sample=False, eos_token_id=-1)[0, 4:].tolist()
    budget = Budget(nodes=8, depth=8)
    first = session.propose(budget)
    assert first.tokens.tolist() == text[:1]
    assert session.propose(budget).tokens.tolist() == text[:1]
    session.observe(verified(first, 1, text[1]))
    second = session.propose(budget)
    assert second.tokens.tolist() == text[2:5]
    session.observe(verified(second, 3, text[5]))
    assert session.propose(Budget(nodes=1, depth=8)).tokens.tolist() == text[6:7]
    session.observe(verified(DraftTree.from_paths([text[6:7]]), 0, (text[6] + 1) % 61))
    assert len(session.propose(budget)) == 1
    session.close()


def test_tokens_are_tested_once() -> None:
    """Guards losslessness: what a round drafted is no draft again where a pause behind it happens to repeat it."""
    session = opened(tiny_model("llama"))
    budget = Budget(nodes=8, depth=8)
    first = session.propose(budget)
    session.observe(verified(first, 0, int(first.tokens[0] + 1) % 61))
    session.follow(first.tokens)
    assert len(session.propose(budget)) == 1
    session.close()


def test_the_length_follows_acceptance_and_times() -> None:
    """Guards adaptivity: tokens that are rarely accepted are not drafted; the first one only where its pass pays."""
    lengths = AheadLengths()
    assert lengths.first() == 1
    for _ in range(200):
        lengths.acceptance.observe(6, 2)
    assert lengths.ahead(price=0.3) == 3
    assert lengths.ahead(price=0.0) > 60
    lengths.times.observe(target=1.0, draft=0.1)
    assert lengths.first() == 1
    for _ in range(100):
        lengths.times.observe(target=1.0, draft=2.0)
    assert lengths.first() == 0
    with pytest.raises(UsageError, match="first must be 0 or 1"):
        PearlDrafter(lambda _: None, vocabulary=61, settings=PearlSettings(first=2))


def test_the_number_ahead_is_checked() -> None:
    """Guards against a draft that never ends."""
    with pytest.raises(UsageError, match="1 to 64"):
        PearlDrafter(lambda _: None, vocabulary=61, settings=PearlSettings(ahead=0))


def test_all_first_tokens_come_before_anything_is_drafted_ahead() -> None:
    """Guards batches: one worker drafts for all, so no sequence waits for what another drafts ahead."""
    passes = list[tuple[int, int]]()
    engine = HFEngine(tiny_model("llama"))

    def opened(prompt: Any) -> Any:
        cache, owner = engine.open(torch.from_numpy(prompt).long()[None]), len(prompt)
        forward = cache.forward

        def counted(tokens: Any, parents: Any) -> Any:
            passes.append((owner, len(tokens)))
            return forward(tokens, parents)

        cache.forward = counted
        return cache

    drafter = PearlDrafter(opened, vocabulary=61, settings=PearlSettings(ahead=3))
    sessions = [drafter.open(SessionRequest(prompt=np.array(PROMPT[:n], np.int32))) for n in (2, 3)]
    for session in sessions:
        session.observe(verified(DraftTree.empty(), 0, 7))
    for session, draft in zip(sessions, drafter.propose(sessions, [Budget(nodes=4, depth=4)] * 2), strict=True):
        session.observe(verified(draft, 0, 7))
        session.close()
    assert [owner for owner, _ in passes[:2]] == [2, 3]
    assert len(passes) == 2 + 2 * 3


def test_what_fails_ahead_ends_no_request() -> None:
    """Guards optional work: an error while drafting ahead costs the draft ahead, not the text."""
    engine, broken = HFEngine(tiny_model("llama")), list[bool]()

    def opened(prompt: Any) -> Any:
        cache = engine.open(torch.from_numpy(prompt).long()[None])
        forward = cache.forward

        def failing(tokens: Any, parents: Any) -> Any:
            if broken:
                raise ArithmeticError
            return forward(tokens, parents)

        cache.forward = failing
        return cache

    session = PearlDrafter(opened, vocabulary=61).open(SessionRequest(prompt=np.array(PROMPT[:-1], np.int32)))
    session.observe(verified(DraftTree.empty(), 0, PROMPT[-1]))
    assert isinstance(session, PearlSession)
    draft = session.draft(Budget(nodes=4, depth=4))
    broken.append(True)
    session.go_ahead()
    session.observe(verified(draft, 0, 9))
    broken.clear()
    assert len(session.propose(Budget(nodes=4, depth=4))) == 1
    broken.append(True)
    session.close()


def p_of(text: Text) -> tuple[float, ...]:
    """Return the target's distribution after some tokens below the prompt."""
    return LAWS[(sum(text) + len(text)) % 3]


def q_of(text: Text) -> tuple[float, ...]:
    """Return the draft model's."""
    return LAWS[(2 * sum(text) + 1) % 3]


class Table:
    """A text on a draft model of three tokens whose every draw is enumerated."""

    depth, unread = 100, 0

    def __init__(self) -> None:
        self.committed: Text = ()
        self.paths = [self.committed]

    def begin(self) -> torch.Tensor:
        self.paths = [self.committed]
        return torch.tensor([q_of(self.committed)])

    def read(self, tokens: list[int], above: list[int]) -> tuple[list[int], torch.Tensor]:
        first = len(self.paths) - 1
        for token, row in zip(tokens, above, strict=True):
            self.paths.append((*self.paths[row + 1], token))
        return list(range(first, first + len(tokens))), torch.tensor([q_of(path) for path in self.paths[first + 1 :]])

    def observe(self, round_: Verified) -> None:
        self.committed = (*self.committed, *round_.tokens.tolist())


class Immediate:
    """Runs what it is given at once."""

    def submit(self, task: Any, *given: Any) -> Any:
        done: Future[Any] = Future()
        done.set_result(task(*given))
        return done


class Numbers(Sampler):
    """Enumerates the uniform numbers of a pass of the table's target, a half each."""

    greedy, parallel = False, False

    def __init__(self, branches: Branches, paths: list[Text], *, parallel: bool) -> None:
        self._branches, self._paths, self.parallel = branches, paths, parallel

    def load(self, logits: Any) -> None:
        pass

    def distribution(self, row: int) -> torch.Tensor:
        return torch.tensor(p_of(self._paths[row]))

    def probabilities(self) -> torch.Tensor:
        return torch.tensor([p_of(path) for path in self._paths])

    def uniforms(self, n: int) -> torch.Tensor:
        return torch.tensor([(self._branches.take([0.5] * 2) + 0.5) / 2 for _ in range(n)])

    def commit(self, token: int) -> bool:
        return False


@pytest.mark.parametrize(
    ("verifier", "parallel", "first"), paired([SpeculativeSampling(), BlockVerification()], [False, True], [0, 1])
)
def test_what_is_drafted_ahead_is_tested_and_exact(
    verifier: RuleVerifier, parallel: bool, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards losslessness and acceptance, by every draw of a round and its exact probability.

    Committed tokens have the target's distribution. What is kept for the next draft has q's distribution, whatever was
    committed, so that the next round is speculative sampling again. The first token ahead is accepted with probability
    sum(min(p, q)).
    """

    def run(branches: Branches) -> tuple[Text, Text, bool]:
        for module in (pearl, ahead):
            monkeypatch.setattr(module, "draw_token", lambda distribution, _: branches.take(distribution.tolist()))
        worker: Any = Immediate()
        text: Any = Table()
        start = SessionRequest(prompt=np.array(PROMPT, np.int32), sampling=Sampling(temperature=1.0))
        settings = PearlSettings(ahead=2, first=first)
        session = PearlSession(text, start, worker, settings, AheadLengths(), vocabulary=3)
        draft = session.propose(Budget(nodes=4, depth=4))
        assert len(draft) == first
        paths = [(), tuple(draft.tokens.tolist())][: first + 1]
        sampler = Numbers(branches, paths, parallel=parallel)
        prepared = verifier.prepare(draft, Pass(logits=None), sampler)
        read = None if prepared is None else verifier.decide([prepared])[0].tolist()
        walk = verifier.walk(draft, read, sampler)
        found = Verified(tree=draft, path=np.array(walk.path, np.int32), tokens=np.array(walk.tokens, np.int32))
        session.observe(found)
        return tuple(walk.tokens), tuple(token for token, _ in session._ready), len(walk.path) == 1

    joint, whole, kept = Counter[tuple[Text, Text]](), 0.0, 0.0
    for (tokens, ready, accepted), probability in enumerate_outcomes(run):
        joint[tokens, ready] += probability
        whole += accepted * probability
        kept += bool(ready) * probability
    committed = Counter[Text]()
    for (tokens, _), probability in joint.items():
        committed[tokens] += probability
    for token in range(3):
        assert sum(each for tokens, each in committed.items() if tokens[0] == token) == pytest.approx(p_of(())[token])
        below = {tokens: each for tokens, each in committed.items() if tokens[0] == token and len(tokens) == 2}
        for tokens, probability in below.items():
            assert probability == pytest.approx(sum(below.values()) * p_of(tokens[:1])[tokens[1]])
    for tokens in {tokens for tokens, ready in joint if ready}:
        mass = sum(joint[tokens, (token,)] for token in range(3))
        assert [joint[tokens, (token,)] / mass for token in range(3)] == pytest.approx(q_of(tokens))
    overlap = sum(map(min, p_of(()), q_of(())))
    expected = sum(min(p_of(())[x], q_of(())[x]) * sum(map(min, p_of((x,)), q_of((x,)))) for x in range(3))
    assert whole == pytest.approx(overlap * first)
    expected = expected if first else overlap
    assert kept == pytest.approx(expected)


def test_as_many_are_drafted_ahead_as_the_pass_takes() -> None:
    """Guards the adaptive length: drafting goes on until the round is observed, to one more than a draft may be."""
    engine = HFEngine(tiny_model("llama"))
    drafter = PearlDrafter(lambda prompt: engine.open(torch.from_numpy(prompt).long()[None]), vocabulary=61)
    session = drafter.open(SessionRequest(prompt=np.array(PROMPT[:-1], np.int32)))
    session.observe(verified(DraftTree.empty(), 0, PROMPT[-1]))
    assert isinstance(session, PearlSession)
    draft = session.propose(Budget(nodes=6, depth=50))
    assert session._ahead is not None
    later = [token for token, _ in session._ahead.wait()]
    assert len(later) == 7
    session.observe(verified(draft, 1, later[0]))
    assert session.propose(Budget(nodes=6, depth=50)).tokens.tolist() == later[1:]
    running = session._ahead
    session.close()
    assert len(running.wait()) <= 7
