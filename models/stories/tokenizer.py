"""Train the story model's tokenizer: byte-fallback BPE in the style of Llama 2, 4,096 tokens.

Llama's form is chosen because every engine reads it. Merges never cross a word, and never mix letters
with punctuation, so a small vocabulary is spent on words.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
END_OF_STORY = "<|endoftext|>"


def read_stories(*paths: Path) -> list[str]:
    """Return the stories of the files, in order; they are separated by `<|endoftext|>`."""
    stories = (story.strip() for path in paths for story in path.read_text(encoding="utf-8").split(END_OF_STORY))
    return [story for story in stories if story]


def train(stories: list[str], vocab_size: int) -> Tokenizer:
    """Learn the merges on plain text, then make room for the 256 byte tokens behind the special ones."""
    learner = Tokenizer(BPE(unk_token="<unk>"))
    word = Regex(r"▁?\p{L}+|\p{N}|[^\p{L}\p{N}▁]+|▁")
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always", split=True), pre_tokenizers.Split(word, "isolated")]
    )
    trainer = BpeTrainer(vocab_size=vocab_size - len(BYTES), special_tokens=SPECIAL, show_progress=False)
    learner.train_from_iterator(stories, trainer)

    learned = json.loads(learner.to_str())["model"]
    pieces = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    vocab = {piece: i for i, piece in enumerate([*SPECIAL, *BYTES, *pieces[len(SPECIAL) :]])}
    merges = [tuple(merge) for merge in learned["merges"]]

    tokenizer = Tokenizer(BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", vocab["<s>"])]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with train-a.txt and train-b.txt")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder that gets tokenizer.json")
    parser.add_argument("--vocab-size", type=int, default=4096)
    args = parser.parse_args()
    stories = read_stories(args.data / "train-a.txt", args.data / "train-b.txt")
    tokenizer = train(stories, args.vocab_size)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out / "tokenizer.json"))
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(stories))
    size = sum(len(story.encode()) for story in stories)
    print(f"{tokenizer.get_vocab_size()} tokens, {size / tokens:.2f} bytes per token, {tokens} tokens of training text")


if __name__ == "__main__":
    main()
