"""Compiled code for heads: it returns what PyTorch returns, and leaves alone what it does not know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from eagles import eagle3_head, eagle_head, mtp_head, states, target_model
from interrupts import interrupted
from pairwise import paired
from quantizing import quantized_model
from speculant.core.drafter import EMPTY_PATH, Budget, SessionRequest, Verified
from speculant.core.sampler import Sampling
from speculant.core.tree import DraftTree
from speculant.drafters.heads import session as session_module
from speculant.drafters.heads import text as text_module
from speculant.drafters.heads.drafter import HeadDrafter, HeadSettings, LoadedHead
from speculant.drafters.heads.head import Head
from speculant.engines.hf.cpu import head_code
from speculant.engines.hf.cpu.head_code import HeadCode
from speculant.engines.hf.cpu.head_step import HeadStep
from speculant.engines.hf.cpu.narrow_weights import NarrowWeights
from speculant.engines.hf.views.target_parts import HFTargetParts

pytestmark = pytest.mark.usefixtures("compiled")
LARGE = {"inner": 512}  # so that a layer is worth a call
BUDGETS = (
    Budget(nodes=5, depth=8),
    Budget(nodes=12, depth=3),
    Budget(nodes=40, depth=8, trees=False),
    Budget(nodes=9, depth=8, node_price=0.02),
    Budget(nodes=20, depth=8, level_price=1e-5, node_price=1e-4),
)


@pytest.fixture(scope="module")
def model() -> Any:
    """Return a target."""
    return target_model()


@torch.inference_mode()
def drafted(head: Head, target: HFTargetParts, taps: int) -> list[Tensor]:
    """Return all logits of a text: committed rows, a tree, a chain, and a draft after more committed rows."""
    state, (hidden, following) = head.open(0, target), states(40, taps)
    hidden = hidden.to(target.projection().dtype)
    state.extend(hidden[:30], following[:30])
    found = [state.start(), state.grow([3, 4, 5], [-1, -1, -1]), state.grow([6, 7, 8, 9], [0, 0, 2, 1])]
    state.drop()
    state.extend(hidden[30:33], following[30:33])
    found += [state.start(), state.grow([9], [-1]), state.grow([10], [0])]
    state.drop()
    for row in range(33, 40):
        state.extend(hidden[row : row + 1], following[row : row + 1])
    return [*found, state.start(), state.grow([11], [-1])]


HEADS: dict[str, Any] = {
    "eagle": lambda: (eagle_head(**LARGE), 1),
    "biases and norms": lambda: (eagle_head(bias=True, norms=True, **LARGE), 1),
    "all heads have keys": lambda: (eagle_head(kv_heads=4, **LARGE), 1),
    "eagle3": lambda: (eagle3_head(layer=LARGE), 3),
    "eagle3, two layers": lambda: (eagle3_head(layer=LARGE, layers=2), 3),
    "mtp": lambda: (mtp_head(**LARGE), 1),
    "mtp, norms of heads": lambda: (mtp_head(kind="qwen3", **LARGE), 1),
    "mtp, state first, biases, own output": lambda: (
        mtp_head(kind="qwen2", hidden_first=True, bias=True, embeddings=True, output=True, **LARGE),
        1,
    ),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_those_of_pytorch(
    model: Any, monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype
) -> None:
    """Guards inputs wider than the layer, missing norms, masks of trees, and committed rows of several layers."""
    head, taps = HEADS[name]()
    head.to(dtype)
    model = model if dtype is torch.float32 else target_model().to(dtype)
    calls = list[int]()
    run = HeadStep.__call__
    monkeypatch.setattr(head_code, "memory_allows", lambda _: (False, 0))  # no narrow copies

    def counted(self: HeadStep, *arguments: Any) -> Tensor | None:
        found = run(self, *arguments)
        calls.append(found is not None)
        return found

    monkeypatch.setattr(HeadStep, "__call__", counted)
    wanted = drafted(head, HFTargetParts(model), taps)
    assert not calls
    found = drafted(head, HFTargetParts(model, fast=True), taps)
    assert len(calls) > 10
    assert all(calls)
    tolerance = 1e-5 if dtype is torch.float32 else 0.1
    for one, other in zip(wanted, found, strict=True):
        assert torch.allclose(one.float(), other.float(), atol=tolerance, rtol=tolerance)


def test_few_rows_read_narrow_copies(model: Any) -> None:
    """Guards copies in bfloat16: logits stay near, they serve few rows alone, and large ones are left out."""
    head = eagle3_head(layer=LARGE)
    wanted = drafted(head, HFTargetParts(model), 3)
    found = drafted(head, HFTargetParts(model, fast=True), 3)
    assert torch.equal(wanted[0], found[0])  # of thirty rows
    for one, other in zip(wanted[1:], found[1:], strict=True):
        assert torch.allclose(one, other, atol=0.05, rtol=0.05)
        assert not torch.equal(one, other)
    state, (hidden, following) = head.open(0, HFTargetParts(model, fast=True)), states(6, 3)
    plain = head.open(0, HFTargetParts(model))
    with torch.inference_mode():
        for each in (state, plain):
            each.extend(hidden, following)
        torch.testing.assert_close(state.start(), plain.start(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_texts_run_together_as_alone(model: Any, name: str, dtype: torch.dtype) -> None:
    """Guards batches: the rows of texts of other lengths, as chains and trees, are those of each text by itself."""
    head, taps = HEADS[name]()
    head.to(dtype)
    model = model if dtype is torch.float32 else target_model().to(dtype)
    target, texts = HFTargetParts(model, fast=True), [states(count, taps, seed=count) for count in (9, 5, 2)]
    together, alone = ([head.open(0, target) for _ in texts] for _ in range(2))
    hidden, following = [own.to(dtype) for own, _ in texts], [own for _, own in texts]
    tokens, above = [[3, 4, 5], [6], [7, 8]], [[-1] * 3, [-1], [-1] * 2]
    head.extend_all(together, hidden, following)
    for state, *own in zip(alone, hidden, following, strict=True):
        state.extend(*own)
    wanted = [state.grow(*own) for state, *own in zip(alone, tokens, above, strict=True)]
    found = head.grow_all(together, tokens, above)
    tolerance = 0.05 if dtype is torch.float32 else 0.1  # few rows read copies of the weights
    for state, other, one, own in zip(together, alone, found, wanted, strict=True):
        assert torch.allclose(state.start().float(), other.start().float(), atol=tolerance, rtol=tolerance)
        assert torch.allclose(one.float(), own.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("fast", [True, False])
def test_the_share_of_a_row_is_measured_once(model: Any, monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    """Guards the measurement behind the price of a row: a share of a level, taken once."""
    loaded = LoadedHead(eagle_head(**LARGE), HFTargetParts(model, fast=fast), kind="eagle", method="eagle2")
    session = HeadDrafter(loaded).open(SessionRequest(prompt=np.arange(8, dtype=np.int32)))
    nothing, tokens = DraftTree.empty(), np.array([3], np.int32)
    session.observe(Verified(tree=nothing, path=EMPTY_PATH, tokens=tokens, hidden=states(8, 1)[0]))
    share = session.text.row_share
    assert 0 <= share <= 1
    monkeypatch.setattr(text_module, "measure_row_share", lambda _: 7.0)
    assert session.text.row_share == share


@pytest.mark.parametrize("fast", [True, False])
def test_levels_extend_one_node_where_rows_take_as_long_as_levels(
    model: Any, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    """Guards the price of a row: with it each level extends its best node alone, without it several."""
    loaded = LoadedHead(eagle_head(**LARGE), HFTargetParts(model, fast=fast), kind="eagle", method="eagle2")
    extended = {}
    for share in (0.0, 1e6):
        monkeypatch.setattr(text_module, "measure_row_share", lambda _, share=share: share)
        session = HeadDrafter(loaded).open(SessionRequest(prompt=np.arange(8, dtype=np.int32)))
        nothing, tokens = DraftTree.empty(), np.array([3], np.int32)
        session.observe(Verified(tree=nothing, path=EMPTY_PATH, tokens=tokens, hidden=states(8, 1)[0]))
        draft = session.propose(Budget(nodes=30, depth=4, level_price=1e-6))
        depths = draft.depths()
        extended[share] = max(len({*draft.parents[depths == depth].tolist()}) for depth in range(2, 5))
    assert extended[1e6] == 1 < extended[0.0]


@pytest.mark.parametrize(
    ("name", "temperature", "settings"),
    paired(
        [*HEADS],
        [0.0, 0.7],
        [
            HeadSettings(tree="chain", depth=5),
            HeadSettings(depth=4, top_k=3),
            HeadSettings(depth=6, top_k=6, min_probability=0.01),
        ],
    ),
)
def test_whole_drafts_are_those_that_grow_level_by_level(
    model: Any, monkeypatch: pytest.MonkeyPatch, name: str, temperature: float, settings: HeadSettings
) -> None:
    """Guards drafts of one call: tokens, parents and weights, ends that a price or a budget sets, after acceptances."""
    monkeypatch.setattr(head_code, "memory_allows", lambda _: (False, 0))  # no narrow copies
    for limit in ("_TOP_K", "_EXTENDED"):  # nor narrower levels
        monkeypatch.setattr(session_module, limit, 64)
    monkeypatch.setattr(text_module, "measure_row_share", lambda _: 0.0)
    head, taps = HEADS[name]()
    drafts = {}
    for fast in (False, True):
        loaded = LoadedHead(head, HFTargetParts(model, fast=fast), kind=name, method=name)
        start = SessionRequest(prompt=np.arange(8, dtype=np.int32), sampling=Sampling(temperature=temperature))
        session, hidden = HeadDrafter(loaded, settings=settings).open(start), states(24, taps)[0]
        nothing, tokens = DraftTree.empty(), np.array([3], np.int32)
        session.observe(Verified(tree=nothing, path=EMPTY_PATH, tokens=tokens, hidden=hidden[:8]))
        found = drafts[fast] = []
        for round_, budget in enumerate(BUDGETS):
            found.append(session.propose(budget))
            assert (round_, session.propose(budget).tokens.tolist()) == (round_, found[-1].tokens.tolist())
            tokens = np.array([9 + round_], np.int32)
            session.observe(Verified(tree=nothing, path=EMPTY_PATH, tokens=tokens, hidden=hidden[8 + round_][None]))
    for plain, whole in zip(drafts[False], drafts[True], strict=True):
        assert whole.tokens.tolist() == plain.tokens.tolist()
        assert whole.parents.tolist() == plain.parents.tolist()
        np.testing.assert_allclose(whole.weights, plain.weights, atol=1e-4)
    assert max(map(len, drafts[True])) >= 5


def test_whole_drafts_need_plain_sampling(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards what is left to PyTorch: trees of cut distributions, drawn drafts, and logits that are no numbers."""
    calls = list[object]()
    draft = HeadStep.draft

    def counted(self: HeadStep, *arguments: Any, **options: Any) -> Any:
        calls.append(draft(self, *arguments, **options))
        return calls[-1]

    monkeypatch.setattr(HeadStep, "draft", counted)
    head = eagle_head(**LARGE)
    loaded = LoadedHead(head, HFTargetParts(model, fast=True), kind="eagle", method="eagle")
    for tree, sampling, sampled, whole in (
        ("dynamic", Sampling(temperature=0.8, top_k=5), False, False),
        ("chain", Sampling(temperature=0.8, top_k=5), False, True),
        ("chain", Sampling(temperature=0.8), True, False),
        ("chain", Sampling(), False, True),
    ):
        calls.clear()
        drafter = HeadDrafter(loaded, settings=HeadSettings(tree=tree), sampled=sampled)
        session = drafter.open(SessionRequest(prompt=np.arange(4, dtype=np.int32), sampling=sampling))
        tokens = np.array([3], np.int32)
        session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=tokens, hidden=states(4, 1)[0]))
        assert len(session.propose(Budget(nodes=3, depth=3))) == 3
        assert bool(calls) == whole
    with torch.no_grad():
        head.fc.weight.fill_(torch.nan)
    session = HeadDrafter(loaded, settings=HeadSettings(tree="chain")).open(
        SessionRequest(prompt=np.arange(4, dtype=np.int32))
    )
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=tokens, hidden=states(4, 1)[0]))
    session.propose(Budget(nodes=3, depth=3))
    assert calls[-1] == [None]


