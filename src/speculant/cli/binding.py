"""Commands with option groups as parameters: each option of a group becomes a flag or an argument.

    def chat(model: ModelOptions, drafting: Annotated[DraftingOptions, Take(without=("share",))]) -> int: ...

    app.command("chat")(bind(chat))

A parameter of type `dict` receives the given options of several groups, by field name, without defaults:
`Annotated[dict[str, Any], Take(ModelOptions), Take(ServingOptions)]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_origin

import typer

from speculant.core.environment import PREFIX
from speculant.core.errors import UsageError
from speculant.options import kinds
from speculant.options.kinds import FLAG, ValueKind
from speculant.options.option import Option, options_of

SEVERAL_METHODS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {  # drafting options in commands that take several methods
        "settings": {
            "help": "setting of one of the methods, see `speculant methods NAME`; may be repeated",
            "kind": kinds.name(metavar="[METHOD.]NAME=VALUE"),
        },
        "base": {
            "help": "frozen base for the methods that use one; up to three; bundled: the story model's; default: none",
            "off": "",
        },
    }
)
_OPTIONAL_FLAG = bool | None
_OPTIONAL_LIST = list[str] | None


@dataclass(frozen=True, slots=True)
class Take:
    """The options that a command takes from a group.

    Attributes:
        group: dataclass of options; None for the parameter's own type.
        only: names of the options taken; empty for all.
        without: names of the options not taken.
        arguments: options that are arguments instead of flags, with their names in the help.
        panel: help heading for all of them; None for their own.
        changes: by name, attributes of `Option` that differ in this command, such as its help.
        defaults: by name, values that replace the group's defaults.
    """

    group: Any = None
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    panel: str | None = None
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def options(self) -> Iterator[Option]:
        """Yield the options taken."""
        for name, each in options_of(self.group, self.only or None).items():
            if name not in self.without and (each.flag or name in self.arguments):
                panel = {} if self.panel is None else {"panel": self.panel}
                yield replace(each, **(panel | dict(self.changes.get(name, {}))))

    def take_given(self, values: dict[str, Any]) -> dict[str, Any]:
        """Remove the values of these options from the parsed ones; return those that were given.

        Raises:
            UsageError: an option and the flag that turns it off were both given.
        """
        found: dict[str, Any] = {**self.defaults}
        for each in self.options():
            value = values.pop(each.name if each.name in self.arguments else _name_of(each.flag))
            off = bool(each.off) and values.pop(_name_of(each.off))
            if off and value:
                raise UsageError(f"{each.flag} would be ignored beside {each.off}. Leave one out.")
            if off:
                found[each.name] = ()
            elif value is not None and value != [] and not (value is False and not each.tristate):
                found[each.name] = tuple(value) if each.several else value
        return found


def bind(function: Callable[..., int]) -> Callable[..., int]:
    """Return a function for typer whose parameters are the options that a command takes from groups."""
    parameters, groups = list[inspect.Parameter](), dict[str, tuple[Any, Sequence[Take]]]()
    for name, each in inspect.signature(function, eval_str=True).parameters.items():
        takes = _takes(each.annotation)
        if not takes:
            parameters.append(each)
            continue
        groups[name] = (get_args(each.annotation) or (each.annotation,))[0], takes
        for take in takes:
            for option in take.options():
                parameters += _parameters(option, argument=take.arguments.get(option.name))

    def run(**values: Any) -> int:
        for name, (kind, takes) in groups.items():
            given = {key: value for take in takes for key, value in take.take_given(values).items()}
            values[name] = given if get_origin(kind) is dict else kind(**given)
        return function(**values)

    flat = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in flat}
    return run


def _takes(annotation: Any) -> Sequence[Take]:
    """Return what a parameter takes from which groups; nothing if it is typer's own kind."""
    if get_origin(annotation) is not Annotated:
        return [Take(annotation)] if hasattr(annotation, "__dataclass_fields__") else []
    kind, *notes = get_args(annotation)
    return [replace(each, group=each.group or kind) for each in notes if isinstance(each, Take)]


def _parameters(option: Option, *, argument: str | None) -> list[inspect.Parameter]:
    """Return the parameters from which typer makes a flag, two flags or an argument, named by their flags."""
    default = inspect.Parameter.empty if option.required else None
    kind = _OPTIONAL_LIST if option.several else Any
    if argument is not None:
        own = typer.Argument(
            metavar=argument,
            parser=parse(option.kind),
            autocompletion=option.kind.complete,
            help=option.described,
        )
        return [_parameter(option.name, kind if option.several else str | None, own, default)]
    name = _name_of(option.flag)
    shown: dict[str, Any] = {"help": option.described, "rich_help_panel": option.panel}
    if option.kind is FLAG and option.tristate:
        own = typer.Option(f"{option.flag}/--no-{option.flag[2:]}", **shown)
        return [_parameter(name, _OPTIONAL_FLAG, own, None)]
    if option.kind is FLAG:
        return [_parameter(name, bool, typer.Option(option.flag, *option.aliases, **shown), False)]
    own = typer.Option(
        *(option.flag, *option.aliases),
        metavar=option.kind.metavar,
        parser=parse(option.kind),
        autocompletion=option.kind.complete,
        envvar=f"{PREFIX}{option.name.upper()}" if option.variable else None,
        show_envvar=False,
        **shown,
    )
    found = [_parameter(name, kind, own, default)]
    if option.off:
        shown["help"] = f"use no {option.flag}"
        found.append(_parameter(_name_of(option.off), bool, typer.Option(option.off, **shown), False))
    return found


def _parameter(name: str, kind: Any, own: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, own])


def parse(kind: ValueKind) -> Callable[[Any], Any]:
    """Return typer's parser for a kind of values."""

    def read(value: Any) -> Any:
        try:
            return kind.read(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return read


def _name_of(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
