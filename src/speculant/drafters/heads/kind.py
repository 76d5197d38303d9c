"""HeadKind: everything that is told of one kind of heads, in data; each kind's folder has its own in `__init__.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A public layout of checkpoints. Its functions are "module:name", imported when they are used.

    Attributes:
        name: in words, for messages.
        method: the method that drafts with such heads alone.
        matches: tells such checkpoints by config and names of tensors alone.
        load: returns the head for a checkpoint and a target; raises UnsupportedError where they do not fit.
    """

    name: str
    method: str
    matches: str
    load: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadMethod:
    """A method that drafts with such heads; the table of methods derives its row, see `registry.method.Method`.

    Attributes:
        name: of the method.
        family: where it stands in the survey's taxonomy.
        summary: what it does, in a line.
        drafter: "module:class" of its drafter.
        settings: "module:class" of its settings.
        source: paper and arXiv id.
        requires: what it needs beside the target, in words.
    """

    name: str
    family: str
    summary: str
    drafter: str
    settings: str
    source: str
    requires: str = "a head trained for the target"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTraining:
    """How heads of a kind are made, trained and saved. Its parts are "module:name", imported when they are used.

    Attributes:
        build: the function that returns a new head for a target. If it takes `counts`, it is given how often each
            token stands in the texts, Int64[V].
        options: keyword arguments of `build` that users may set, with their defaults.
        recipe: the class of the recipe, called with the head and a depth, of at most the head's own.
        save: the function that writes head, folder and target in the public layout.
        depth: depths trained by default.
        parts: the option of `build` that is the depth, for heads that have parts for each; None if they have not.
        measured: depths at which acceptance is measured, if the head can draft as deep.
        loss: the divergence that is trained on by default.
        feature_weight: of the recipe's own loss, such as the distance of hidden states.
        decay: of the weights of deeper losses, per depth.
        lr: the learning rate.
        anchors: positions of a text that are trained by default, at most.
        searches_tree: whether its static tree is searched on held-out texts and kept with the head.
        source: paper and arXiv id.
    """

    build: str
    options: Mapping[str, bool | int] = field(default_factory=dict)
    recipe: str
    save: str
    depth: int
    parts: str | None = None
    measured: int = 4
    loss: str = "kl"
    feature_weight: float = 0.0
    decay: float = 0.8
    lr: float = 1e-3
    anchors: int = 32
    searches_tree: bool = False
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadKind:
    """A kind of heads.

    Attributes:
        name: of the architecture, as `Method.heads` names it.
        layouts: of its checkpoints.
        methods: that draft with it alone.
        training: how it is trained; None where heads are only published.
    """

    name: str
    layouts: tuple[Layout, ...]
    methods: tuple[HeadMethod, ...]
    training: HeadTraining | None = None
