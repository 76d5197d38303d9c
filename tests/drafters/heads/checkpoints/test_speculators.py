"""Heads of the package `speculators`: its own classes write a checkpoint and compute what ours must compute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eagles import IDS, replayed, spread, states
from models import VOCABULARY
from speculant.drafters.heads.checkpoints.formats import load_head
from speculant.engines.hf.views.target_parts import HFTargetParts

pytestmark = pytest.mark.peers
CLOSE = {"atol": 1e-5, "rtol": 1e-4}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCABULARY,
}


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """Run what these packages compile as it is: a compiler is not what is tested."""
    with torch._dynamo.config.patch(disable=True):
        yield


def layers_config(name: str = "llama", **changes: Any) -> Any:
    """Return a config of a head's layers."""
    from transformers import LlamaConfig, Qwen3Config

    kind = {"llama": LlamaConfig, "qwen3": Qwen3Config}[name]
    config = kind(**SIZES | changes)
    config._attn_implementation = "eager"
    return config


def method(algorithm: str, tokens: int) -> Any:
    """Return the part of a config that is about the method."""
    config = pytest.importorskip("speculators.config")
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    return config.SpeculatorsConfig(
        algorithm=algorithm,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=tokens)],
        default_proposal_method="greedy",
        verifier=config.VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )


def prepared(model: Any, target: HFTargetParts, *, reduced: bool) -> Any:
    """Return a model with random weights, the target's embeddings and output projection, and its vocabulary map."""
    spread(model)
    with torch.no_grad():
        model.embed_tokens.weight.copy_(target.embed(torch.arange(VOCABULARY)))
        if reduced:
            model.d2t.copy_(IDS - torch.arange(len(IDS)))
            model.t2d.zero_()[IDS] = True
        model.lm_head.weight.copy_(target.projection()[IDS if reduced else slice(None)])
    return model.eval()


