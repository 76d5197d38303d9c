"""Texts of one head that run together: every kind has the logits of each alone, and runs once a level for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from block_heads import lent_cache, random_weights
from eagles import eagle3_head, eagle_head, p_eagle_head
from feed_forward_heads import PREFIX, new_blockwise, new_hydra, new_medusa, new_mlp
from gemmas import assistant, gemma
from models import VOCABULARY, tiny_model
from mtps import FAMILIES, all_tensors, family_model, modules_of
from speculant import Speculator
from speculant.core.engine import RequestedOutputs
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.dflash.head import DFlashHead
from speculant.drafters.heads.dflash.shape import BlockShape, Convolution, Domino, Selector
from speculant.drafters.heads.drafter import LoadedHead
from speculant.drafters.heads.glide.cross import target_cross_shape
from speculant.drafters.heads.glide.head import GlideHead
from speculant.drafters.heads.head import Head, HeadState
from speculant.drafters.heads.layers import LayerShape
from speculant.drafters.heads.mtp.checkpoint import load_native
from speculant.drafters.heads.mtp.layouts import plain_name
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.views.own_layer import OwnLayer
from speculant.engines.hf.views.target_parts import HFTargetParts

TEXTS = ([5, 9, 14, 3, 8], [7, 2], [30, 1, 2, 3, 4, 5, 6, 30, 1, 2])
SHAPE = LayerShape(hidden=32, inner=48, heads=4, kv_heads=2, head_dim=8, norms=True)
BLOCK = BlockShape(layers=2, size=5, mask=3, vocabulary=VOCABULARY)
BLOCKS = {
    "dflash": BLOCK,
    "sliding": replace(BLOCK, windows=(None, 4), causal=(False, True)),
    "dspark": replace(BLOCK, anchored=True, markov=6, confidence=True),
    "rnn": replace(BLOCK, markov=6, markov_kind="rnn"),
    "domino": replace(BLOCK, anchored=True, domino=Domino(state=6, inner=5, plain=1)),
    "dflash2": replace(BLOCK, selector=Selector(rank=6, candidates=9), convolution=Convolution(taps=2, group=8)),
    "jetspec": replace(BLOCK, causal=(True, True)),
}
PLAIN: dict[str, Callable[[], Any]] = {
    "eagle": eagle_head,
    "eagle3": eagle3_head,
    "p-eagle": p_eagle_head,
    "medusa": new_medusa,
    "hydra": new_hydra,
    "hydra++": lambda: new_hydra(prefix=PREFIX),
    "mlp": new_mlp,
    "blockwise": new_blockwise,
}
KINDS = [*PLAIN, *BLOCKS, "glide", "assistant", *(f"mtp {family}" for family in FAMILIES)]
_MLA = ("deepseek_v3", "deepseek_v3 of two", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "bailing_hybrid")
APART = {f"mtp {family}" for family in _MLA}  # keys and values are made of the rows that the cache returns
LEVELS = (([7, 9], [-1, -1]), ([7, 8, 9], [0, 0, 1]), ([4, 5], [2, 4]))  # tokens of a draft, and the rows above them


def opened(kind: str) -> tuple[Any, Callable[[], list[HeadState]], list[Tensor]]:
    """Return a head, what opens the states of all texts, and their hidden states [n, L', D]."""
    if kind == "assistant":
        return opened_assistant()
    if kind.startswith("mtp "):
        family = FAMILIES[kind.removeprefix("mtp ")]
        target = HFTargetParts(family_model(family))
        tensors = all_tensors(modules_of(family, target._model)).items()
        head: Any = load_native(Checkpoint("tiny", {}, {plain_name(name): tensor for name, tensor in tensors}), target)
    else:
        target = HFTargetParts(tiny_model("llama"))
        if kind == "glide":
            head = GlideHead(SHAPE, target_cross_shape(target), vocabulary=VOCABULARY)
            random_weights(head)
            model = tiny_model("llama")
            caches = [lent_cache(model, torch.tensor(text)) for text in TEXTS]
            hidden = [torch.empty(len(text), 0, 0) for text in TEXTS]
            return head, lambda: [head.open_text(t[:1], target, c) for t, c in zip(TEXTS, caches, strict=True)], hidden
        if kind in PLAIN:
            head = PLAIN[kind]()
        else:
            head = DFlashHead(SHAPE, BLOCKS[kind], (0, 1))
            random_weights(head)
    source = torch.Generator().manual_seed(3)
    hidden = [torch.randn(len(text), len(head.taps), target.hidden_size, generator=source) for text in TEXTS]
    return head.eval(), lambda: [head.open(0, target) for _ in TEXTS], hidden


def opened_assistant() -> tuple[Any, Callable[[], list[HeadState]], list[Tensor]]:
    """Return an assistant, whose texts the target has read."""
    model = gemma()
    loaded, caches, hidden = assistant(model), [], []
    for text in TEXTS:
        cache = HFEngine(model).open(torch.tensor([text]))
        result = cache.prefill(needs=RequestedOutputs(hidden_layers=(-1,)))
        assert result is not None
        caches.append(cache)
        hidden.append(result.hidden)
    head: Any = loaded.head
    texts = list(zip(TEXTS, caches, strict=True))
    return head, lambda: [head.open_text(text, loaded.target, cache) for text, cache in texts], hidden


def following(kind: str, text: Sequence[int]) -> Tensor:
    """Return the token after each of a text."""
    return torch.tensor([*text[1:], 6])


def check(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    """Assert that logits are the same but for rounding, and drafts the same."""
    for own, each in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, each, atol=2e-4, rtol=2e-4)
        assert torch.equal(own.argmax(-1), each.argmax(-1))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_each_text_alone(kind: str) -> None:
    """Guards batches of every kind: texts of other lengths, trees, drafts of other depths, and rounds that follow."""
    head, open_states, hidden = opened(kind)
    together, alone = open_states(), open_states()
    with torch.inference_mode():
        for turn in range(2):
            given = hidden if not turn else [own[-2:] for own in hidden]
            tokens = [following(kind, text)[-len(own) :] for text, own in zip(TEXTS, given, strict=True)]
            head.extend_all(together, given, tokens)
            for state, own, each in zip(alone, given, tokens, strict=True):
                state.extend(own, each)
            check(head.start_all(together), [state.start() for state in alone])
            for place, (nodes, above) in enumerate(LEVELS[: (head.depth or 9) - 1]):
                some = slice(0, 3 - place)  # drafts end apart
                found = head.grow_all(together[some], [nodes] * len(together[some]), [above] * len(together[some]))
                check(found, [state.grow(nodes, above) for state in alone[some]])
            for state in (*together, *alone):
                state.drop()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in APART])
