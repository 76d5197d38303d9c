"""Gemma 4 assistants: the formula, the rows that they read, and the text of their targets."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.cache_utils import DynamicCache

from block_heads import check_greedy, lent_cache
from gemmas import (
    FULL,
    SLIDING,
    TARGETS,
    WINDOW,
    assistant,
    assistant_config,
    assistant_tensors,
    gemma,
    loaded_assistant,
)
from pairwise import in_turn, paired
from passes import plain_text
from speculant import PrefixCache, Speculator
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError, UsageError
from speculant.drafters.heads.assistant.head import AssistantHead
from speculant.drafters.heads.drafter import LoadedHead
from speculant.drafters.heads.head import HeadState
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.probe import tiny
from trees import make_tree

TEXT = [5, 7, 9, 11, 13, 8, 4, 6, 10, 3, 17, 2]
VOCABULARY = 60  # 12 clusters of 5 tokens
CLUSTERS = {"clusters": 12, "best": 5}
SAMPLED: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "top_p": 0.9, "seed": 3}


def opened(loaded: LoadedHead, cache: Any, hidden: Tensor, text: list[int]) -> HeadState:
    """Return the state of a text, given the target's state [1, D] of the token before its last one."""
    head = loaded.head
    assert isinstance(head, AssistantHead)
    state = head.open_text(text[:-1], loaded.target, cache)
    state.extend(hidden[None], torch.tensor(text[-1:]))
    return state