def logits_of(model: Any, *args: Any, **kwargs: Any) -> list[Tensor]:
    """Return the logits of every call of a model's output projection in a forward pass."""
    found = list[Tensor]()
    hook = model.lm_head.register_forward_hook(lambda _, __, output: found.append(output))
    with torch.inference_mode():
        model(*args, **kwargs)
    hook.remove()
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"name": "qwen3"},
        {"norm_before_residual": True},
        {"norm_before_fc": True},
        {"fc_norm": True, "norm_output": True},
        {"draft_vocab_size": VOCABULARY},
    ],
    ids=str,
)
def test_eagle3(target: HFTargetParts, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Guards EAGLE-3: the first drafted token at every position, and the second with its own output fed back."""
    models = pytest.importorskip("speculators.models.eagle3")
    changes = dict(changes)
    config = models.Eagle3SpeculatorConfig(
        transformer_layer_config=layers_config(changes.pop("name", "llama")),
        eagle_aux_hidden_state_layer_ids=[2, 4, 5],
        speculators_config=method("eagle3", 4),
        **{"draft_vocab_size": len(IDS)} | changes,
    )
    torch.manual_seed(0)
    model = models.Eagle3DraftModel(config)
    reduced = config.draft_vocab_size < VOCABULARY
    prepared(model, target, reduced=reduced).save_pretrained(tmp_path)
    head = load_head(tmp_path, target).head
    assert head.taps == (1, 3, 4)
    hidden, following = states(7)
    first, second = logits_of(
        model,
        hidden.flatten(1)[None],
        following[None],
        torch.zeros(1, 7, dtype=torch.long),
        ttt_steps=2,
    )
    for row in range(6):
        state = replayed(head, target, hidden[: row + 1], following[: row + 1])
        with torch.inference_mode():
            assert torch.allclose(state.start()[0], first[0, row], **CLOSE)
            assert torch.allclose(state.grow([int(following[row + 1])], [-1])[0], second[0, row], **CLOSE)


class Captured(Exception):  # noqa: N818
    """Ends a training pass where it would compute its loss, with the logits."""

    def __init__(self, logits: Tensor, given: dict[str, Any]) -> None:
        self.logits, self.given = logits[0], given


def stop_at_loss(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Let a package's loss raise what it is given."""

    def capture(logits: Tensor, *_: Any, **given: Any) -> None:
        raise Captured(logits, given)

    monkeypatch.setattr(f"speculators.models.{module}.core.compute_metrics", capture)


def training_rows(hidden: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Return the arguments that all training passes take."""
    return {
        "hidden_states": hidden.flatten(1)[None],
        "input_ids": tokens[None],
        "document_ids": torch.zeros(1, len(tokens), dtype=torch.long),
        "verifier_last_hidden_states": hidden[None, :, -1],
    }


@pytest.mark.parametrize("fc_norm", [False, True])
def test_p_eagle(target: HFTargetParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fc_norm: bool) -> None:
    """Guards P-EAGLE: all depths behind every anchor."""
    models = pytest.importorskip("speculators.models.peagle")
    config = models.PEagleSpeculatorConfig(
        transformer_layer_config=layers_config(num_hidden_layers=2),
        eagle_aux_hidden_state_layer_ids=[2, 4, 5],
        speculators_config=method("peagle", 3),
        draft_vocab_size=len(IDS),
        mask_token_id=3,
        fc_norm=fc_norm,
    )
    torch.manual_seed(0)
    model = prepared(models.PEagleDraftModel(config), target, reduced=True)
    model.save_pretrained(tmp_path)
    head = load_head(tmp_path, target).head
    stop_at_loss(monkeypatch, "peagle")
    hidden, following = states(7)
    with torch.inference_mode(), pytest.raises(Captured) as stopped:
        model(**training_rows(hidden, following), num_depths=3, down_sample_ratio=1.0)
    found = stopped.value
    places = list(zip(found.given["anchor_pos"].tolist(), found.given["depth"].tolist(), strict=True))
    rows = dict(zip(places, found.logits, strict=True))
    whole = [anchor for anchor in range(7) if all((anchor, depth) in rows for depth in range(3))]
    assert whole
    for anchor in whole:
        state = replayed(head, target, hidden[: anchor + 1], following[: anchor + 1])
        with torch.inference_mode():
            drafted = [state.start(), state.grow([11], [-1]), state.grow([12], [0])]
        for depth, logits in enumerate(drafted):
            assert torch.allclose(logits[0], rows[anchor, depth], **CLOSE)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("dflash", {}),
        ("dflash", {"draft_vocab_size": VOCABULARY}),
        ("dspark", {"markov_rank": 6, "enable_confidence_head": False}),
        ("dspark", {"markov_rank": 6, "enable_confidence_head": True}),
        ("dspark", {"markov_rank": 6, "markov_head_type": "gated", "confidence_head_with_markov": False}),
        ("dspark", {"markov_rank": 6, "markov_head_type": "rnn"}),
    ],
    ids=str,
)
def test_blocks(
    target: HFTargetParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, changes: dict[str, Any]
) -> None:
    """Guards DFlash and DSpark: every slot of a block behind an anchor, with the Markov head's conditions."""
    name = {"dflash": "DFlash", "dspark": "DSpark"}[kind]
    models = pytest.importorskip(f"speculators.models.{kind}")
    config = getattr(models, f"{name}SpeculatorConfig")(
        transformer_layer_config=layers_config("qwen3", num_hidden_layers=2),
        aux_hidden_state_layer_ids=[2, 4, 5],
        speculators_config=method(kind, 4),
        block_size=4,
        mask_token_id=3,
        sample_from_anchor=kind == "dspark",
        **{"draft_vocab_size": len(IDS)} | changes,
    )
    torch.manual_seed(0)
    model = getattr(models, f"{name}DraftModel")(config)
    reduced = config.draft_vocab_size < VOCABULARY
    prepared(model, target, reduced=reduced).save_pretrained(tmp_path)
    head = load_head(tmp_path, target).head
    stop_at_loss(monkeypatch, kind)
    hidden, tokens = states(12)
    anchor, mask = 6, torch.zeros(1, 12)
    mask[0, anchor] = 1
    with torch.inference_mode(), pytest.raises(Captured) as stopped:
        model(**training_rows(hidden, tokens), loss_mask=mask, max_anchors=1)
    expected = stopped.value.logits[0 if kind == "dspark" else 1 :]
    state = replayed(head, target, hidden[:anchor], tokens[1 : anchor + 1])
    with torch.inference_mode():
        found = [state.start()]
        found += [state.grow([int(tokens[anchor + 1 + row])], [row - 1]) for row in range(len(expected) - 1)]
    assert torch.allclose(torch.cat(found), expected, **CLOSE)


def test_dflash2(target: HFTargetParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards DFlash 2: convolved slots, and the candidates of each with their scores behind the token before."""
    models = pytest.importorskip("speculators.models.dflash2")
    config = models.DFlash2SpeculatorConfig(
        transformer_layer_config=layers_config("qwen3", num_hidden_layers=2),
        aux_hidden_state_layer_ids=[2, 4, 5],
        speculators_config=method("dflash2", 3),
        block_size=4,
        mask_token_id=3,
        draft_vocab_size=VOCABULARY,
        conv_group_size=8,
        selector_rank=6,
        selector_top_k=9,
    )
    torch.manual_seed(0)
    model = prepared(models.DFlash2DraftModel(config), target, reduced=False)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "_conv." in name or "codebook" in name:
                weight.add_(torch.randn_like(weight) * 0.3)
    model.save_pretrained(tmp_path)
    head = load_head(tmp_path, target).head

    def capture(**given: Any) -> None:
        raise Captured(given["unary_logits"], given)

    monkeypatch.setattr("speculators.models.dflash2.core.compute_metrics", capture)
    outputs = list[Tensor]()
    model.norm.register_forward_hook(lambda _, __, output: outputs.append(output[0]))
    hidden, tokens = states(12)
    anchor, mask = 6, torch.zeros(1, 12)
    mask[0, anchor] = 1
    with torch.inference_mode(), pytest.raises(Captured) as stopped:
        model(**training_rows(hidden, tokens), loss_mask=mask, max_anchors=1)
    found = stopped.value
    state = replayed(head, target, hidden[:anchor], tokens[1 : anchor + 1])
    with torch.inference_mode():
        before = torch.cat([tokens[anchor : anchor + 1], tokens[anchor : anchor + 3]])
        ids, scores = model.candidate_selector.select(found.logits, outputs[0], before)
        got = [state.start()[0]] + [state.grow([int(tokens[anchor + 1 + row])], [row - 1])[0] for row in range(2)]
    for slot, logits in enumerate(got, start=1):
        assert sorted(logits.isfinite().nonzero().flatten().tolist()) == sorted(ids[slot].tolist())
        assert torch.allclose(logits[ids[slot]], scores[slot], **CLOSE)
