"""Heads for tiny targets: random ones of every public kind, and one that knows what the target is going to choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from block_heads import random_weights
from models import perturbed, tiny_model
from speculant.api.draft_caches import open_draft_caches
from speculant.core.drafter import EMPTY_PATH, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.tree import DraftTree
from speculant.drafters.heads.assistant.head import AssistantHead
from speculant.drafters.heads.assistant.layers import AssistantShape, ReadLayer
from speculant.drafters.heads.blockwise.head import BlockwiseHead
from speculant.drafters.heads.dflash.head import DFlashHead
from speculant.drafters.heads.dflash.shape import BlockShape, Convolution, Domino, Selector
from speculant.drafters.heads.drafter import LoadedHead
from speculant.drafters.heads.eagle.head import EagleHead
from speculant.drafters.heads.eagle3.head import Eagle3Head, Eagle3Shape
from speculant.drafters.heads.exit.head import ExitHead
from speculant.drafters.heads.glide.cross import target_cross_shape
from speculant.drafters.heads.glide.head import GlideHead
from speculant.drafters.heads.head import Head, HeadState, TargetParts
from speculant.drafters.heads.hydra.head import HydraHead, HydraShape
from speculant.drafters.heads.layers import LayerShape
from speculant.drafters.heads.medusa.head import MedusaHead, MedusaShape
from speculant.drafters.heads.mlp.head import MLPHead, MLPShape
from speculant.drafters.heads.mtp.head import MtpHead
from speculant.drafters.heads.mtp.module import MtpModule
from speculant.drafters.heads.p_eagle.head import PEagleHead
from speculant.drafters.heads.pard.head import PardHead
from speculant.drafters.heads.pass_.head import PaSSHead
from speculant.drafters.heads.specdec.head import SpecDecHead
from speculant.drafters.heads.target_layer import FULL
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.registry import METHODS

DEPTH = 4  # of heads that draft a fixed number of tokens


def layer_of(target: TargetParts, **changes: Any) -> LayerShape:
    """Return the shape of a small decoder layer of the target's hidden size."""
    size = target.hidden_size
    return LayerShape(hidden=size, inner=48, heads=4, kv_heads=2, head_dim=size // 4, **changes)


def eagle3_shape(target: TargetParts) -> Eagle3Shape:
    """Return the shape of a head that reads the first and the last layer, and drafts every second token."""
    ids = draft_ids(target)
    return Eagle3Shape(
        layer=layer_of(target),
        taps=(0, -1),
        target_hidden=target.hidden_size,
        vocabulary=target.vocabulary,
        draft_vocabulary=len(ids),
    )


def draft_ids(target: TargetParts) -> Tensor:
    """Return every second token of a target, and one more."""
    return torch.cat([torch.arange(1, target.vocabulary, 2), torch.tensor([target.vocabulary - 1])]).unique()


def p_eagle(target: TargetParts) -> nn.Module:
    """Return a P-EAGLE head."""
    return PEagleHead(eagle3_shape(target), mask_token=1, depth=DEPTH, ids=draft_ids(target))


def medusa(target: TargetParts) -> nn.Module:
    """Return Medusa heads."""
    return MedusaHead(MedusaShape(hidden=target.hidden_size, vocabulary=target.vocabulary, heads=DEPTH))


def hydra(target: TargetParts, prefix: LayerShape | None = None) -> nn.Module:
    """Return Hydra heads; Hydra++ with a prefix."""
    size = target.hidden_size
    return HydraHead(HydraShape(hidden=size, vocabulary=target.vocabulary, heads=DEPTH, prefix=prefix))


def mlp(target: TargetParts) -> nn.Module:
    """Return an MLP speculator."""
    return MLPHead(MLPShape(hidden=target.hidden_size, inner=24, vocabulary=target.vocabulary, steps=DEPTH))


def dflash(target: TargetParts, **changes: Any) -> nn.Module:
    """Return a DFlash head; `changes` are of its block."""
    block = BlockShape(layers=2, size=DEPTH + 1, mask=1, vocabulary=target.vocabulary, **changes)
    return DFlashHead(layer_of(target, norms=True), block, (0, -1))


def pard(target: TargetParts) -> PardHead:
    """Return a PARD model."""
    draft = perturbed(tiny_model("llama", vocab_size=target.vocabulary, num_hidden_layers=1), 0.05)
    caches = open_draft_caches(draft, target.vocabulary)
    size = target.vocabulary
    return PardHead(caches, size - 1, vocabulary=size, target_vocabulary=size, tokens=DEPTH)


def specdec(target: TargetParts) -> nn.Module:
    """Return an encoder of the text and a decoder of blocks."""
    return SpecDecHead(layer_of(target), vocabulary=target.vocabulary, encoder=1, decoder=1, block=DEPTH)


def assistant(target: Any) -> AssistantHead:
    """Return layers over the keys of the target's last layer, as a Gemma 4 assistant has."""
    config = target.config
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or target.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    frequencies = 10000.0 ** -(torch.arange(0, dim, 2) / dim)
    return AssistantHead(
        AssistantShape(
            hidden=24,
            target_hidden=target.hidden_size,
            inner=40,
            heads=heads,
            vocabulary=target.vocabulary,
            kinds=(FULL, FULL),
            read={FULL: ReadLayer(layer=-1, kv_heads=kv_heads, head_dim=dim, frequencies=frequencies)},
        )
    )


BUILDERS: Mapping[str, Callable[[TargetParts], Any]] = {  # by kind
    "eagle": lambda target: EagleHead(layer_of(target)),
    "eagle3": lambda target: Eagle3Head(eagle3_shape(target), ids=draft_ids(target)),
    "p-eagle": p_eagle,
    "mtp": lambda target: MtpHead([MtpModule(target, [target.new_layer(None, FULL)])]),
    "assistant": assistant,
    "medusa": medusa,
    "hydra": hydra,
    "hydra++": lambda target: hydra(target, layer_of(target)),
    "mlp": mlp,
    "blockwise": lambda target: BlockwiseHead(target.hidden_size, 16, DEPTH),
    "dflash": dflash,
    "dspark": lambda target: dflash(target, anchored=True, markov=6, confidence=True),
    "domino": lambda target: dflash(target, anchored=True, domino=Domino(state=8, inner=7)),
    "dflash2": lambda target: dflash(
        target, selector=Selector(rank=6, candidates=9), convolution=Convolution(taps=2, group=8)
    ),
    "pard": pard,
    "glide": lambda target: GlideHead(layer_of(target), target_cross_shape(target), vocabulary=target.vocabulary),
    "pass": lambda target: PaSSHead(DEPTH - 1, target.hidden_size, vocabulary=target.vocabulary),
    "specdec": specdec,
    "exit": lambda target: ExitHead(layer_of(target), exit_layer=1),
}
VARIANTS: Mapping[str, str] = dict.fromkeys(("dspark", "domino", "dflash2"), "dflash")  # the kinds, as loaders count
NAMES = tuple(BUILDERS)
HEADED = [name for name, method in METHODS.items() if method.heads]
UNITED = {
    "mix-head": ("eagle3", "assistant", "medusa", "dspark", "pard", "glide", "pass", "exit"),
    "suffix-head": ("eagle3", "dflash"),
    "sam-head": ("eagle3", "dflash"),
}
PAIRS = [  # every method with every head that is tested with it
    (method, name)
    for method in HEADED
    for name in UNITED.get(method, NAMES)
    if method in UNITED or VARIANTS.get(name, name) in METHODS[method].heads
]
SINGLE = [(method, name) for method, name in PAIRS if method not in UNITED or name == "eagle3"]


def random_head(model: Any, name: str = "eagle", *, seed: int = 0) -> LoadedHead:
    """Return a random head on a target, in its dtype."""
    target, kind = HFTargetParts(model), VARIANTS.get(name, name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head: Any = BUILDERS[name](target)
        if isinstance(head, nn.Module):
            random_weights(head, seed)
            head.to(model.dtype).eval().requires_grad_(False)
    own = {"eagle": "eagle2"}.get(kind) or next(name for name in HEADED if kind in METHODS[name].heads)
    return LoadedHead(head, target, kind, own)


def begun(
    needs: RequestedOutputs, model: Any, text: Sequence[int], **options: Any
) -> tuple[HFEngine, SessionRequest, Verified]:
    """Return the engine, the start of a request, and what its session observes of the prompt's pass.

    Args:
        needs: of the drafter.
        model: the target.
        text: the prompt, and the token that the pass yielded.
        options: further arguments of SessionRequest.
    """
    engine = HFEngine(model)
    cache: Any = engine.open(torch.tensor([text[:-1]]))
    result = cache.prefill(needs=needs)
    start = SessionRequest(prompt=np.array(text[:-1], np.int32), target=cache, **options)
    tokens = np.array(text[-1:], np.int32)
    seen = Verified(
        tree=DraftTree.empty(),
        path=EMPTY_PATH,
        tokens=tokens,
        top_ids=result.top_ids,
        top_logits=result.top_logits,
        hidden=result.hidden,
    )
    return engine, start, seen


def head_for(method: str, model: Any) -> LoadedHead:
    """Return a random head that a method takes."""
    return random_head(model, next(name for other, name in PAIRS if other == method))


class OracleHead(Head):
    """Runs the target itself over the text, with noise on its logits; for texts that begin with a known token."""

    taps = (0,)
    depth: int | None = None
    ids: Tensor | None = None

    def __init__(self, model: Any, *, begin: int, noise: float = 0.0, depth: int | None = None) -> None:
        """Take the target, the first token of all texts, and the noise in standard deviations of the logits."""
        self.model, self.begin, self.noise, self.depth = model, begin, noise, depth

    def open(self, first: int, target: TargetParts) -> HeadState:
        assert first == 0
        return OracleState(self)

    def logits(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return logits [n, V] after n texts of one length."""
        with torch.inference_mode():
            found: Tensor = self.model(torch.tensor(texts)).logits[:, -1]
        for row, text in zip(found, texts, strict=True):
            source = torch.Generator().manual_seed(sum(place * token for place, token in enumerate(text)))
            row += self.noise * row.std() * torch.randn(row.shape, generator=source)
        return found


class OracleState(HeadState):
    """The tokens of a text, and those of a draft."""

    def __init__(self, head: OracleHead) -> None:
        self.head, self.text, self.paths = head, [head.begin], list[list[int]]()

    @property
    def length(self) -> int:
        return len(self.text) - 1

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        assert len(hidden) == len(following)
        assert not self.paths
        self.text += following.tolist()

    def start(self) -> Tensor:
        return self.head.logits([self.text])

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        paths = [[*(self.paths[row] if row >= 0 else []), token] for token, row in zip(tokens, above, strict=True)]
        self.paths += paths
        if len({len(path) for path in paths}) == 1:
            return self.head.logits([self.text + path for path in paths])
        return torch.cat([self.head.logits([self.text + path]) for path in paths])

    def drop(self) -> None:
        self.paths = []

    def crop(self, length: int) -> None:
        self.drop()
        self.text = self.text[: length + 1]


def oracle(model: Any, *, begin: int, noise: float = 0.0, depth: int | None = None) -> LoadedHead:
    """Return such a head on its target."""
    head = OracleHead(model, begin=begin, noise=noise, depth=depth)
    return LoadedHead(head, HFTargetParts(model), "eagle", "eagle2")
