"""Which output of a model stands for which class of the data: matched by name, never by position unawares."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from holdfast.errors import HoldfastError, cut, require, require_known
from holdfast.printable import printable

ORDER: Final = "order"
"""The class map that says: output 0 is the data's first class, and so on."""
SHOWN = 12

Target = str | int | Sequence[str | int]
"""A model class by name or output number, or several that together stand for one class of the data."""
ClassMap = Mapping[str, Target]


@dataclass(frozen=True)
class ClassMatch:
    """kind: "full" (every class has outputs and every output a class), "partial", or "order" (assumed or asked for).
    data, model: names of the data's classes and of the outputs. columns: the outputs of each class of the data, none
    where the model does not know it. how: by what they were matched, for the record. assumed: in order, since nobody
    says otherwise."""

    kind: str
    data: tuple[str, ...]
    model: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]
    how: str
    assumed: bool = False

    @property
    def known(self) -> tuple[int, ...]:
        """Classes of the data that have outputs."""
        return tuple(i for i, own in enumerate(self.columns) if own)

    @property
    def missing(self) -> tuple[str, ...]:
        """Classes of the data that the model does not know."""
        return tuple(name for name, own in zip(self.data, self.columns, strict=True) if not own)

    @property
    def extra(self) -> tuple[int, ...]:
        """Outputs that stand for no class of the data."""
        used = {column for own in self.columns for column in own}
        return tuple(i for i in range(len(self.model)) if i not in used)

    @property
    def moved(self) -> bool:
        """Whether any output has to change its place."""
        return self.columns != tuple((i,) for i in range(len(self.model)))

    def selection(self, reading: str) -> tuple[tuple[int, ...], ...]:
        """Outputs of each class of a reading: the known classes in the data's order; for "all", then every other
        output as a class of its own."""
        own = tuple(self.columns[i] for i in self.known)
        return own + tuple((i,) for i in self.extra) if reading == "all" else own

    def names(self, reading: str) -> tuple[str, ...]:
        """Class names of a reading. An output that shares its name with a class of the data says that it is another."""
        own = tuple(self.data[i] for i in self.known)
        named = ((i, self.model[i]) for i in self.extra)
        others = tuple(name if name not in self.data else f"{name} ({i})" for i, name in named)
        return own + others if reading == "all" else own

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(class of the data, what it is to the model), for printing and the record."""
        return tuple(
            (name, " + ".join(f"{self.model[i]} [{i}]" for i in own) or "unknown to the model")
            for name, own in zip(self.data, self.columns, strict=True)
        )

    def describe(self) -> str:
        """The mapping in one line; long ones are cut."""
        shown = [f"{printable(a)} = {printable(b)}" for a, b in self.pairs()[:SHOWN]]
        rest = len(self.data) - len(shown)
        return ", ".join(shown) + (f", and {rest} more" if rest > 0 else "")


def match_classes(
    data: Sequence[str],
    model: Sequence[str] | None,
    *,
    outputs: int,
    aliases: Sequence[Sequence[str]] = (),
    class_map: ClassMap | str | None = None,
) -> ClassMatch:
    """Match the data's classes with a model's outputs.

    data: names of the classes of the data. model: names of the outputs, None where nobody knows them; aliases: further
    names of each. outputs: how many there are. class_map: what the user says, ``"order"`` for position by position;
    it wins over names.
    """
    data = tuple(data)
    names = tuple(model) if model is not None else tuple(f"output {i}" for i in range(outputs))
    in_order = tuple((i,) for i in range(outputs))
    if model is None and (class_map is None or class_map == ORDER):
        require(
            outputs == len(data),
            f"the model gives {outputs} outputs per image and does not name them; the data has {len(data)} classes "
            f"({some(data, 3)}). Are these features rather than logits? If not, say which output is which class with "
            "--class-map FILE",
        )
    if isinstance(class_map, str):
        require(class_map == ORDER, f"class_map must be a mapping or {ORDER!r}, got {class_map!r}")
        count = f"the model gives {outputs}, the data has {len(data)}"
        require(outputs == len(data), f"class map {ORDER!r} needs as many outputs as classes; {count}")
        return ClassMatch(ORDER, data, names, in_order, "in order, as asked")
    if class_map is not None:
        return _by_map(data, names, outputs, class_map)
    if model is None:
        how = "in order, assumed since the outputs have no names"
        return ClassMatch(ORDER, data, names, in_order, how, assumed=True)
    require(
        len(names) == outputs,
        f"the model names {len(names)} classes but gives {outputs} outputs per image; say which output is which class "
        "with --class-map FILE",
    )
    return _by_name(data, names, aliases)


def read_class_map(path: str | Path) -> ClassMap:
    """A class map from a JSON file: {class of the data: model class, output number, or a list of these}."""
    path = Path(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HoldfastError(f"cannot read class map {printable(path)}: {error.strerror}") from error
    except ValueError as error:
        raise HoldfastError(f"class map {printable(path)} is not valid JSON ({error})") from error
    good = isinstance(found, dict) and all(
        isinstance(value, str | int | list)
        and value != []
        and all(isinstance(one, str | int) for one in targets(value))
        for value in found.values()
    )
    require(good, f'class map {printable(path)} must be like {{"cat": "tabby cat", "dog": 207, "bird": [10, 11]}}')
    return found  # type: ignore[no-any-return]


def simple(name: str) -> str:
    """A name without what spelling varies in: case, accents' encoding, underscores, hyphens and spaces.

    >>> simple("Great_White-shark")
    'great white shark'
    """
    return re.sub(r"[\s_\-]+", " ", unicodedata.normalize("NFKC", printable(name))).strip().casefold()


def _by_name(data: tuple[str, ...], names: tuple[str, ...], aliases: Sequence[Sequence[str]]) -> ClassMatch:
    others = [tuple(own) for own in aliases] or [()] * len(names)
    levels = [
        index_names((name, i) for i, name in enumerate(names)),
        index_names((simple(name), i) for i, name in enumerate(names)),
        index_names((simple(other), i) for i, own in enumerate(others) for other in own),
    ]
    columns = tuple(_find(name, levels) for name in data)
    owners = defaultdict(list)
    for name, own in zip(data, columns, strict=True):
        for column in own:
            owners[column].append(name)
    for column, claimed in owners.items():
        require(
            len(claimed) == 1,
            f"the data's classes {' and '.join(map(repr, claimed))} both fit the model's {names[column]!r}; "
            "say which is meant with --class-map FILE",
        )
    require(
        any(columns),
        f"none of the data's {len(data)} classes ({some(data, 3)}) is among "
        f"the model's {len(names)} ({some(names, 3)}); say which is which with --class-map FILE"
        + (f", or --class-map {ORDER}" if len(names) == len(data) else ""),
    )
    return _make(data, names, columns, "by name")


def _find(name: str, levels: Sequence[Mapping[str, set[int]]]) -> tuple[int, ...]:
    """The one output of that name, at the strictest level where there is any; several are none."""
    for spelling, level in zip((name, simple(name), simple(name)), levels, strict=True):
        if found := level.get(spelling):
            return tuple(found) if len(found) == 1 else ()
    return ()


def index_names(pairs: Iterable[tuple[str, int]]) -> dict[str, set[int]]:
    index: dict[str, set[int]] = defaultdict(set)
    for name, i in pairs:
        index[name].add(i)
    return dict(index)


def _by_map(data: tuple[str, ...], names: tuple[str, ...], outputs: int, class_map: ClassMap) -> ClassMatch:
    for name in class_map:
        require_known("class of the data in the class map", name, data)
    numbers = index_names((name, i) for i, name in enumerate(names[:outputs]))
    columns = tuple(
        tuple(_column(target, numbers, outputs) for target in targets(class_map[name])) if name in class_map else ()
        for name in data
    )
    used = [column for own in columns for column in own]
    twice = sorted({column for column in used if used.count(column) > 1})
    require(not twice, f"the class map uses output {', '.join(map(str, twice))} more than once; each has one class")
    require(bool(used), "the class map is empty; name at least one class of the data")
    padded = (*names[:outputs], *(f"output {i}" for i in range(len(names), outputs)))
    return _make(data, padded, columns, "by the class map")


def _column(target: str | int, numbers: Mapping[str, set[int]], outputs: int) -> int:
    if isinstance(target, int):
        require(0 <= target < outputs, f"the class map names output {target}; the model has 0 to {outputs - 1}")
        return target
    require_known("class of the model in the class map", target, numbers)
    found = sorted(numbers[target])
    require(len(found) == 1, f"the model has {len(found)} classes named {target!r}; give the number, one of {found}")
    return found[0]


def _make(data: tuple[str, ...], names: tuple[str, ...], columns: tuple[tuple[int, ...], ...], how: str) -> ClassMatch:
    match = ClassMatch("full", data, names, columns, how)
    return replace(match, kind="partial") if match.missing or match.extra else match


def targets(target: Target) -> Sequence[str | int]:
    return [target] if isinstance(target, str | int) else target


def some(names: Iterable[str], most: int = 5) -> str:
    """The first names of a list that may be long.

    >>> some("abc", 2), some("ab", 2)
    ('a, b, ...', 'a, b')
    """
    every = [cut(printable(name), 100) for name in names]
    return ", ".join(every[:most]) + (", ..." if len(every) > most else "")
