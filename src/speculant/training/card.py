"""The model card of a training result."""

from __future__ import annotations

from typing import Any

from speculant.training.kind import TrainingKind

FIGURES = "training.json"


def model_card(kind: TrainingKind, record: dict[str, Any]) -> str:
    """Return the README.md of a head or a draft model."""
    if not kind.draft_model:
        return _head_intro(kind, record) + _figures(kind, record)
    return (_draft_model_intro(record) if kind.depth == 1 else _pard_intro(kind, record)) + _figures(kind, record)


def _head_intro(kind: TrainingKind, record: dict[str, Any]) -> str:
    """Describe a head and its use."""
    target = record["target"]
    if "joint" in record:
        return _joint_intro(kind, record)
    return f"""---
library_name: speculant
tags: [speculative-decoding, {kind.name}]
---

# A drafting head of kind {kind.name} for {target["name"]}

Drafts tokens for {target["name"]} from its hidden states. The target's output stays as it is; only its speed changes.
Method: {kind.source}.

```
speculant generate "..." --model {target["source"]} --head THIS_FOLDER
```
"""


def _joint_intro(kind: TrainingKind, record: dict[str, Any]) -> str:
    """Describe heads that were trained together with a copy of their model, and what changed in it."""
    target, found = record["target"], record["joint"]
    return f"""---
library_name: speculant
tags: [speculative-decoding, {kind.name}]
---

# Drafting heads of kind {kind.name}, and {target["name"]} trained together with them

`model` is a tuned copy of {target["name"]}, for which the heads draft. Drafts do not change the output of this copy, \
but it is not that of {target["name"]}: on held-out texts, KL(original || tuned) is {found["kl"]:.4f} nats per token, \
the most probable token is the same at {found["agreement"]:.1%} of the positions, and the perplexity of the original's \
texts is {found["perplexity_tuned"]:.3f} instead of {found["perplexity"]:.3f}.
Method: {kind.source}, section 2.2.2.

```
speculant generate "..." --model THIS_FOLDER/model --head THIS_FOLDER
```
"""


def _draft_model_intro(record: dict[str, Any]) -> str:
    """Describe a draft model and its use in libraries for assisted decoding."""
    target = record["target"]
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [speculative-decoding, draft-model]
---

# A draft model for {target["name"]}

A small language model with the vocabulary of {target["name"]} that drafts tokens for it. The target's output stays as \
it is; only its speed changes.

```
speculant generate "..." --model {target["source"]} --method draft-model --draft-model THIS_FOLDER
vllm serve {target["source"]} --speculative-config \\
  '{{"method": "draft_model", "model": "THIS_FOLDER", "num_speculative_tokens": 4}}'
```

With transformers: `target.generate(..., assistant_model=AutoModelForCausalLM.from_pretrained("THIS_FOLDER"))`.
"""


def _pard_intro(kind: TrainingKind, record: dict[str, Any]) -> str:
    """Describe a PARD model and its use."""
    target = record["target"]
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [speculative-decoding, {kind.name}]
---

# A PARD model for {target["name"]}

A small language model with the vocabulary of {target["name"]} that drafts a block of tokens for it in one pass, from \
mask tokens. The target's output stays as it is; only its speed changes.
Method: {kind.source}.

```
speculant generate "..." --model {target["source"]} --head THIS_FOLDER
vllm serve {target["source"]} --speculative-config \\
  '{{"method": "draft_model", "model": "THIS_FOLDER", "num_speculative_tokens": 8, "parallel_drafting": true}}'
```
"""


def _draft_model_rows(record: dict[str, Any]) -> str:
    """Return the table rows specific to draft models."""
    start, settings = record["start"], record["settings"]
    options = ", ".join(f"{name}={value}" for name, value in start.get("options", {}).items())
    shape = ", ".join(filter(None, (f"the shape of {start['like']}" if "like" in start else "", options)))
    began = start.get("init") or f"new weights{shape and f' ({shape})'}"
    rows = [("begun with", began)]
    if settings["on_policy"]:
        own = f"{settings['on_policy']:.0%} of the batches are continued by the draft model itself, by up to"
        sampling = f"{settings['new_tokens']} tokens at temperature {settings['temperature']:g}"
        rows.append(("on-policy", f"{own} {sampling} (DistillSpec)"))
    if record["before"]:
        others = ", ".join(record["before"])
        rows.append(("complements", f"{others}: trained and measured where these are wrong (Col-BT)"))
    return "".join(f"| {name} | {value} |\n" for name, value in rows)


def _figures(kind: TrainingKind, record: dict[str, Any]) -> str:
    """Return the training details and the gains."""
    target, settings, best = record["target"], record["settings"], record["best"]
    own = f"the model's {settings['joint_loss']}" if "joint" in record else "the distance of hidden states"
    weight = f" + {settings['feature_weight']:g} of {own}" if settings["feature_weight"] else ""
    several = not kind.draft_model or settings["depth"] > 1
    depths = f", {settings['depth']} depths, weights {settings['decay']:g}^(depth - 1)" if several else ""
    kept = "last ones" if settings["keep"] == "last" else "best by held-out acceptance"
    rows = "\n".join(
        f"| {depth} | {agreed:.3f} | {shared:.3f} |"
        for depth, (agreed, shared) in enumerate(zip(best["agreement"], best["overlap"], strict=True), start=1)
    )
    return f"""
## Training

| | |
|---|---|
| target | {target["name"]}, weights {target["model"]}, tokenizer {target["tokenizer"]} |
| parameters | {record["parameters"]:,} |
| data | {"; ".join(record["data"])} |
{_draft_model_rows(record) if kind.draft_model else ""}| loss | {settings["loss"]}{weight}{depths} |
| optimizer | {settings["optimizer"]}, learning rate {settings["lr"]:g}, {settings["schedule"]} decay |
| steps | {record["steps"]:,} of {settings["texts"] * settings["accumulate"] * record["workers"]} texts; these are the \
weights of step {best["step"]:,}, the {kept} |
| time | {record["seconds"] / 60:.1f} minutes on {record["device"]} |

## Held-out acceptance

{best["anchors"]:,} positions of {record["held_out"]} texts that were not trained on. A chain of \
{len(best["agreement"])} tokens gives {best["greedy"]:.2f} tokens a round in greedy decoding and {best["sampled"]:.2f} \
at temperature 1, estimated from these texts.

| depth | {kind.noun} and target agree | 1 - total variation |
|---|---|---|
{rows}

Raw figures: `{FIGURES}`. Made with Speculant.
"""
