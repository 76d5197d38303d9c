"""Generate docs/method-settings.md, the reference of method settings, from the dataclasses that define them.

python benchmarks/settings_report.py > docs/method-settings.md
"""

from __future__ import annotations

from collections.abc import Iterator

from speculant.registry import METHODS, Method
from speculant.registry.settings import Setting, settings_of

HEAD = """\
# Settings of methods

<!-- written by `python benchmarks/settings_report.py` -->

Set by `--set NAME=VALUE` on the command line or `settings={"name": value}` in Python; `bench` and `replay`, which
compare several methods, take `--set METHOD.NAME=VALUE`. Methods with the same settings share a section; those not
listed have none. What each method does: [methods](methods.md).
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([HEAD, *_sections()])


def _sections() -> Iterator[str]:
    """Yield a section for each settings class, in the order of the methods."""
    shared = dict[tuple[tuple[str, str, str, str], ...], list[Method]]()
    for method in METHODS.values():
        shared.setdefault(tuple(map(_cells, settings_of(method.settings_class()).values())), []).append(method)
    for rows, methods in shared.items():
        if rows:
            yield f"## {', '.join(method.name for method in methods)}\n"
            yield "| setting | default | value | meaning |\n| --- | --- | --- | --- |"
            yield "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _cells(setting: Setting) -> tuple[str, str, str, str]:
    """Return the table cells of a setting."""
    default = "" if setting.default is None else f"`{setting.default}`"
    meaning = " ".join(setting.description.split()).replace("|", "\\|")
    return f"`{setting.name}`", default, setting.values, meaning


if __name__ == "__main__":
    print(page(), end="")
