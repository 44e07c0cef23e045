"""Sphinx settings; ``make docs`` builds with every warning an error."""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import holdfast.settings
from holdfast import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
import_module("holdfast_docs").remember_help()  # before the types of settings are simplified below

project = "holdfast"
author = "the holdfast authors"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "holdfast_docs"]
exclude_patterns = ["_build", "llms.md"]
myst_enable_extensions = ["colon_fence", "attrs_block"]
myst_heading_anchors = 3
smartquotes = False  # it makes one long dash of the two of a flag

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"holdfast {__version__}"
html_static_path = ["_static"]
html_css_files = ["flags.css", "cards.css"]


class Bare:
    """Stands in for ``Annotated`` and its like: what tyro reads in the settings is noise in a reference."""

    def __class_getitem__(cls, item: Any) -> Any:
        return item[0] if isinstance(item, tuple) else item


for module in iter_modules(holdfast.settings.__path__, "holdfast.settings."):
    for name in ("Annotated", "OmitArgPrefixes", "Suppress"):
        if hasattr(import_module(module.name), name):
            setattr(import_module(module.name), name, Bare)


FIELD = r"[a-z_]\w*(?:, [a-z_]\w*)*: "


def list_fields(_app: Any, _what: str, _name: str, obj: Any, _options: Any, lines: list[str]) -> None:
    """Turn our paragraphs of ``name: what it is`` into definition lists; a name may stand within a line."""
    try:
        known = set(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        known = set()
    made: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        if made and re.match(FIELD + r"\S", paragraph):
            made += _defined(" ".join(paragraph.split("\n")), known)
        else:
            made += [*paragraph.split("\n"), ""]
    lines[:] = made


def _defined(text: str, known: set[str]) -> list[str]:
    """A definition per field: what the paragraph begins with, and those after a full stop that are parameters."""
    starts = [0]
    for found in re.finditer(rf"(?<=[.)] )({FIELD})(?=\S)", text):
        if {*found[1].removesuffix(": ").split(", ")} <= known:
            starts.append(found.start())
    made: list[str] = []
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        name, _, about = text[start:end].strip().partition(": ")
        made += [f"``{name}``", f"    {about}", ""]
    return made


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", list_fields)