def test_a_level_is_one_call(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the gain: the largest product of a level is computed once for three texts, not three times."""
    head, open_states, hidden = opened(kind)
    states, calls = open_states(), list[int]()
    counted = nn.Linear.forward

    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        calls.append(1)
        return counted(self, x)

    with torch.inference_mode():
        head.extend_all(states, hidden, [following(kind, text) for text in TEXTS])
        head.start_all(states)
        monkeypatch.setattr(nn.Linear, "forward", forward)
        head.grow_all(states, [[7, 9]] * 3, [[-1, -1]] * 3)
        several = len(calls)
        calls.clear()
        alone = open_states()[0]
        alone.extend(hidden[0], following(kind, TEXTS[0]))
        alone.start()
        calls.clear()
        alone.grow([7, 9], [-1, -1])
    assert several == len(calls)


@pytest.mark.parametrize("kind", ["medusa", "hydra", "mlp", "dflash", "domino", "mtp mimo"])
def test_texts_of_a_batch_are_plain_ones(kind: str) -> None:
    """Guards whole batches with heads of random weights, whose drafts leave together and end apart."""
    model = family_model(FAMILIES["mimo"]) if kind.startswith("mtp") else tiny_model("llama")
    head, _, _ = opened(kind)
    name = kind.split()[0] if kind not in BLOCKS else "dflash"
    loaded = LoadedHead(head, HFTargetParts(model), kind=name, method=name)
    prompts = [list(text) for text in TEXTS]
    plain = Speculator.from_transformers(model, method="none")
    drafted = Speculator.from_transformers(model, head=loaded, nodes=9)
    wanted = [plain.generate(prompt, max_new_tokens=10, temperature=0).ids for prompt in prompts]
    results = drafted.generate_batch(prompts, size=3, max_new_tokens=10, temperature=0)
    assert [each.ids for each in results] == wanted
    assert sum(each.stats.drafted for each in results) > 20


def test_layers_that_attend_in_their_own_way_run_text_by_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the way out: rows that a refused pass has left are dropped, and it is not tried again."""
    head, open_states, hidden = opened("mtp deepseek_v32")
    states, tried, run = open_states(), list[int](), OwnLayer._run_joined

    def counted(self: OwnLayer, *arguments: Any) -> Tensor:
        tried.append(1)
        return run(self, *arguments)

    monkeypatch.setattr(OwnLayer, "_run_joined", counted)
    with torch.inference_mode():
        for _ in range(2):
            head.extend_all(states, hidden, [following("", text) for text in TEXTS])
    assert len(tried) == 1
    assert [state.length for state in states] == [2 * len(text) for text in TEXTS]


def test_heads_without_a_way_of_their_own_run_text_by_text() -> None:
    """Guards the contract: what a head does not run together is asked of each text."""

    class Counting:
        def start(self) -> Tensor:
            return torch.zeros(1, 3)

    states: list[Any] = [Counting(), Counting()]
    assert [own.shape for own in Head.start_all(object(), states)] == [(1, 3), (1, 3)]  # type: ignore[arg-type]
