"""How Sphinx builds the site: `make docs`."""

from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from softwarp.explorer import page

project = "softwarp"
author = "The softwarp developers"
version = release = installed("softwarp")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
exclude_patterns = ["_build"]
highlight_language = "none"  # most blocks are commands
html_theme = "furo"
html_title = "softwarp"

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = {"math"}
myst_heading_anchors = 3  # links to headings, as they work on GitHub

default_role = "literal"  # `name` in a docstring is code
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "forward"}


def setup(app: Any) -> None:
    """Leave lengths like |e - p| alone, which Sphinx would take for substitutions; add the explorer."""

    def escape(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
        lines[:] = [line.replace("|", r"\|") for line in lines]

    def write_explorer(app: Any, _error: Exception | None) -> None:
        (Path(app.outdir) / "explorer_page.html").write_text(page(), encoding="utf-8")

    app.connect("autodoc-process-docstring", escape, priority=1000)
    app.connect("build-finished", write_explorer)
