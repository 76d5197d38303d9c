"""The documentation as a site, by Sphinx: `make docs` builds it into build/site, where any warning is an error.

The source folder is the repository's root, so that a link means the same on the site and where the repository is
browsed: pages link to pages, headings and files of any folder, and Sphinx checks that they exist. The README is the
first page.
"""

from __future__ import annotations

import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

from docutils.nodes import Element, document
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

from speculant import __version__

# What the side bar lists. A page that is in none of the lists is an error.
NAVIGATION = {
    "Guides": [
        "docs/quickstart",
        "docs/methods",
        "docs/serving",
        "docs/memory",
        "docs/training",
        "docs/architecture",
    ],
    "Notebooks": [
        "docs/notebooks/first-steps",
        "docs/notebooks/your-own-logs",
        "docs/notebooks/train-a-head",
    ],
    "How to": [
        "docs/measuring",
        "docs/write-a-drafter",
        "docs/engines",
        "docs/quantised",
        "docs/retrieval",
        "docs/vllm",
        "docs/sglang",
        "docs/scaling",
        "docs/speed",
    ],
    "Reference": [
        "docs/lossless",
        "docs/cli",
        "docs/options",
        "docs/method-settings",
        "docs/server-api",
        "docs/architectures",
        "docs/design",
        "docs/api/library",
        "docs/api/options",
        "docs/api/contracts",
    ],
    "Measurements": [
        "docs/aded",
        "benchmarks/*",
        "models/stories/README",
    ],
    "Project": [
        "CONTRIBUTING",
        "CHANGELOG",
    ],
}

project = "Speculant"
version = release = __version__
copyright = "the authors of Speculant. Apache-2.0"
root_doc = "README"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/**",
    "benchmarks/*.md",
    "models/stories/*.md",
]
exclude_patterns = [".*", "**/.ipynb_checkpoints", "build"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinxcontrib.mermaid"]
html_theme = "furo"
html_title = f"Speculant {version}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
highlight_language = "none"  # of code whose language is not named

myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4  # headings are linked to by the names that GitHub gives them
nb_execution_mode = "cache"  # a notebook is executed where it is new or changed
nb_execution_cache_path = "build/notebooks"
nb_execution_timeout = 300  # seconds for a cell
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove"  # progress bars

toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
autodoc_type_aliases = {name: name for name in ("Bool", "Float32", "Float64", "Int32", "Int64")}  # of numpy arrays
python_maximum_signature_line_length = 88
default_role = "py:obj"  # names between backticks are links where they are documented, and code elsewhere
# Sections list "name: phrase" or "name, name: phrase"; types stand in the signature.
napoleon_numpy_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]


def add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Append the side bar's lists to the README, which has none where the repository is browsed."""
    if name == root_doc:
        for caption, pages in NAVIGATION.items():
            head = f"\n\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n:maxdepth: 1\n\n"
            source[0] += head + "\n".join(pages) + "\n```\n"


def unlink_folders(app: Sphinx, page: document) -> None:
    """Leave links to folders of the repository as text, since a site has no page for them."""
    here = Path(app.env.doc2path(app.env.docname)).parent
    for link in [*page.findall(pending_xref)]:
        if link["reftype"] == "myst" and not link["refdomain"] and (here / link["reftarget"]).is_dir():
            link.replace_self(link.children)


def find_class(app: Sphinx, env: BuildEnvironment, link: pending_xref, text: Element) -> Element | None:
    """Return a link to the class that a docstring names without its module, or None."""
    name = link["reftarget"].rpartition(".")[2]
    if link["reftype"] != "obj" or not name[:1].isupper():
        return None
    found = [(full, each) for full, each in env.domains.python_domain.objects.items() if full.endswith(f".{name}")]
    if len(found) != 1:
        return None
    [(full, each)] = found
    return make_refnode(app.builder, link["refdoc"], each.docname, each.node_id, text, full)


def mark_code(app: Sphinx, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """Mark what is indented after a blank line as code, as it is in Markdown."""
    marked: list[str] = []
    for before, line in pairwise(["", *lines]):
        if not before.strip() and line.startswith("    "):
            marked += ["::", ""]
        marked.append(line)
    lines[:] = marked


def shorten(
    app: Sphinx, what: str, name: str, of: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """Return a signature without what says nothing: arguments of protocols, factories of defaults, wrapped aliases."""
    if signature is None:
        return None
    if signature == "(*args, **kwargs)":
        return "", returned
    bare = re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", signature)
    return bare.replace("<factory>", "..."), returned


def add_front_page(app: Sphinx, error: Exception | None) -> None:
    """Copy the first page to index.html, which servers send for the folder."""
    if error is None and app.builder.name == "html":
        shutil.copyfile(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> None:
    """Connect the functions above with Sphinx's events."""
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", unlink_folders)
    app.connect("missing-reference", find_class)
    app.connect("autodoc-process-docstring", mark_code, priority=400)  # before napoleon reads the sections
    app.connect("autodoc-process-signature", shorten)
    app.connect("build-finished", add_front_page)
