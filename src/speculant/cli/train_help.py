"""The help of the commands that train."""

from __future__ import annotations

HELP = """\
Train heads or a draft model for a target model. First let the target write texts with `data`, then train on them."""

EXAMPLES = """
speculant train data --model your/model --prompts chats.jsonl --out texts
speculant train eagle --model your/model --data texts --out head
speculant generate "Why?" --model your/model --head head
"""

HEAD_HELP = """\
Train a head of kind {name} for a model ({source}).

Training ends after --steps or --minutes and writes the weights with the best held-out acceptance to DIR: the head in
its public layout, a model card and training.json. Ctrl-C saves; --resume continues. With --steps, an interrupted
training gives the same head as an uninterrupted one."""

HEAD_EXAMPLES = """
speculant train {name} --model your/model --data texts --out head
speculant train {name} --model your/model --data texts --out head --resume
torchrun --nproc-per-node 8 -m speculant train {name} \\
    --model your/model --data texts --out head
"""

PARD_HELP = """\
Train a PARD model: a draft model that drafts a block of tokens in one pass, from mask tokens ({source}).

It starts from the draft model of --init, which is adapted, or from new weights in the shape of --like and --set. The
mask is the token that is rarest in the texts. Training ends after --steps or --minutes and writes the weights with the
best held-out acceptance to DIR: a model that transformers and vLLM load, with the target's tokenizer, a model card and
training.json. Ctrl-C saves; --resume continues. With --steps, an interrupted training gives the same model as an
uninterrupted one."""

PARD_EXAMPLES = """
speculant train pard --model your/model --data texts --out pard --init your/small
speculant generate "Why?" --model your/model --head pard
"""

DRAFT_MODEL_HELP = """\
Train a draft model: a small language model with the target's vocabulary ({source}).

It starts from new weights in the shape of --like and --set, or from the model of --init. Training ends after --steps or
--minutes and writes the weights with the best held-out acceptance to DIR: a model that transformers and vLLM load, with
the target's tokenizer, a model card and training.json. Ctrl-C saves; --resume continues. With --steps, an interrupted
training gives the same model as an uninterrupted one."""

DRAFT_MODEL_EXAMPLES = """
speculant train draft-model --model your/model --data texts --out draft
speculant train draft-model --model your/model --data texts --out aligned \\
    --init your/small --on-policy 0.5 --loss tvd
speculant train draft-model --model your/model --data texts --out second \\
    --before draft   # for specinfer
speculant generate "Why?" --model your/model --draft-model draft
"""