def test_texts_share_the_copies(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards memory and first drafts: a head's matrices are copied once, not for every request."""
    copies, narrow = list[int](), NarrowWeights.__call__

    def counted(self: NarrowWeights, weight: Tensor) -> Tensor:
        found = narrow(self, weight)
        copies.append(found.data_ptr())
        return found

    monkeypatch.setattr(NarrowWeights, "__call__", counted)
    head, target = eagle_head(**LARGE), HFTargetParts(model, fast=True)
    hidden, following = states(3, 1)
    with torch.inference_mode():
        for _ in range(3):
            head.open(0, target).extend(hidden, following)
    assert len(copies) == 3 * len(set(copies)) > 3


def test_new_weights_count_at_once(model: Any) -> None:
    """Guards heads that are trained while they draft: weights changed in place, and replaced ones."""
    head, target = eagle_head(**LARGE), HFTargetParts(model, fast=True)
    state = head.open(0, target)
    hidden, following = states(5, 1)
    with torch.inference_mode():
        state.extend(hidden, following)
        before = state.grow([3], [-1])
    layer: Any = head.layers[0]
    for change in (lambda w: w.mul_(2), lambda w: setattr(w, "data", w * 2)):
        with torch.no_grad():
            change(layer.mlp.down_proj.weight)
        with torch.inference_mode():
            state.drop()
            after = state.grow([3], [-1])
        assert not torch.allclose(before, after)
        before = after


@torch.inference_mode()
def test_an_interrupt_leaves_no_old_weights(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards Ctrl-C while new weights are looked up: the next draft reads them."""
    monkeypatch.setattr(head_code, "memory_allows", lambda _: (False, 0))  # no narrow copies
    head, (hidden, following) = eagle_head(**LARGE), states(5, 1)
    layer: Any = head.layers[0]
    fast, plain = (head.open(0, HFTargetParts(model, fast=fast)) for fast in (True, False))
    for state in (fast, plain):
        state.extend(hidden, following)
    line, reached = 1, True
    while reached:
        layer.mlp.down_proj.weight = nn.Parameter(-layer.mlp.down_proj.weight)
        reached = interrupted(lambda: fast.grow([3], [-1]), line)
        fast.drop()
        plain.drop()
        torch.testing.assert_close(fast.grow([3], [-1]), plain.grow([3], [-1]), atol=1e-4, rtol=1e-4)
        fast.drop()
        line += 1
    assert line > 50


def test_what_is_small_or_unknown_is_left_to_pytorch() -> None:
    """Guards layers that a call would not speed up, other classes of linear layers, and gradients."""
    code = HeadCode()
    assert code.layer(eagle_head().layer(0)) is None
    odd: Any = eagle_head(**LARGE).layer(0)
    assert code.layer(odd) is not None
    odd.mlp.up_proj = nn.Sequential(odd.mlp.up_proj)
    assert code.layer(odd) is None
    layer = code.layer(eagle_head(**LARGE).layer(0))
    assert layer is not None
    x, keys = torch.randn(1, 32), torch.zeros(2, 8, 8)
    angles = torch.ones(1, 8), torch.zeros(1, 8)
    with torch.enable_grad():
        assert layer(x, x, angles, keys, keys.clone(), 1, None) is None
    with torch.inference_mode():
        assert layer(x, x, angles, keys, keys.clone(), 1, None) is not None
        assert layer(x.double(), x, angles, keys, keys.clone(), 1, None) is None


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("tree", ["chain", "dynamic"])
def test_whole_drafts_grow_together_as_alone(model: Any, monkeypatch: pytest.MonkeyPatch, name: str, tree: str) -> None:
    """Guards batches: one call for texts of other lengths, budgets and temperatures, and steps of all that fit."""
    monkeypatch.setattr(head_code, "memory_allows", lambda _: (False, 0))  # no narrow copies
    head, taps = HEADS[name]()
    loaded = LoadedHead(head, HFTargetParts(model, fast=True), kind=name, method=name)
    drafter = HeadDrafter(loaded, settings=HeadSettings(tree=tree, depth=5, top_k=6))
    calls, draft = list[int](), HeadStep.draft

    def counted(self: HeadStep, roots: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(len(roots))
        return draft(self, roots, *arguments, **options)

    monkeypatch.setattr(HeadStep, "draft", counted)
    sessions = []
    for place in range(7):  # of up to 42 rows a level
        sampling = Sampling(temperature=0.3 * (place % 3))
        session = drafter.open(SessionRequest(prompt=np.arange(4 + place, dtype=np.int32), sampling=sampling))
        tokens, hidden = np.array([3 + place], np.int32), states(4 + place, taps)[0]
        session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=tokens, hidden=hidden))
        sessions.append(session)
    budgets = [Budget(nodes=2 + 3 * place, depth=6 - place % 4) for place in range(7)]
    wanted = [session.propose(budget) for session, budget in zip(sessions, budgets, strict=True)]
    calls.clear()
    found = drafter.propose(sessions, budgets)
    assert calls == [7]
    for own, each in zip(found, wanted, strict=True):
        assert (own.tokens.tolist(), own.parents.tolist()) == (each.tokens.tolist(), each.parents.tolist())
        np.testing.assert_allclose(own.weights, each.weights, atol=1e-5)
    assert len({len(own) for own in found}) > 1


@pytest.mark.parametrize("name", ["eagle", "mtp"])
def test_a_quantised_target_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Guards packed embeddings and output projections: steps and whole drafts of heads are compiled all the same."""
    model, drafts, draft = quantized_model(target_model(), activations="float"), list[object](), HeadStep.draft
    test_logits_are_those_of_pytorch(model, monkeypatch, name, torch.float32)
    monkeypatch.undo()

    def counted(self: HeadStep, *arguments: Any, **options: Any) -> Any:
        drafts.append(draft(self, *arguments, **options))
        return drafts[-1]

    monkeypatch.setattr(HeadStep, "draft", counted)
    settings = HeadSettings(depth=4, top_k=3)
    test_whole_drafts_are_those_that_grow_level_by_level(model, monkeypatch, name, 0.7, settings)
    assert drafts
    assert all(each is not None for each in drafts)
