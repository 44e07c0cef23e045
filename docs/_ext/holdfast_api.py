"""How the API reference reads: short types, no empty signatures, lists of parameters, a table of names per module."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import is_dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import sphinx.util.typing
from numpy.typing import ArrayLike
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

from holdfast.settings import training

ARRAY_LIKE = frozenset(get_args(ArrayLike))
FIELD = r"[a-z_]\w*(?:, [a-z_]\w*)*: "
LEAST = 3
"""Fewer names are seen without a table."""
stringify = sphinx.util.typing.stringify_annotation
restructure = sphinx.util.typing.restify


def plain_type(annotation: Any, *args: Any, **kwargs: Any) -> str:
    """An annotation without what tyro reads in it, and with numpy's ``ArrayLike`` by its name, not as its ten types."""
    if get_origin(annotation) is Annotated:
        return plain_type(get_args(annotation)[0], *args, **kwargs)
    members = get_args(annotation) if isinstance(annotation, UnionType) or get_origin(annotation) is Union else ()
    if {*members} >= ARRAY_LIKE:
        kept = [plain_type(member, *args, **kwargs) for member in members if member not in ARRAY_LIKE]
        where = len(kept) - (kept[-1:] == ["None"])
        return " | ".join([*kept[:where], "ArrayLike", *kept[where:]])
    return stringify(annotation, *args, **kwargs)


def plain_alias(annotation: Any, *args: Any, **kwargs: Any) -> str:
    """The same for what a name is an alias of."""
    bare = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return restructure(bare, *args, **kwargs)


def shorten_types() -> None:
    """Sphinx has no setting for it: autodoc_type_aliases does not reach into unions."""
    for module in [*sys.modules.values()]:
        if getattr(module, "stringify_annotation", None) is stringify:
            module.stringify_annotation = plain_type  # type: ignore[attr-defined]
        if getattr(module, "restify", None) is restructure:
            module.restify = plain_alias  # type: ignore[attr-defined]


def shorten_signature(
    _app: Any, what: str, _name: str, obj: Any, _options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None] | None:
    """No signature where it says nothing, and values instead of the constants that defaults are written with."""
    if what == "class" and (signature == "(*args, **kwargs)" or is_settings(obj)):
        return "", None
    if signature is None:
        return None
    known = vars(sys.modules.get(getattr(obj, "__module__", ""), object))
    plain = (int, float, str, tuple)

    def value(found: re.Match[str]) -> str:
        return f"= {known[found[1]]!r}" if isinstance(known.get(found[1]), plain) else found[0]

    short = re.sub(r"= ([A-Z][A-Z_]+)\b(?!\.)", value, signature)
    short = re.sub(r"<factory>", "...", short)  # Sphinx cannot parse what stands in angle brackets
    return re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", short), returned


def is_settings(obj: Any) -> bool:
    """Whether every field is listed below the class, with what it is for."""
    return is_dataclass(obj) and getattr(obj, "__module__", "").startswith("holdfast.settings.")


def put_help() -> None:
    """Settings that have no text below them, because several commands share the words, get what help says of them."""
    analyzer = ModuleAnalyzer.for_module(training.__name__)
    analyzer.analyze()
    for kind in filter(is_settings, vars(training).values()):
        for field, hint in get_type_hints(kind, include_extras=True).items():
            told = [said.help for said in getattr(hint, "__metadata__", ()) if getattr(said, "help", None)]
            if told:
                analyzer.attr_docs.setdefault((kind.__name__, field), [*told, ""])


def link_pages(_app: Any, what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Pages that a docstring names become links; "Open this file ..." is for those who read the file."""
    text = re.sub(r"`{0,2}docs/([a-z-]+/[\w-]+)\.md`{0,2}", r":doc:`/\1`", "\n".join(lines))
    if what == "module":
        text = re.sub(r"\s+Open this file [^.]*\.(?=\s|$)", "", text)
    lines[:] = text.split("\n")


def list_fields(_app: Any, _what: str, _name: str, obj: Any, _options: Any, lines: list[str]) -> None:
    """Turn our paragraphs of ``name: what it is`` into definition lists; a name may stand within a line."""
    known, takes_more = fields_of(obj)
    made: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        text = " ".join(paragraph.split("\n"))
        inner = re.finditer(rf"(?<=[.)] )({FIELD})(?=\S)", text)
        starts = [found.start() for found in inner if takes_more or {*found[1][:-2].split(", ")} <= known]
        if made and re.match(FIELD + r"\S", paragraph):
            made += _defined(text, [0, *starts])
        elif starts and re.match(r"[\w`(]", paragraph):
            made += [text[: starts[0]].rstrip(), "", *_defined(text, starts)]
        else:
            made += [*paragraph.split("\n"), ""]
    lines[:] = made


def fields_of(obj: Any) -> tuple[set[str], bool]:
    """Parameters of a function, or parameters and fields of a class; and whether it takes further keywords."""
    own = {name for base in getattr(obj, "__mro__", ()) for name in getattr(base, "__annotations__", ())}
    own |= {name for name, value in vars(obj).items() if isinstance(value, property)} if own else set()
    try:
        given = inspect.signature(obj).parameters
    except (TypeError, ValueError):
        return own, False
    return own | {*given}, inspect.isfunction(obj) and any(one.kind is one.VAR_KEYWORD for one in given.values())


def _defined(text: str, starts: list[int]) -> list[str]:
    """One definition per field of a paragraph."""
    made: list[str] = []
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        name, _, about = text[start:end].strip().partition(": ")
        made += [f"``{name}``", f"    {about}", ""]
    return made


def put_names(_app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Below the text of a module, a table of what it offers, each with the first sentence about it."""
    found = public(obj) if what == "module" and getattr(options, "members", None) else {}
    left_out = getattr(options, "exclude_members", None) or ()
    found = {short: own for short, own in found.items() if short not in left_out}
    if len(found) < LEAST:
        return
    lines += ["", ".. list-table::", "   :widths: auto", "   :class: names", ""]
    for short, own in sorted(found.items(), key=lambda item: (inspect.isclass(item[1]), item[0].lower())):
        lines += [f"   * - :py:obj:`{short} <{name}.{short}>`", f"     - {first_sentence(own.__doc__ or '')}"]
    lines.append("")


def first_sentence(text: str) -> str:
    """The first sentence of a docstring."""
    paragraph = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    return re.split(rf"(?<=\.) (?={FIELD}|[A-Z`])", paragraph, maxsplit=1)[0]


def public(module: Any) -> dict[str, Any]:
    """The functions and classes that a module offers: its ``__all__`` or, without one, what it defines."""
    names = getattr(module, "__all__", None)
    found = {name: getattr(module, name) for name in (vars(module) if names is None else names)}
    ours = (name for name, own in found.items() if inspect.isfunction(own) or inspect.isclass(own))
    return {
        name: found[name]
        for name in ours
        if not name.startswith("_") and (names is not None or found[name].__module__ == module.__name__)
    }


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", lambda _app: (shorten_types(), put_help()))
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-process-docstring", link_pages)
    app.connect("autodoc-process-docstring", list_fields)
    app.connect("autodoc-process-docstring", put_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
