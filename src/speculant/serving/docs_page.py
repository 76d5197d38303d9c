"""`/docs`: `/openapi.json` rendered as a page of tables, without scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from speculant.serving.page_files import PageFile

_REFERENCE = "#/components/schemas/"
_BOUNDS = {
    "minimum": "from {}", "exclusiveMinimum": "above {}", "maximum": "to {}", "exclusiveMaximum": "below {}",
    "maxLength": "up to {} characters", "maxItems": "up to {}",
}  # fmt: skip
_LARGEST = 1 << 31  # larger bounds are not shown
_CODE = re.compile(r"`([^`]+)`")
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>API of Speculant</title>
<link rel="icon" href="/static/mark.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/styles/base.css">
<link rel="stylesheet" href="/static/styles/docs.css">
</head>
<body>
<header class="bar">
  <a class="brand" href="/"><img src="/static/mark.svg" alt="" width="28" height="28">Speculant</a>
  <nav aria-label="Views"><a href="/docs" aria-current="page">API</a></nav>
</header>
<main class="docs">
<h1>API</h1>
"""


def add_docs_page(app: FastAPI) -> None:
    """Serve the page; it is rendered from the schema once, on the first request."""
    made = list[PageFile]()

    @app.api_route("/docs", methods=["GET", "HEAD"], include_in_schema=False)
    async def docs(request: Request) -> Response:
        if not made:
            made.append(PageFile(render(app.openapi()).encode(), "text/html"))
        return made[0].answer(request)


def render(schema: Mapping[str, Any]) -> str:
    """Render the page of an OpenAPI schema."""
    operations = [
        (method.upper(), path, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    index = "".join(
        f'<li><a href="#{_anchor(method, path)}"><code>{method} {escape(path)}</code></a> '
        f"{_text(operation.get('description', ''))}</li>\n"
        for method, path, operation in operations
    )
    objects = schema["components"]["schemas"]
    parts = [
        '<p class="quiet">The schema: <a href="/openapi.json"><code>/openapi.json</code></a></p>\n',
        f"<ul>\n{index}</ul>\n",
        *(_operation(*each) for each in operations),
        "<h2>Objects</h2>\n",
        *(
            f'<section id="{escape(name)}">\n<h3><code>{escape(name)}</code></h3>\n'
            f"<p>{_text(each.get('description', ''))}</p>\n{_fields(each)}</section>\n"
            for name, each in objects.items()
        ),
    ]
    return f"{_HEAD}{''.join(parts)}</main>\n</body>\n</html>\n"


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    bodies = operation.get("requestBody", {}).get("content", {})
    taken = ", ".join(f"{_type(each['schema'])} as <code>{escape(kind)}</code>" for kind, each in bodies.items())
    inputs = "".join(
        f"<tr><td><code>{escape(each['name'])}</code></td><td>{_type(each['schema'])}</td>"
        f"<td>in the {each['in']}</td></tr>\n"
        for each in operation.get("parameters", ())
    )
    answers = "".join(
        f"<tr><td>{status}</td><td>{', '.join(_answers(each))}</td><td>{_text(each['description'])}</td></tr>\n"
        for status, each in operation["responses"].items()
    )
    return (
        f'<section id="{_anchor(method, path)}">\n<h2><code>{method} {escape(path)}</code></h2>\n'
        f"<p>{_text(operation.get('description', ''))}</p>\n"
        + (f"<p>Body: {taken}</p>\n" if taken else "")
        + (f"<table>\n{inputs}</table>\n" if inputs else "")
        + f"<table>\n<tr><th>status</th><th>body</th><th></th></tr>\n{answers}</table>\n</section>\n"
    )


def _answers(answer: Mapping[str, Any]) -> Iterator[str]:
    for kind, each in answer.get("content", {}).items():
        shown = "" if kind == "application/json" else f" as <code>{escape(kind)}</code>"
        yield f"{_type(each.get('schema', {}))}{shown}"


def _fields(schema: Mapping[str, Any]) -> str:
    """Render the table of an object's members."""
    required = schema.get("required", ())
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{_type(each)}{', required' if name in required else ''}</td>"
        f"<td>{_text(each.get('description', ''))}</td></tr>\n"
        for name, each in schema.get("properties", {}).items()
    )
    return f"<table>\n<tr><th>member</th><th>type</th><th></th></tr>\n{rows}</table>\n" if rows else ""


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type of a value as HTML, with links for objects. Null is omitted, since it means absent."""
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(_REFERENCE))
        return f'<a href="#{name}"><code>{name}</code></a>'
    for kind in ("anyOf", "oneOf", "allOf"):
        if kind in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[kind] if each.get("type") != "null"))
    if "const" in schema or "enum" in schema:
        return _values(schema.get("enum", [schema.get("const")]))
    found = escape(str(schema.get("type", "any")))
    if found == "array" and "items" in schema:
        found = f"list of {_type(schema['items'])}"
    bounds = [
        text.format(f"{schema[name]:g}")
        for name, text in _BOUNDS.items()
        if isinstance(schema.get(name), int | float) and abs(schema[name]) < _LARGEST
    ]
    return ", ".join([found, *bounds])


def _values(values: Sequence[Any]) -> str:
    return " or ".join(f"<code>{escape(str(each))}</code>" for each in values)


def _text(text: str) -> str:
    """Return the first paragraph of a Markdown description as HTML."""
    text = text.partition("\n\n")[0]
    return _CODE.sub(r"<code>\1</code>", escape(text, quote=False))


def _anchor(method: str, path: str) -> str:
    return escape(f"{method}{path}".lower())
