"""Teach the story model an edit task: rewrite a story with one name or thing replaced, nothing else changed.

Goes on from the weights that `train.py` made. Every step has a batch of conversations in the chat template, the
loss on what repeats earlier text: answers, and the answers that a next turn asks to rewrite again. Every other step,
and in the second phase every step, adds a batch of stories, on which the model follows the distribution of the
original weights (self-distillation), so that it keeps writing stories as well as before.

Copying is done by attention to what followed the current words when they occurred before. So the first part of the
steps trains attention alone, which is cheaper and harms the rest less, and the first sources are short and of random
words, which nothing but copying predicts. Later sources are whole stories, some of them varied, so that the model does
not recite stories it half remembers: other characters renamed, sentences in random order, some words random. One
conversation in ten is the beginning of a story, to be continued.

The schedule counts steps, so pauses do no harm. The state is saved every 50 steps and `--resume` goes on from it, also
with other `--steps`.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from edits import CHAT_TEMPLATE, NAMES, THINGS, Edit, replace_word, sample_edit
from tokenizer import read_stories
from train import IGNORED, Muon, long_rows, save, to_tensors, whole_stories

SHORT, MIDDLE, LONG = 40, 100, 300  # tokens of a source, at most
ROW_BYTES = 2400  # of a conversation of several turns, about
CHOICE_WEIGHT = 8.0  # of a name or thing in the loss
REPLACEABLE = re.compile(rf"\b(?:{'|'.join([*NAMES, *THINGS])})s?\b", re.IGNORECASE)
POOL = 192  # conversations made at a time, then sorted by length: little padding, little order


@dataclass(frozen=True, slots=True)
class Row:
    """A conversation as tokens, and the weight of each in the loss, 0 for those that do not count."""

    ids: list[int]
    weights: list[float]


class EditBatches:
    """An endless source of edit batches made from stories, all choices taken from one generator."""

    def __init__(
        self, stories: list[str], tokenizer: PreTrainedTokenizerBase, *, batch_tokens: int, rng: random.Random
    ) -> None:
        self._stories = stories
        self._words = [word for story in stories[:2000] for word in story.split()]
        self._tokenizer = tokenizer
        self._batch_tokens = batch_tokens
        self._rng = rng
        self._ready: list[list[Row]] = []
        self._longest = 0

    def next(self, longest: int) -> list[Row]:
        """Return a batch of edits whose sources have about `longest` tokens at most."""
        if longest != self._longest:
            self._ready, self._longest = [], longest
        if not self._ready:
            rows = sorted((self._row() for _ in range(POOL)), key=lambda row: len(row.ids))
            batch: list[Row] = []
            for row in rows:
                if batch and len(row.ids) * (len(batch) + 1) > self._batch_tokens:
                    self._ready.append(batch)
                    batch = []
                batch.append(row)
            self._ready.append(batch)
            self._rng.shuffle(self._ready)
        return self._ready.pop()

    def _row(self) -> Row:
        while True:
            story = self._rng.choice(self._stories)
            if self._rng.random() < 0.1:
                return encode([self._continuation(story)], self._tokenizer)
            edit = sample_edit(self._source(story), self._rng, names=0.5)
            if edit is None:
                continue
            turns = [edit]
            for _ in range(min(4, ROW_BYTES // (2 * len(edit.text) + 200)) - 1):
                edit = sample_edit(edit.answer, self._rng, names=0.5) or edit
                turns.append(edit)
            row = encode(turns, self._tokenizer)
            if len(row.ids) <= 1024:
                return row

    def _continuation(self, story: str) -> Edit:
        words = story.split(" ")
        cut = self._rng.randint(3, max(4, min(30, len(words) // 2)))
        return Edit("", " ".join(words[:cut]), " ".join(words[cut : cut + self._longest]))

    def _source(self, story: str) -> str:
        """Return the story, or its beginning if it is too long, varied or not."""
        rng = self._rng
        sentences = re.findall(r".+?[.!?][\"”]?(?:\s+|$)|.+?$", story, flags=re.DOTALL)
        if rng.random() < 0.2:
            rng.shuffle(sentences)
            sentences = [sentence.strip() + " " for sentence in sentences]
        room = self._longest * 3.9  # bytes a token
        first = rng.randrange(len(sentences)) if room < len(story) and rng.random() < 0.5 else 0
        text = ""
        for sentence in sentences[first:]:
            if text and len(text) + len(sentence) > room:
                break
            text += sentence
        text = text.strip()
        if rng.random() < 0.5:
            for name in NAMES:
                if rng.random() < 0.5 and re.search(rf"\b{name}\b", text):
                    text = replace_word(text, name, rng.choice(NAMES))
        share = self._random_words()
        return " ".join(rng.choice(self._words) if rng.random() < share else word for word in text.split(" "))

    def _random_words(self) -> float:
        """Return the share of words to replace: all in the shortest sources, which nothing but copying predicts."""
        if self._longest == SHORT:
            return 1.0
        if self._longest == MIDDLE and self._rng.random() < 0.5:
            return self._rng.uniform(0.1, 0.9)
        return self._rng.uniform(0.02, 0.3) if self._rng.random() < 0.2 else 0.0


def encode(turns: list[Edit], tokenizer: PreTrainedTokenizerBase) -> Row:
    """Return a conversation in the chat template; each turn after the first edits the answer before it.

    Answers count in the loss, and so do texts that repeat an answer; instructions and first texts do not. Names and
    things count more, replaced or not: they are few, and nearly all that is wrong once copying works.
    """
    pieces = []
    for number, turn in enumerate(turns):
        if turn.instruction:
            pieces += [(f"User: {turn.instruction}", False), (turn.text, number > 0)]
        else:
            pieces += [(f"User: {turn.text}", False)]
        pieces += [(tokenizer.eos_token + "Story:", False), (turn.answer + tokenizer.eos_token, True)]
    ids, weights = [tokenizer.bos_token_id], [0.0]
    texts = [text for text, _ in pieces]
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    for (text, counts), piece, places in zip(pieces, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        ids += piece
        if not counts:
            weights += [0.0] * len(piece)
            continue
        choices = {place for match in REPLACEABLE.finditer(text) for place in range(*match.span())}
        weights += [CHOICE_WEIGHT if choices & set(range(*place)) else 1.0 for place in places]
    return Row(ids, weights)


def edit_tensors(rows: list[Row]) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, targets and their weights [B, T]."""
    inputs, targets = to_tensors([row.ids for row in rows])
    weights = torch.zeros(targets.shape)
    for i, row in enumerate(rows):
        weights[i, : len(row.ids) - 1] = torch.tensor(row.weights[1:])
    return inputs, targets, weights


