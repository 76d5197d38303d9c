"""A demonstration on the bundled model: three use cases, each measured against plain decoding.

A session whose memory fills from request to request; rewriting of a text, where the prompt has most of the answer; and
stories continued with a base that already knows the language. Plain and drafted decoding alternate request by request
in one process, everything is repeated and medians are taken, so that other load on the machine affects both alike. Each
repetition starts with the initial memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from speculant.api.speculator import Speculator
from speculant.memory.bases import find_bundled_base

if TYPE_CHECKING:
    from speculant.api.requests import Message, Prompt

REPETITIONS = 3
WARM_UP_TOKENS = 16

SESSION = (
    "Once upon a time there was a little girl named Lily. She loved to play outside",
    "One day, a boy named Tim went to the park with his mom",
    "Once upon a time there was a dog named Spot. Spot loved to play with his ball",
    "Lily and Ben were friends. They liked to play with",
    "Once upon a time, in a big forest, there lived a small rabbit",
    "Tom had a red car. He liked to play with",
    "One day, Lily saw a bird in the garden",
    "Once upon a time there was a little boy named Max. He had a big",
    "Mia and her mom went to the beach",
    "One sunny day, a cat named Kitty wanted to",
)
EDITS = (
    (
        "calling Lily Jane",
        """\
One day, a girl named Lily went to the park with her dog. The sun was bright and the grass was green. Lily threw a ball
and the dog ran after it. "Good dog!" said Lily. Then a boy came to the park. His name was Tom. He was sad because he
had no ball. Lily said, "You can play with us." Tom smiled. Lily and Tom played with the ball all day. When it was time
to go home, Lily gave Tom a big hug. They were friends now.""",
    ),
    (
        "calling Tim Jack",
        """\
Tim had a small boat. He liked to play with it in the pond. One day, the wind was strong and the boat went far away. Tim
was sad. He asked his dad for help. "Do not worry, Tim," said his dad. They took a long stick and walked around the
pond. Tim saw the boat near a rock. He pulled it out of the water with the stick. Tim was very happy. "Thank you, Dad!"
he said. From that day on, Tim held his boat with a string.""",
    ),
    (
        "changing cat to bird",
        """\
Once upon a time there was a little cat. The cat lived in a big house with a girl named Mia. Every morning the cat
looked out of the window. It wanted to see the world. One day the door was open and the cat went out. It saw the trees,
the flowers and the sky. But soon it began to rain and the cat was cold. Mia came out and found the cat. She took the
cat home and dried it with a towel. The cat was glad to be home again.""",
    ),
)
STORIES = (
    "Once upon a time, there was a brave little frog",
    "Sara had a new doll with a pink hat",
    "The old farmer had a cow and a big red truck",
    "Jack and Mary wanted to bake a cake for their mom",
)


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """A request: its title, and the prompt."""

    label: str
    prompt: Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One use case.

    Attributes:
        name: name in the table.
        method: drafting method.
        requests: requests answered in sequence, with one memory.
        maximum: maximum new tokens per answer.
        base: a frozen base under the memory; None for none.
    """

    name: str
    method: str
    requests: Sequence[DemoRequest]
    maximum: int
    base: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoAnswer:
    """A request and the time to answer it.

    Attributes:
        request: the request.
        tokens: new tokens of the answer.
        plain, drafted: median seconds, prompt included.
        identical: whether plain and drafted decoding gave the same tokens in every repetition.
        parts: the answer's text, token by token, and whether the token was an accepted draft.
    """

    request: DemoRequest
    tokens: int
    plain: float
    drafted: float
    identical: bool
    parts: Sequence[tuple[str, bool]]

    @property
    def speed_up(self) -> float:
        """Plain seconds over drafted seconds."""
        return self.plain / self.drafted

    @property
    def text(self) -> str:
        """The answer's text."""
        return "".join(text for text, _ in self.parts)


