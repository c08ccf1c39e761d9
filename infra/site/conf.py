"""Sphinx's configuration of the documentation site, which `make site` builds.

The pages are the Markdown files of the repository as they are: README, ARCHITECTURE, CONTRIBUTING, CHANGELOG and
`docs/`. `contents.md` orders them by task. Every broken link and anchor is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

project = "keyfold"
author = "keyfold"
copyright = "the authors of keyfold"  # noqa: A001 - Sphinx's name
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "docs/README"
include_patterns = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**", "infra/**/README.md"]
myst_heading_anchors = 4
nitpicky = True
html_theme = "furo"
html_title = "keyfold"
html_show_sourcelink = False
html_copy_source = False
html_additional_pages = {"index": "start.html"}
templates_path = ["templates"]
pygments_style = "default"
highlight_language = "none"


def _add_contents(_app: Any, name: str, source: list[str]) -> None:
    if name == root_doc:
        source[0] += "\n" + Path(__file__).with_name("contents.md").read_text(encoding="utf-8")


def setup(app: Any) -> None:
    """Add the table of contents to the first page, so that the page itself stays plain Markdown."""
    app.connect("source-read", _add_contents)
