"""How drafts are made, verified and remembered: the options of a `Speculator`, in every front end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from speculant.core.byte_size import MEMORY_LIMIT
from speculant.options import kinds, option
from speculant.registry import METHODS, VERIFIERS

DEFAULT_METHOD = "mix"  # without a head
AUTOMATIC = "auto"

_option = partial(option.option, panel="Drafting")


def read_bases(value: Any) -> Any:
    """Return the bases that a variable or a file names: files with commas or os.pathsep between them, auto or none."""
    if value == AUTOMATIC:
        return AUTOMATIC
    given = value.replace(os.pathsep, ",") if isinstance(value, str) else value
    return () if value == "none" else tuple(kinds.read_list(given))


def read_settings(value: Any) -> Any:
    """Return the settings of a method that a variable or a file holds: an object, or "name=value" with commas."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        value = json.loads(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str):
        return tuple(kinds.read_list(value))
    raise ValueError(f'must be an object such as {{"row_memory": 8}}, not {value!r}.')


class DraftingKeywords(TypedDict, total=False):
    """Keywords of `Speculator.from_transformers`: the fields of `DraftingOptions`, which describes them."""

    method: str | None
    drafter: Any
    strict: bool
    settings: Any
    verifier: str | None
    lossy: bool
    draft_model: Any
    draft_tokenizer: Any
    head: Any
    online: Any
    nodes: int | str | None
    max_depth: int | None
    memory: str | Path | None
    memory_limit: int | float | str
    base: Any
    share: Any
    fast: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingOptions:
    """How drafts are made, verified and remembered.

    In the library a model, head or drafter may be an object; on the command line each is named.

    Attributes:
        method: a name from `speculant methods`; None for "draft-model" with a draft model, else for "mix", united with
            the head if there is one ("mix-head"). Without a draft model, MTP layers in the model's checkpoint are the
            head; a named method ignores them unless it drafts with a head. Distilled heads, and heads under rules that
            take drawn tokens, draft alone.
        drafter: a `speculant.core.drafter.Drafter` of your own, or "module:Class", in place of a method. Options that
            make a drafter are refused beside it.
        strict: whether to refuse a model that drafts cannot be verified on; else it is decoded plainly, without what
            the method would load for drafting, and `stats.notes` says so.
        settings: settings of the method's drafter, such as `MixSettings`, or a dict of some of them; None for its
            defaults. On the command line each is "name=value".
        verifier: acceptance rule, with settings as in "typical:epsilon=0.1"; None for the method's own.
        lossy: whether the rule may change the output.
        draft_model: for methods that require one, a smaller model, loaded or by name; None for the bundled draft model
            where the target is the bundled model. Where its tokenizer is another one it drafts the tokens that both
            have, and `stats.notes` says how many. A list for `specinfer` and `cs-drafting`. Speculators
            of one model may share one that is prepared: `open_draft_caches(draft_model, vocabulary)`.
        draft_tokenizer: tokenizer of the draft model, or a list of them; None for the one that is loaded with a name.
        draft_dtype, draft_device: how draft models are loaded by name; None for the target's.
        head: for methods that require one, a trained head: a folder or hub id, "bundled" for the bundled model's, or
            what `open_head` returned. Its format is detected; None for the bundled one where the target is the bundled
            model.
        online: True, or `training.online.settings.OnlineSettings` or a dict of some of them, to distil the draft model
            or head to the target while requests are served. Its weights are changed in place, and saved as the
            memory. Lossless like all drafting; updates run in a thread, which `close` ends.
        nodes: maximum number of tokens per draft; "auto", which None stands for, for as many as pay in each round, up
            to 64, by measured latency of passes and acceptance.
        max_depth: maximum depth of a draft, in tokens behind the last one; None for as deep as drafters go. Chains of a
            known length suit engines and comparisons; deep drafts cost time on models whose passes are cheap.
        memory: memory file to begin with, if it exists; commands also save to it. For methods that save nothing, such
            as `aded-paper`, it must exist and is never written.
        memory_limit: maximum size of the drafter's memory: bytes, or text such as "1GB".
        base: frozen bases under the memory of `mix`, which `speculant corpus build --kind mix-base` makes: a file or
            several; "bundled" for the one of stories that comes with the package; "auto" for those of the user's
            folder that fit the tokenizer, and the bundled one if it fits; None or () for none. They are mapped
            read-only and do not count against the limit.
        share: a store through which replicas learn from each other what they decode, such as
            "redis://host:6379?tenant=NAME", or a `speculant.sharing.channel.Channel`; for methods whose memory learns
            from text. Its failure costs drafts, never text; `close` ends its threads.
        fast: whether passes run the library's own code on CPUs, or CUDA graphs; None for CPUs, where it is faster.
            Where it cannot run, `stats.notes` says why. Speculators of one model may share what was prepared:
            `fast=other.fast`. On the command line it belongs to the model.
    """

    method: str | None = _option(
        None,
        "drafting method, see `speculant methods`; default: mix, with --head mix-head, with --draft-model draft-model",
        kinds.name(lambda: [*METHODS]),
    )
    drafter: Any = _option(
        None,
        "your own drafter instead of --method; modules in the current folder are found",
        kinds.name(metavar="MODULE:CLASS"),
    )
    strict: bool = _option(
        False,
        "refuse models that cannot verify drafts, instead of decoding them plainly with a note",
        kinds.FLAG,
    )
    settings: Any = _option(
        None,
        "setting of the method, see `speculant methods NAME`; may be repeated",
        kinds.name(metavar="NAME=VALUE"),
        flag="--set",
        several=True,
        read_all=read_settings,
    )
    verifier: str | None = _option(
        None,
        "acceptance rule, with settings as in typical:epsilon=0.1; default: the method's own",
        kinds.name(lambda: [*VERIFIERS]),
    )
    lossy: bool = _option(False, "allow acceptance rules that change the output", kinds.FLAG)
    draft_model: Any = _option(
        None,
        "smaller model that drafts; repeatable for specinfer, cs-drafting; default: the bundled model's",
        kinds.MODEL,
        several=True,
    )
    draft_tokenizer: Any = None
    draft_dtype: str | None = _option(None, "dtype of the draft model; default: as --dtype", kinds.name())
    draft_device: str | None = _option(None, "device of the draft model; default: as --device", kinds.name())
    head: Any = _option(
        None, "trained head for the model, for methods that need one; default: the bundled model's", kinds.MODEL
    )
    online: Any = _option(
        False,
        "distil the draft model or head while decoding, on rejected drafts; --memory keeps the weights",
        kinds.FLAG,
    )
    nodes: int | str | None = _option(
        None, "maximum tokens per draft; default: auto, chosen every round by cost and acceptance", kinds.NODES
    )
    max_depth: int | None = _option(
        None, "maximum depth of a draft, in tokens; default: as deep as the method drafts", kinds.whole(1, 1024)
    )
    memory: Any = _option(
        None,
        "load this memory if it exists, and save to it",
        kinds.text("name a memory file, or leave the option out", metavar="FILE"),
    )
    memory_limit: Any = _option(
        MEMORY_LIMIT, "maximum size of the memory, as in 1GB or 512MiB; default: 256MiB", kinds.size()
    )
    base: Any = _option(
        AUTOMATIC,
        "frozen base under the memory; up to three; bundled: the story model's; default: those of "
        "`speculant base list` that fit, and the bundled one if it fits",
        kinds.name(metavar="FILE"),
        several=True,
        off="--no-base",
        read_all=read_bases,
    )
    share: Any = _option(
        None,
        "share what is learned with other replicas through redis://host:port[/db][?tenant=NAME]; default: "
        "$SPECULANT_SHARE, which keeps passwords out of the process list",
        kinds.text("name a store such as redis://host:6379, or leave the option out", metavar="URL"),
        secret=True,
        variable=True,
    )
    fast: Any = None