@dataclass(frozen=True, slots=True)
class Measured:
    """A scene and its answers."""

    scene: Scene
    answers: Sequence[DemoAnswer]

    @property
    def plain_speed(self) -> float:
        """Tokens per second of plain decoding, over all requests."""
        return sum(answer.tokens for answer in self.answers) / sum(answer.plain for answer in self.answers)

    @property
    def drafted_speed(self) -> float:
        """Tokens per second with drafts, over all requests."""
        return sum(answer.tokens for answer in self.answers) / sum(answer.drafted for answer in self.answers)

    @property
    def speed_up(self) -> float:
        """Drafted over plain tokens per second."""
        return self.drafted_speed / self.plain_speed

    @property
    def identical(self) -> bool:
        """Whether drafts changed no token of any answer."""
        return all(answer.identical for answer in self.answers)

    def to_json(self) -> dict[str, Any]:
        """Return everything measured as plain values."""
        return {
            "scene": self.scene.name,
            "method": self.scene.method,
            "plain_tokens_per_second": self.plain_speed,
            "drafted_tokens_per_second": self.drafted_speed,
            "speed_up": self.speed_up,
            "identical": self.identical,
            "answers": [
                {
                    "request": answer.request.label,
                    "tokens": answer.tokens,
                    "plain_seconds": answer.plain,
                    "drafted_seconds": answer.drafted,
                    "speed_up": answer.speed_up,
                    "identical": answer.identical,
                    "text": answer.text,
                }
                for answer in self.answers
            ],
        }


def scenes() -> tuple[Scene, ...]:
    """Return the three scenes of the demonstration."""
    rewrites = (DemoRequest(f"Rewrite the story, {change}", rewrite_messages(change, story)) for change, story in EDITS)
    return (
        Scene(name="session", method="mix", requests=[DemoRequest(text, text) for text in SESSION], maximum=64),
        Scene(name="edit", method="mix", requests=list(rewrites), maximum=200),
        Scene(
            name="base",
            method="mix",
            requests=[DemoRequest(text, text) for text in STORIES],
            maximum=80,
            base=find_bundled_base(),
        ),
    )


def rewrite_messages(change: str, story: str) -> list[Message]:
    """Return the request in the words that the bundled model learned; line breaks of the source are spaces."""
    return [{"role": "user", "content": f"Rewrite the story, {change}: {' '.join(story.split())}"}]


def measure(
    scene: Scene,
    model: Any,
    tokenizer: Any,
    *,
    repetitions: int = REPETITIONS,
    advance: Callable[[], object] = lambda: None,
) -> Measured:
    """Measure plain and drafted decoding on each request of a scene.

    Args:
        scene: the scene to decode.
        model, tokenizer: the bundled ones, or others that know its chat template.
        repetitions: number of repetitions of the whole scene; medians are taken over these.
        advance: called after each request.
    """
    plain = Speculator.from_transformers(model, tokenizer, method="none")
    drafted = Speculator.from_transformers(model, tokenizer, method=scene.method, base=scene.base, fast=plain.fast)
    trials: list[list[_Trial]] = [[] for _ in scene.requests]
    with tempfile.TemporaryDirectory() as folder:
        beginning = Path(folder) / "memory"
        drafted.save(beginning)
        for speculator in (plain, drafted):
            speculator.generate(scene.requests[0].prompt, max_new_tokens=WARM_UP_TOKENS)
        for _ in range(repetitions):
            drafted.load(beginning)
            for request, found in zip(scene.requests, trials, strict=True):
                found.append(_play(request.prompt, plain, drafted, scene.maximum))
                advance()
    return Measured(scene, [_answer(request, found) for request, found in zip(scene.requests, trials, strict=True)])


@dataclass(frozen=True, slots=True)
class _Trial:
    tokens: int
    plain: float
    drafted: float
    identical: bool
    parts: list[tuple[str, bool]]


def _play(prompt: Prompt, plain: Speculator, drafted: Speculator, maximum: int) -> _Trial:
    """Decode one request both ways, plain first."""
    expected = plain.generate(prompt, max_new_tokens=maximum)
    stream = drafted.stream(prompt, max_new_tokens=maximum)
    parts = [
        (text, source.value == "accepted")
        for piece in stream
        for text, source in zip(piece.texts, piece.sources, strict=True)
    ]
    found = stream.result
    return _Trial(len(found.ids), expected.stats.seconds, found.stats.seconds, found.ids == expected.ids, parts)


def _answer(request: DemoRequest, trials: list[_Trial]) -> DemoAnswer:
    return DemoAnswer(
        request=request,
        tokens=trials[-1].tokens,
        plain=median(trial.plain for trial in trials),
        drafted=median(trial.drafted for trial in trials),
        identical=all(trial.identical for trial in trials),
        parts=trials[-1].parts,
    )


def plays(chosen: Sequence[Scene], repetitions: int = REPETITIONS) -> int:
    """Return how often `measure` calls `advance` for these scenes."""
    return repetitions * sum(len(scene.requests) for scene in chosen)
