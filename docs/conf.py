"""Sphinx settings; ``make docs`` builds with every warning an error."""

import re
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import holdfast.settings
from holdfast import __version__

project = "holdfast"
author = "the holdfast authors"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
smartquotes = False  # it makes one long dash of the two of a flag

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"holdfast {__version__}"


class Bare:
    """Stands in for ``Annotated`` and its like: what tyro reads in the settings is noise in a reference."""

    def __class_getitem__(cls, item: Any) -> Any:
        return item[0] if isinstance(item, tuple) else item


for module in iter_modules(holdfast.settings.__path__, "holdfast.settings."):
    for name in ("Annotated", "OmitArgPrefixes", "Suppress"):
        if hasattr(import_module(module.name), name):
            setattr(import_module(module.name), name, Bare)


def list_fields(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Turn our paragraphs of ``name: what it is`` lines into definition lists."""
    made: list[str] = []
    inside = False
    for before, line in zip(["", *lines], lines, strict=False):
        field = re.match(r"([a-z_]\w*(?:, [a-z_]\w*)*): (\S.*)", line)
        inside = bool(line) and (inside or (bool(made) and not before and field is not None))
        if inside and field:
            made += ["", f"``{field[1]}``", f"    {field[2]}"]
        else:
            made.append(f"    {line}" if inside else line)
    lines[:] = made


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", list_fields)
