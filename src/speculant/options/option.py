"""An option as data: a field of a dataclass whose metadata says how it is given, read and described.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ModelOptions:
        threads: int | None = option(None, "CPU threads", whole(1, 4096), panel="Model")

Command-line flags, environment variables and lines of settings files derive from such fields: an option that is added
to a dataclass is there in every front end that has the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from speculant.core.errors import UsageError
from speculant.options.kinds import ValueKind, read_list

REQUIRED = MISSING  # the default of an option that must be given
_KEY = "option"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How a field is given, read and described.

    Attributes:
        name: of the field.
        default: its value where none is given; `REQUIRED` if it must be.
        help: one line for users, with the default where that is not the field's value.
        kind: of its value, or of each of its values.
        panel: heading under which help lists it.
        flag: on the command line, with dashes; "" for an option that has none.
        aliases: other names of the flag.
        several: whether its value is a tuple: the flag is repeated, variables and files hold lists.
        secret: whether the value must not be shown.
        variable: whether the flag's default is read from the environment variable by every command.
        off: a flag that gives the empty tuple; "" for none.
        tristate: whether the flag has a form --no-..., and None stands for neither.
        read_all: reads the whole value that a variable or a file holds, where that is not a value of the kind, or a
            list of them; None where it is.
        old_names: names by which variables and files may still give it.
    """

    name: str
    default: Any
    help: str
    kind: ValueKind
    panel: str
    flag: str
    aliases: tuple[str, ...] = ()
    several: bool = False
    secret: bool = False
    variable: bool = False
    off: str = ""
    tristate: bool = False
    read_all: Callable[[Any], Any] | None = None
    old_names: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is REQUIRED

    def read(self, value: Any) -> Any:
        """Return what a value of a variable or a file means.

        Raises:
            ValueError: it means nothing; the message goes behind the option's name.
        """
        if self.read_all is not None:
            return self.read_all(value)
        return tuple(map(self.kind.read, read_list(value))) if self.several else self.kind.read(value)

    @property
    def described(self) -> str:
        """Help, followed by the default where the help does not name it and there is one."""
        if "default" in self.help or self.required or self.default in (None, False, (), ""):
            return self.help
        return (
            f"{self.help}; default: {self.default:g}"
            if isinstance(self.default, float)
            else f"{self.help}; default: {self.default}"
        )


def option(
    default: Any,
    help: str,
    kind: ValueKind,
    *,
    panel: str = "Options",
    flag: str | None = None,
    aliases: tuple[str, ...] = (),
    several: bool = False,
    secret: bool = False,
    variable: bool = False,
    off: str = "",
    tristate: bool = False,
    read_all: Callable[[Any], Any] | None = None,
    old_names: tuple[str, ...] = (),
) -> Any:
    """Return a dataclass field that is an option, see `Option`; its flag is the field's name unless it is given."""
    made = {"help": help, "kind": kind, "panel": panel, "flag": flag}
    made |= {"aliases": aliases, "several": several, "secret": secret, "variable": variable, "off": off}
    made |= {"tristate": tristate, "read_all": read_all, "old_names": old_names}
    return field(default=default, metadata={_KEY: made}, repr=not secret)


def read_values(group: Any) -> None:
    """Read the values of a group in place, as its `__post_init__` does that takes them as users give them.

    Raises:
        UsageError: a value makes no sense; the message begins with the option's name.
    """
    for name, each in options_of(group).items():
        value = getattr(group, name)
        if each.required or value != each.default:
            try:
                object.__setattr__(group, name, each.read(value))
            except ValueError as error:
                raise UsageError(f"{name} {error}") from None


def reuse(group: Any, name: str, **changes: Any) -> Any:
    """Return the field of another group's option, with some attributes or the default changed."""
    [own] = [each for each in fields(group) if each.name == name]
    made = own.metadata[_KEY] | {key: value for key, value in changes.items() if key != "default"}
    return option(changes.get("default", own.default), **made)


def options_of(group: Any, names: Iterable[str] | None = None) -> dict[str, Option]:
    """Return the options of a dataclass by field name: all, or some of them in the order of their names.

    Raises:
        KeyError: a name is none of its options.
    """
    found = {each.name: _option(each) for each in fields(group) if _KEY in each.metadata}
    return found if names is None else {name: found[name] for name in names}


def _option(own: Field[Any]) -> Option:
    made: dict[str, Any] = own.metadata[_KEY]
    flag = f"--{own.name.replace('_', '-')}" if made["flag"] is None else made["flag"]
    return Option(name=own.name, default=own.default, **(made | {"flag": flag}))
