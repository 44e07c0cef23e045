"""Labels and groups from the names of files, such as UTKFace's ``<age>_<gender>_<race>_<time>.jpg``.

A pattern names the parts of a name; a rule makes classes of a part. Rules are a small language of their own: nothing
of them is ever run as code.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from holdfast.data.listing import SPLIT_FOLDERS, Listing, ReaderOptions, Row, images_under, list_files
from holdfast.errors import HoldfastError, require, require_known
from holdfast.parts import reader
from holdfast.printable import printable
from holdfast.types import Note

FIELD = re.compile(r"\{(\w+)\}")
COMPARISON = re.compile(r"(\w+)\s*(>=|<=|==|!=|>|<)\s*(.+)")
BINS = re.compile(r"(\w+)\s*:\s*([-+.\d]+(?:\s*,\s*[-+.\d]+)*)")
MEMBERS = re.compile(r"(\w+)\s+in\s+(.+)")


@reader(
    "file-names",
    about="A folder of images whose names say label and group, with --names, --label and --group.",
    recognises=Path.is_dir,
    takes=("names", "label", "group"),
    order=910,  # every folder could be one: only where rules are given
)
def read_file_names(folder: Path, options: ReaderOptions) -> Listing:
    """Images below a folder, or below its train, val and test folders; names that do not fit are left out, and
    counted in a note.

    names: a template such as "{age}_{gender}_", or a regular expression with named groups. label, group: a part
    ("gender"), a comparison ("age>=40"), ranges ("age: 20, 40, 60"), members ("race in 0, 2"), or several crossed with
    * ("gender * race").
    """
    require(bool(options.names), 'labels from file names need a pattern: give names, such as "{age}_{gender}_"')
    require(bool(options.label), 'labels from file names need a rule: give label, such as "age>=40" or "gender"')
    pattern = compile_names(options.names or "")
    fields = list(pattern.groupindex)
    label = compile_rule(options.label or "", fields)
    group = compile_rule(options.group, fields) if options.group else None
    found: dict[str, list[Row]] = {"train": []}
    odd: list[str] = []
    for split, where in _parts(folder):
        own = found.setdefault(split, [])
        for path in images_under(where):
            match = pattern.match(Path(path).name)
            if match is None:
                odd.append(path)
                continue
            parts = match.groupdict(default="")
            own.append((path, label(parts), group(parts) if group else ""))
    notes = []
    if odd:
        text = f"{len(odd)} names do not fit {options.names!r} and are left out, such as {printable(odd[0])}"
        notes.append(Note("names-left-out", text))
    return list_files(folder.resolve().name, found, notes=notes)


def compile_names(names: str) -> re.Pattern[str]:
    """A template or a regular expression as a pattern that is matched at the start of a name.

    >>> compile_names("{age}_{gender}_").match("31_1_2_2017.jpg").groupdict()
    {'age': '31', 'gender': '1'}
    """
    if FIELD.search(names) and "(?P<" not in names:
        parts = FIELD.split(names)
        # text and fields by turns; a field is as short as it can be, and the last may run to the end
        names = "".join(re.escape(p) if i % 2 == 0 else f"(?P<{p}>[^/]+?)" for i, p in enumerate(parts))
        names += r"(?:\.\w+)?$" if parts[-1] == "" else ""
    try:
        pattern = re.compile(names)
    except re.error as error:
        raise HoldfastError(f"names {names!r} is not a pattern ({error}); write it as {{age}}_{{gender}}_") from error
    remedy = "write parts in braces, such as {age}_{gender}_"
    require(bool(pattern.groupindex), f"names {names!r} names no part of a file name; {remedy}")
    return pattern


Rule = Callable[[dict[str, str]], str]


def compile_rule(text: str, fields: list[str]) -> Rule:
    """What makes a class of the parts of a name.

    >>> rule = compile_rule("age: 20, 40", ["age"])
    >>> [rule({"age": age}) for age in ("7", "20", "63")]
    ['age<20', '20<=age<40', 'age>=40']
    """
    terms = [term.strip() for term in text.split("*")]
    rules = [_term(term, fields) for term in terms]
    return rules[0] if len(rules) == 1 else lambda parts: ", ".join(rule(parts) for rule in rules)


def _term(text: str, fields: list[str]) -> Rule:
    if match := BINS.fullmatch(text):
        cuts = [cut.strip() for cut in match[2].split(",")]
        return _ranges(_known(match[1], fields), cuts, ">=", f"the ranges of {match[1]}")
    if match := MEMBERS.fullmatch(text):
        field, members = _known(match[1], fields), {member.strip() for member in match[2].split(",")}
        return lambda parts: f"{'' if parts[field] in members else 'not '}{text}"
    if match := COMPARISON.fullmatch(text):
        field, sign, value = _known(match[1], fields), match[2], match[3].strip()
        if sign in ("==", "!="):
            return lambda parts: f"{field}{'==' if parts[field] == value else '!='}{value}"
        return _ranges(field, [value], ">=" if sign in (">=", "<") else ">", f"the rule {field}{sign}{value}")
    kinds = "a part (gender), a comparison (age>=40), ranges (age: 20, 40) or members (race in 0, 2)"
    require(re.fullmatch(r"\w+", text) is not None, f"cannot read the rule {text!r}; write {kinds}")
    field = _known(text, fields)
    return lambda parts: parts[field]


def _ranges(field: str, cuts: list[str], sign: str, what: str) -> Rule:
    """A class between every two cuts. sign: >= or >, whether a value that is a cut belongs above it."""
    bounds = [_number(cut, what) for cut in cuts]
    require(bounds == sorted(set(bounds)), f"{what} must rise, got {', '.join(cuts)}")
    below, place = ("<", bisect_right) if sign == ">=" else ("<=", bisect_left)
    inner = [f"{low}<={field}<{high}" for low, high in pairwise(cuts)]
    labels = [f"{field}{below}{cuts[0]}", *inner, f"{field}{sign}{cuts[-1]}"]
    return lambda parts: labels[place(bounds, _number(parts[field], f"a file name whose {field} is {parts[field]!r}"))]


def _known(name: str, fields: list[str]) -> str:
    require_known("part of file names", name, fields)
    return name


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise HoldfastError(f"{text!r} in {what} is not a number; correct the rule or the name") from error


def _parts(folder: Path) -> list[tuple[str, Path]]:
    subs = [sub for sub in sorted(folder.iterdir()) if sub.is_dir() and sub.name.lower() in SPLIT_FOLDERS]
    if not any(SPLIT_FOLDERS[sub.name.lower()] == "train" for sub in subs):
        return [("train", folder)]
    return [(SPLIT_FOLDERS[sub.name.lower()], sub) for sub in subs]
