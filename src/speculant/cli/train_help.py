"""The help of the commands that train."""

from __future__ import annotations

HELP = """\
Train heads or a draft model for a model. First let the model write texts, with `data`; then train on them."""

EXAMPLES = """
speculant train data --model your/model --prompts chats.jsonl --out texts
speculant train eagle --model your/model --data texts --out head
speculant generate "Why?" --model your/model --head head
"""

HEAD_HELP = """\
Train a head of kind {name} for a model ({source}).

Ends after --steps or --minutes with the weights that were accepted most on held-out texts, in DIR: the head in its
public layout, a model card, and training.json. Ctrl-C saves; the same command with --resume goes on. With --steps, a
training that was interrupted gives the same head as one that was not."""

HEAD_EXAMPLES = """
speculant train {name} --model your/model --data texts --out head
speculant train {name} --model your/model --data texts --out head --resume
torchrun --nproc-per-node 8 -m speculant train {name} --model your/model --data texts --out head
"""

DRAFT_MODEL_HELP = """\
Train a draft model: a small language model with the target's vocabulary ({source}).

It is new, in the shape of --like and --set, or one to be aligned, by --init. Ends after --steps or --minutes with the
weights that were accepted most on held-out texts, in DIR: a model as transformers and vLLM load it, with the target's
tokenizer, a model card, and training.json. Ctrl-C saves; the same command with --resume goes on. With --steps, a
training that was interrupted gives the same model as one that was not."""

DRAFT_MODEL_EXAMPLES = """
speculant train draft-model --model your/model --data texts --out draft
speculant train draft-model --model your/model --data texts --out aligned --init your/small --on-policy 0.5 --loss tvd
speculant train draft-model --model your/model --data texts --out second --before draft  # for specinfer
speculant generate "Why?" --model your/model --method draft-model --draft-model draft
"""