def edit_loss(model: LlamaForCausalLM, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean loss of the targets; logits are computed for those that count alone."""
    hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
    counted = weights > 0
    losses = F.cross_entropy(model.lm_head(hidden[counted]), targets[counted], reduction="none")
    return losses @ weights[counted] / weights.sum()


def distillation_loss(model: LlamaForCausalLM, teacher: LlamaForCausalLM, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean divergence from the teacher's distribution, where there are targets."""
    counted = targets != IGNORED
    with torch.no_grad():
        expected = teacher.lm_head(teacher.model(input_ids=inputs, use_cache=False).last_hidden_state[counted])
    found = model.lm_head(model.model(input_ids=inputs, use_cache=False).last_hidden_state[counted])
    return F.kl_div(found.log_softmax(-1), expected.log_softmax(-1), log_target=True, reduction="batchmean")


def rate_at(step: int, args: argparse.Namespace) -> float:
    """Return the rate, which falls linearly to zero; it starts anew and lower when all parameters are trained."""
    if step < args.attention_steps:
        return args.lr * min(1.0, (step + 1) / 20) * (1 - step / args.steps)
    return args.polish_lr * (args.steps - step) / (args.steps - args.attention_steps)


def choose_parameters(
    model: LlamaForCausalLM, args: argparse.Namespace, *, everything: bool
) -> list[torch.optim.Optimizer]:
    """Freeze what is not trained, and return fresh optimizers for the rest: attention and norms, or everything."""
    for name, p in model.named_parameters():
        p.requires_grad_(everything or "self_attn" in name or "norm" in name)
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for name, p in trained if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in trained if p.ndim == 1 or "embed" in name]
    return [
        Muon(matrices, lr=args.lr, weight_decay=args.weight_decay),
        torch.optim.AdamW(others, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def longest_at(step: int, args: argparse.Namespace) -> int:
    """Return how many tokens a source may have at this step."""
    return next((length for until, length in ((args.short, SHORT), (2 * args.short, MIDDLE)) if step < until), LONG)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.init)
    tokenizer.chat_template = CHAT_TEMPLATE
    stories = read_stories(args.data / "train-a.txt", args.data / "train-b.txt")
    documents = [[*ids, tokenizer.eos_token_id] for ids in tokenizer(stories, truncation=True)["input_ids"]]
    model = LlamaForCausalLM.from_pretrained(args.init, dtype=torch.float32).train()
    teacher = copy.deepcopy(model).requires_grad_(False)
    edits = EditBatches(stories, tokenizer, batch_tokens=args.edit_tokens, rng=rng)
    plain: list[list[list[int]]] = []
    first, log = 0, []
    smooth: dict[str, float] = {}
    state = args.out / "state.pt"
    args.out.mkdir(parents=True, exist_ok=True)
    if args.resume:
        kept = torch.load(state, weights_only=True)
        model.load_state_dict(kept["model"])
        first, log = kept["step"], kept["log"]
        rng.seed(args.seed + first)
        torch.manual_seed(args.seed + first)
    clock, tokens = time.process_time(), 0
    optimizers = choose_parameters(model, args, everything=first >= args.attention_steps)

    for step in range(first, args.steps):
        if step == args.attention_steps:
            optimizers = choose_parameters(model, args, everything=True)
        rows = edits.next(longest_at(step, args))
        losses = {"edit": edit_loss(model, *edit_tensors(rows))}
        if step % 2 or step >= args.attention_steps:
            plain = plain or whole_stories(documents, args.plain_tokens, rng)
            stories_now = long_rows(documents, 1024, args.plain_tokens, rng) if step % 20 == 19 else plain.pop()
            losses["plain"] = distillation_loss(model, teacher, *to_tensors(stories_now))
            tokens += sum(map(len, stories_now))
        tokens += sum(len(row.ids) for row in rows)
        sum(losses.values()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step, args)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        smooth |= {kind: 0.9 * smooth.get(kind, loss.item()) + 0.1 * loss.item() for kind, loss in losses.items()}
        if (step + 1) % 10 == 0:
            entry = {"step": step + 1, **{kind: round(loss, 4) for kind, loss in smooth.items()}}
            log.append(entry)
            speed = tokens / (time.process_time() - clock)
            print(f"{time.strftime('%H:%M:%S')} {entry}  {speed:.0f} tokens per CPU second", flush=True)
        if (step + 1) % 50 == 0 or step + 1 == args.steps:
            save(model, tokenizer, args.out)
            torch.save({"model": model.state_dict(), "step": step + 1, "log": log}, state)
    (args.out / "rewrite-training.json").write_text(json.dumps(log, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with train-a.txt and train-b.txt")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder that gets the model")
    parser.add_argument("--init", type=Path, required=True, help="the model of train.py")
    parser.add_argument("--resume", action="store_true", help="go on from the state in --out")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--attention-steps", type=int, default=400, help="first steps, which train attention alone")
    parser.add_argument(
        "--short", type=int, default=100, help="steps with the shortest sources; as many follow with longer ones"
    )
    parser.add_argument("--edit-tokens", type=int, default=2048, help="tokens in a step's edit batch")
    parser.add_argument("--plain-tokens", type=int, default=1536, help="tokens in a step's plain batch")
    parser.add_argument("--lr", type=float, default=1.2e-3, help="of the first phase")
    parser.add_argument("--polish-lr", type=float, default=8e-4, help="of the second phase, at first")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    train(args)


if __name__ == "__main__":
    main()
