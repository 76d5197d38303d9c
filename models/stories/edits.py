"""The edit task: a story rewritten with one name or one thing replaced and nothing else changed.

Shared by training (`rewrite.py`) and evaluation (`evaluate_rewrites.py`), which differ only in the stories they
start from. Names and things are common words of the training text. Names are single tokens with and without a
space before them; things have a regular plural and begin with a consonant, so that "a" stays right.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

# fmt: off
NAMES = [
    "Lily", "Tim", "Tom", "Ben", "Sam", "Timmy", "Sue", "Max", "Jack", "Lucy", "Mia", "Bob", "Spot", "John", "Anna",
    "Jane", "Amy", "Sally", "Sarah", "Sara", "Joe", "Molly", "Daisy", "Billy", "Tommy", "Kitty", "Jill", "Jimmy",
    "Mary", "Lila", "Jim", "Alice",
]
THINGS = [
    "dog", "cat", "bird", "bear", "rabbit", "frog", "squirrel", "ball", "car", "boat", "book", "flower", "hat", "truck",
    "doll", "kite", "cake", "toy", "bug", "rock", "tree",
]
# fmt: on

# `</s>` ends every turn, so that no token spans the text of two turns.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}Story: {{ message['content'] | trim }}{{ eos_token }}"
    "{% else %}User: {{ message['content'] | trim }}{{ eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}Story:{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Edit:
    """One request, which is an instruction and a text, and its only right answer."""

    instruction: str
    text: str
    answer: str

    @property
    def request(self) -> str:
        """The user's message."""
        return f"{self.instruction} {self.text}"


def replace_word(text: str, old: str, new: str) -> str:
    """Return the text with the whole word replaced, wherever it stands."""
    return re.sub(rf"\b{old}\b", new, text)


def rename(story: str, old: str, new: str) -> Edit:
    """Return the edit that gives one character another name."""
    return Edit(f"Rewrite the story, calling {old} {new}:", story, replace_word(story, old, new))


def exchange(story: str, old: str, new: str) -> Edit:
    """Return the edit that puts one thing in another's place: singular, plural, capitalised or not."""
    answer = story
    for ending in ("", "s"):
        answer = replace_word(answer, old + ending, new + ending)
        answer = replace_word(answer, old.capitalize() + ending, new.capitalize() + ending)
    return Edit(f"Rewrite the story, changing {old} to {new}:", story, answer)


def sample_edit(story: str, rng: random.Random, *, names: float = 0.7) -> Edit | None:
    """Return an edit of a word that is in the story to one that is not, or None if the story has no such word.

    Args:
        story: any story.
        rng: chooses kind and words.
        names: share of edits that change a name, where the story allows both kinds.
    """
    words = set(re.findall(r"\w+", story))
    here = [name for name in NAMES if name in words]
    things = [thing for thing in THINGS if thing in words]
    if here and (not things or rng.random() < names):
        return rename(story, rng.choice(here), rng.choice([name for name in NAMES if name not in words]))
    if things:
        absent = [t for t in THINGS if not words & {t, f"{t}s", t.capitalize(), f"{t.capitalize()}s"}]
        return exchange(story, rng.choice(things), rng.choice(absent))
    return None