def begun(loaded: LoadedHead, model: Any, text: list[int]) -> HeadState:
    """Return the state of a text whose tokens before the last the target has read."""
    cache = HFEngine(model).open(torch.tensor([text[:-1]]))
    result = cache.prefill(needs=RequestedOutputs(hidden_layers=(-1,)))
    assert result is not None
    return opened(loaded, cache, result.hidden[:, 0], text)


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return the RMS norm."""
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def gelu(x: Tensor) -> Tensor:
    """Return the approximation of GELU by tanh."""
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def turned(x: Tensor, position: int, kind: str) -> Tensor:
    """Return [d] rotated pair by pair: all pairs in sliding layers, the first quarter of them in full ones."""
    half, found = len(x) // 2, x.clone()
    for i in range(half if kind == SLIDING else half // 4):
        angle = torch.tensor(position * (1e4 if kind == SLIDING else 1e6) ** (-2 * i / len(x)))
        found[i] = x[i] * angle.cos() - x[half + i] * angle.sin()
        found[half + i] = x[half + i] * angle.cos() + x[i] * angle.sin()
    return found


def formula(model: Any, config: dict[str, Any], w: dict[str, Tensor], text: list[int], path: list[int]) -> Tensor:
    """Return the logits [V] after a path of drafted tokens below a text; NaN for tokens of no chosen cluster."""
    own, position, given = model.config.to_dict(), len(text) - 1, config["text_config"]
    kinds = own["layer_types"][: own["num_hidden_layers"] - own["num_kv_shared_layers"]]
    with torch.no_grad():
        read = model(torch.tensor([text[:-1]]), past_key_values=DynamicCache(), output_hidden_states=True)
    hidden = read.hidden_states[-1][0, -1]
    for token in [text[-1], *path]:
        embedding = model.model.embed_tokens.weight[token] * math.sqrt(own["hidden_size"])
        x = w["pre_projection.weight"] @ torch.cat([embedding, hidden])
        for index, kind in enumerate(given["layer_types"]):
            at = f"model.layers.{index}."
            held = read.past_key_values.layers[max(place for place, each in enumerate(kinds) if each == kind)]
            keys, values = held.keys[0], held.values[0]
            seen = [k for k in range(position) if kind == FULL or position - k < WINDOW]
            y = w[f"{at}self_attn.q_proj.weight"] @ norm(x, w[f"{at}input_layernorm.weight"])
            mixed = []
            for number, query in enumerate(y.reshape(given["num_attention_heads"], -1)):
                query = turned(norm(query, w[f"{at}self_attn.q_norm.weight"]), position, kind)
                group = number * len(keys) // given["num_attention_heads"]
                mixed.append((keys[group][seen] @ query).softmax(0) @ values[group][seen])
            y = w[f"{at}self_attn.o_proj.weight"] @ torch.cat(mixed)
            x = x + norm(y, w[f"{at}post_attention_layernorm.weight"])
            y = norm(x, w[f"{at}pre_feedforward_layernorm.weight"])
            y = gelu(w[f"{at}mlp.gate_proj.weight"] @ y) * (w[f"{at}mlp.up_proj.weight"] @ y)
            x = x + norm(w[f"{at}mlp.down_proj.weight"] @ y, w[f"{at}post_feedforward_layernorm.weight"])
            x = x * w[f"{at}layer_scalar"]
        x = norm(x, w["model.norm.weight"])
        hidden = w["post_projection.weight"] @ x
    logits = w["model.embed_tokens.weight"] @ x
    if config["use_ordered_embeddings"]:
        scores = w["masked_embedding.centroids.weight"] @ x
        best = scores.argsort(descending=True)[: config["centroid_intermediate_top_k"]]
        clusters = w["masked_embedding.token_ordering"].reshape(config["num_centroids"], -1)
        chosen = {token for cluster in best.tolist() for token in clusters[cluster].tolist()}
        logits[[token for token in range(len(logits)) if token not in chosen]] = math.nan
    cap = given.get("final_logit_softcapping")
    return logits if cap is None else cap * torch.tanh(logits / cap)


@pytest.mark.parametrize(
    ("name", "clusters", "length"),
    paired([*TARGETS], [{}, CLUSTERS, {"final_logit_softcapping": 5.0}], [4, len(TEXT)]),
)
def test_is_the_formula(name: str, clusters: dict[str, Any], length: int) -> None:
    """Guards positions, the layers read, windows, the recycled state, clusters and the cap, below root and nodes."""
    model, text = gemma(name, vocab_size=VOCABULARY), TEXT[:length]
    config = assistant_config(model, **clusters)
    weights = assistant_tensors(config)
    state = begun(loaded_assistant(model, config, weights), model, text)
    with torch.no_grad():
        got = torch.stack([state.start()[0], state.grow([5, 9], [-1, -1])[1], *state.grow([7, 8], [1, 0])])
        paths: list[list[int]] = [[], [9], [9, 7], [5, 8]]
        want = torch.stack([formula(model, config, weights, text, path) for path in paths])
    assert torch.equal(got.isneginf(), want.isnan())
    assert not got.isneginf().all(1).any()
    torch.testing.assert_close(got.nan_to_num(neginf=0.0), want.nan_to_num(), atol=1e-5, rtol=1e-5)


def test_a_tree_is_its_paths() -> None:
    """Guards rows of one level, which must not see each other, and nodes of several depths in one call."""
    model = gemma("own", vocab_size=VOCABULARY)
    loaded = assistant(model, **CLUSTERS)
    state = begun(loaded, model, TEXT)
    with torch.inference_mode():
        first = state.start()
        tree = torch.cat([state.grow([5, 9], [-1, -1]), state.grow([7, 8, 3], [0, 1, -1])])
        for node, path in enumerate([[5], [9], [5, 7], [9, 8], [3]]):
            state.drop()
            torch.testing.assert_close(state.start(), first)
            rows = [state.grow([token], [place - 1]) for place, token in enumerate(path)]
            torch.testing.assert_close(rows[-1][0], tree[node], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", TARGETS)
def test_reads_no_rejected_rows(name: str) -> None:
    """Guards rounds after rejections, with drafts longer than the window: transformers 5.23 hands over such rows."""
    model = gemma(name)
    loaded, engine, needs = assistant(model), HFEngine(model), RequestedOutputs(hidden_layers=(-1,))
    cache, text = engine.open(torch.tensor([TEXT])), [*TEXT, 9]
    cache.prefill(needs=needs)
    for accepted in (0, 2, 1):
        tokens = [*range(3, 3 + WINDOW + 2)]
        draft = make_tree(tokens, [*range(-1, len(tokens) - 1)])
        [result] = engine.forward([(cache, text[-1], draft)], needs)
        cache.keep([*range(accepted + 1)])
        text += [*tokens[:accepted], 20 + accepted]
        state = opened(loaded, cache, result.hidden[accepted], text)
        fresh = begun(loaded, model, text)
        with torch.inference_mode():
            for each in (state, fresh):
                each.start()
            torch.testing.assert_close(state.grow([6, 4], [-1, -1]), fresh.grow([6, 4], [-1, -1]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "tree"), [("shared", "dynamic"), ("own", "dynamic"), ("unified", "chain")])
def test_greedy_text_is_the_targets(name: str, tree: str) -> None:
    """Guards losslessness on all forms of targets: alone, in a second turn and in a batch."""
    model = gemma(name, vocab_size=VOCABULARY)
    check_greedy(model, assistant(model, **CLUSTERS), settings={"tree": tree})


@pytest.mark.parametrize(("name", "method"), in_turn(["shared", "own"], ["assistant", "mix-head"]))
def test_seeded_text_is_plain_decodings(name: str, method: str) -> None:
    """Guards sampling by seed, alone, in a batch and united with a memory, and drafts that are drawn from q."""
    model = gemma(name, vocab_size=VOCABULARY)
    plain = Speculator.from_transformers(model, method="none")
    speculator = Speculator.from_transformers(model, method=method, head=assistant(model, **CLUSTERS), nodes=6)
    texts = [TEXT, TEXT[:5], TEXT[3:]]
    assert speculator.generate(texts[0], **SAMPLED).ids == plain.generate(texts[0], **SAMPLED).ids
    found, wanted = (each.generate_batch(texts, **SAMPLED) for each in (speculator, plain))
    assert [each.ids for each in found] == [each.ids for each in wanted]
    assert sum(each.stats.drafted for each in found) > 0
    chains = Speculator.from_transformers(
        model,
        method="assistant",
        head=assistant(model, **CLUSTERS),
        settings={"tree": "chain"},
        verifier="speculative-sampling",
        nodes=3,
    )
    assert chains.generate(TEXT, **SAMPLED).stats.drafted > 0


def test_prompts_share_prefixes() -> None:
    """Guards the prefix cache of a batch, which heads that need the states of whole prompts do without."""
    model, given = gemma("own"), {"max_new_tokens": 6, "temperature": 0.0}
    begin = [(7 * place) % 50 + 5 for place in range(40)]
    prompts = [[*begin, 9, 14, 3], [*begin, 8, 5], [*begin[:30], 4, 4, 4]]
    plain = [plain_text(model, torch.tensor([each]), 6) for each in prompts]
    for method in ("assistant", "mix-head"):
        speculator = Speculator.from_transformers(model, method=method, head=assistant(model), nodes=6)
        with speculator.batch(2, prefix_cache=PrefixCache("1GB")) as batch:
            results = batch.run([batch.add(prompt, **given) for prompt in prompts])
        assert [each.ids for each in results] == plain
        assert sum(each.stats.reused_tokens for each in results) > 40


@pytest.mark.parametrize("name", ["gemma4", "gemma4_unified"])
def test_a_target_with_other_media(name: str) -> None:
    """Guards the multimodal classes: their text model is the target, and requests of text alone are drafted for."""
    if name not in CONFIG_MAPPING:
        pytest.skip(f"this release of transformers has no {name}")
    config = tiny.tiny_config(AutoConfig.for_model(name))
    config.text_config.max_position_embeddings = 96
    model = tiny.tiny_model(AutoModelForImageTextToText._model_mapping[type(config)], config, attention="sdpa")
    model.generation_config.eos_token_id = None
    check_greedy(model, assistant(model))


def test_what_follows_is_accepted() -> None:
    """Guards the pairing of tokens: where the last token alone decides, a copy of the target is always right."""
    model = gemma("own", final_logit_softcapping=None)
    config = assistant_config(model, hidden_size=32)
    weights = assistant_tensors(config)
    random = loaded_assistant(model, config, dict(weights))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        for name, tensor in weights.items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                tensor.zero_()
            elif name.endswith("layer_scalar"):
                tensor.fill_(1)
        weights["pre_projection.weight"] = torch.eye(32, 64)
        weights["model.embed_tokens.weight"] = model.lm_head.weight.clone()
        weights["model.norm.weight"] = model.model.norm.weight.clone()
    shares = []
    for head in (random, loaded_assistant(model, config, weights)):
        speculator = Speculator.from_transformers(model, head=head, nodes=4, settings={"tree": "chain"})
        stats = speculator.generate(TEXT, max_new_tokens=16, temperature=0).stats
        shares.append(stats.accepted / stats.drafted)
    assert shares[1] == 1.0 > shares[0]


def test_bfloat16() -> None:
    """Guards dtypes: assistants run in the target's, and text is the target's."""
    model = gemma("own").to(torch.bfloat16)
    head = assistant(model)
    found = Speculator.from_transformers(model, head=head, nodes=6).generate(TEXT, max_new_tokens=8, temperature=0)
    assert found.stats.drafted > 0
    assert {each.dtype for each in getattr(head.head, "parameters", list)()} == {torch.bfloat16}


def test_needs_the_targets_cache() -> None:
    """Guards engines that lend no cache, and callers that open the state as that of other heads."""
    model = gemma("own")
    loaded = assistant(model)
    assert isinstance(loaded.head, AssistantHead)
    with pytest.raises(UnsupportedError, match="were not given its cache"):
        loaded.head.open_text(TEXT, loaded.target, None)
    with pytest.raises(UsageError, match="open_text"):
        loaded.head.open(0, loaded.target)


@pytest.mark.parametrize(("name", "clusters", "length"), paired([*TARGETS], [{}, CLUSTERS], [4, len(TEXT)]))
def test_is_what_transformers_computes(
    name: str, clusters: dict[str, Any], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the formula by Google's own, in float64, since float32 rounds by processor.

    Release 5.23 cannot build an assistant until a property is patched.
    """
    model, text = gemma(name, vocab_size=VOCABULARY).double(), TEXT[:length]
    given = assistant_config(model, **clusters)
    weights = {key: each.double() for key, each in assistant_tensors(given).items()}
    state = begun(loaded_assistant(model, given, weights), model, text)
    theirs = transformers_assistant(given, monkeypatch).double()
    theirs.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    cache, kinds = lent_cache(model, torch.tensor(text[:-1])), {SLIDING: -2, FULL: -1}
    rows = {kind: cache.layer_rows(place) for kind, place in kinds.items()}
    seen = {
        kind: tuple(each[None, :, -(WINDOW - 1) if kind == SLIDING else 0 :] for each in held)
        for kind, held in rows.items()
    }
    with torch.no_grad():
        read = model(torch.tensor([text[:-1]]), output_hidden_states=True)
        hidden = read.hidden_states[-1][:, -1:]
        for step, token in enumerate([text[-1], 9, 7]):
            got = state.grow([token], [step - 2]) if step else state.start()
            want = theirs(
                inputs_embeds=torch.cat([model.get_input_embeddings()(torch.tensor([[token]])), hidden], dim=-1),
                position_ids=torch.tensor([[len(text) - 1]]),
                shared_kv_states=seen,
            )
            hidden = want.last_hidden_state
            chosen = ~got[0].isneginf()
            torch.testing.assert_close(got[0][chosen], want.logits[0, 0][chosen], atol=1e-12, rtol=0)
            assert (want.logits[0, 0][~chosen] < got[0][chosen].min()).all()


def transformers_assistant(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return transformers' own assistant, or skip the test where this release has none."""
    if config["model_type"] not in CONFIG_MAPPING:
        pytest.skip(f"this release of transformers has no {config['model_type']}")
    built = AutoConfig.for_model(**config)
    kind = type(built.text_config)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "kv_sharing_modes", property(lambda own: ["reuse"] * own.num_hidden_layers))
        return AutoModelForCausalLM.from_config(built).eval()
