"""HeadKind: everything specific to one kind of heads, as data; each kind's folder defines its own in `__init__.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A public checkpoint layout. Its functions are given as "module:name" and imported when they are used.

    Attributes:
        name: description, for messages.
        method: method that drafts with such heads alone.
        matches: recognises such checkpoints by config and tensor names.
        load: returns the head for a checkpoint and a target; raises UnsupportedError if they do not fit.
    """

    name: str
    method: str
    matches: str
    load: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadMethod:
    """A method that drafts with such heads; the table of methods derives its row, see `registry.method.Method`.

    Attributes:
        name: name of the method.
        family: family in the survey's taxonomy.
        summary: what it does, in one line.
        drafter: "module:class" of its drafter.
        settings: "module:class" of its settings.
        source: paper and arXiv id.
        requires: requirements in addition to the target, in words.
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
    """How heads of a kind are built, trained and saved. Its parts are "module:name", imported when they are used.

    Attributes:
        build: function that returns a new head for a target.
        options: keyword arguments of `build` that users may set, with their defaults.
        counts: whether `build` takes `counts`, the frequency of each token in the texts, Int64[V].
        recipe: class of the recipe, called with the head and a depth, which is at most the head's own.
        save: function that writes head, folder and target in the public layout.
        depth: default number of depths trained.
        parts: option of `build` that sets the depth, for heads with a part per depth; None for others.
        measured: depths at which acceptance is measured, if the head can draft that deep.
        loss: default training divergence.
        feature_weight: weight of the recipe's own loss, such as the distance of hidden states.
        decay: weight of deeper losses relative to the previous depth.
        lr: learning rate.
        anchors: default maximum number of positions trained per text.
        searches_tree: whether its static tree is searched on held-out texts and saved with the head.
        joint: whether it can be trained together with its target: its recipe reads only states after the final norm.
        source: paper and arXiv id.
    """

    build: str
    options: Mapping[str, bool | int] = field(default_factory=dict)
    counts: bool = False
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
    joint: bool = False
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadKind:
    """A kind of heads.

    Attributes:
        name: name of the architecture, as in `Method.heads`.
        layouts: layouts of its checkpoints.
        methods: methods that draft with it alone.
        training: how it is trained; None if heads are only available as published checkpoints, or are models.
        model: whether it is a causal model, which is trained as one; see `training.kinds`.
        decoder_only: why such heads do not draft for encoder-decoders; "" if they do.
    """

    name: str
    layouts: tuple[Layout, ...]
    methods: tuple[HeadMethod, ...]
    training: HeadTraining | None = None
    model: bool = False
    decoder_only: str = ""
