"""MetaShift, cat against dog (Liang and Zou, 2022): ``train/`` and ``val_out_of_domain/`` with cat/ and dog/, and a
table of the contexts that every image belongs to, such as ``cat(sofa)``.

The published table is a pickle, of which no code can run; a JSON file of the same content is taken instead where there
is one. Image to contexts, or a context to its images: both are in use.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from holdfast.data.listing import Listing, ReaderOptions, Row, images_under, list_files
from holdfast.data.plain_pickles import load_plain
from holdfast.errors import HoldfastError, brief, cut
from holdfast.parts import reader
from holdfast.printable import printable
from holdfast.types import Note

TEST = "val_out_of_domain"
TABLE = "imageID_to_group"
CLASSES = ("cat", "dog")
CONTEXT = re.compile(r"\w+\((.+)\)")
CONTAINERS = {f"{kind.__module__}.{kind.__name__}": kind for kind in (defaultdict, OrderedDict, set, list)}


def recognised(folder: Path) -> bool:
    return all((folder / part / name).is_dir() for part in ("train", TEST) for name in CLASSES)


@reader(
    "metashift",
    about="MetaShift, cat against dog; groups are contexts such as sofa or bench.",
    names=("metashift",),
    recognises=recognised,
    order=52,
)
def read_metashift(source: str | Path, options: ReaderOptions) -> Listing:
    """Groups are contexts; an image in several is in the first, one in none has no group."""
    folder = options.published(source, ("metashift", "MetaShift", ""), recognised)
    tables = (where / f"{TABLE}{end}" for where in (folder, folder.parent) for end in (".json", ".pkl"))
    table = next(filter(Path.is_file, tables), None)
    contexts = {} if table is None else _parse(table)
    text = f"no {TABLE}.json or .pkl in {printable(folder)}: the groups of its images are not known"
    rows: dict[str, list[Row]] = {"train": [], "test": []}
    for (split, part), name in product((("train", "train"), ("test", TEST)), CLASSES):
        paths = images_under(folder / part / name)
        rows[split] += ((path, name, contexts.get(Path(path).stem, "")) for path in paths)
    notes = [] if table else [Note("groups-unknown", text)]
    return list_files("metashift", rows, classes=CLASSES, attribute="context", notes=notes)


def _parse(path: Path) -> dict[str, str]:
    try:
        content = path.read_bytes()
        table = json.loads(content) if path.suffix == ".json" else load_plain(io.BytesIO(content), _find)
    except OSError as error:
        raise HoldfastError(f"cannot read {printable(path)}: {error.strerror}; make it readable") from error
    except Exception as error:  # a damaged pickle raises nearly anything
        why = f"({cut(printable(str(error)))}): only plain dicts, lists and text are read; write it as {TABLE}.json"
        raise HoldfastError(f"{printable(path)} is refused {why}") from error
    if not isinstance(table, Mapping):
        raise HoldfastError(f"{printable(path)} does not hold a dict of image to groups; take the published file")
    if table and all(CONTEXT.fullmatch(_text(key)) for key in table):
        return {image: _first_context(_text(key)) for key, images in table.items() for image in _texts(images)}
    return {_text(image): _first_context(groups) for image, groups in table.items()}


def _find(module: str, name: str) -> type:
    """Plain values and these containers: nothing else can be named, and so nothing else be called."""
    kind: type | None = CONTAINERS.get(f"{module.replace('__builtin__', 'builtins')}.{name}")
    if kind is None:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
    return kind


def _first_context(groups: object) -> str:
    for name in _texts(groups):
        match = CONTEXT.fullmatch(name)
        return match[1] if match else name
    return ""


def _texts(values: object) -> list[str]:
    """One text or several; those of a set sorted, as it has no order of its own."""
    if isinstance(values, list | tuple | set):
        return sorted(map(_text, values)) if isinstance(values, set) else [_text(value) for value in values]
    return [_text(values)]


def _text(value: object) -> str:
    return value if isinstance(value, str) else brief(value)
