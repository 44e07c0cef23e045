"""``holdfast data shard``: write a data set as tar shards in WebDataset's layout, with an index. Open this file to
change what a shard holds.

A sample is ``NAME.jpg`` (or as its file ends), ``NAME.cls`` with the number of its class, and ``NAME.json`` with label,
class and group. Files keep their bytes; what is not a file is written as PNG, which loses nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image

from holdfast.data.images import unreadable
from holdfast.data.item_split import ItemSplit, bytes_of, head_of, to_pixels
from holdfast.data.listing import ReaderOptions
from holdfast.data.load_data import find_reader
from holdfast.data.open_shards import NOTHING, summary
from holdfast.data.shard_files import Member
from holdfast.data.shard_index import INDEX, IndexWriter, Sample, Shown, unsafe
from holdfast.data.splits import Dataset, FileSplit, Split, WrappedSplit
from holdfast.data.unlabelled_images import declared
from holdfast.data.usable_data import drop_unreadable, find_problems, refuse
from holdfast.errors import HoldfastError, require
from holdfast.files import IMAGE_SUFFIXES, at_home, filling, reading
from holdfast.printable import printable

MEGABYTES: Final = 256.0
"""Size of a shard where none is given: long enough to read in one go, small enough to move."""
BLOCK: Final = 512
"""What tar counts in."""
AT_ONCE: Final = 256


def shard(
    source: Any,
    out: str | Path,
    *,
    megabytes: float = MEGABYTES,
    unlabelled: bool = False,
    overwrite: bool = False,
    skip_unreadable: bool = False,
    shown: Shown = NOTHING,
    note: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> str:
    """Write a data set as tar shards in WebDataset's layout with an index, and say in one line what is in them.

    source: what :func:`load` takes. out: the folder to write. megabytes: how large a shard may become; it has at least
    one image. unlabelled: images of any folder, without labels. skip_unreadable: leave files out that cannot be
    decoded; otherwise nothing is decoded, and each file keeps its bytes. shown: called with the number of images
    written, and of all. note: called with what the reader of the source says. options: root, names, label, group,
    columns, image_size, conflict, data_seed and confine, as in :func:`load`.

    Splits of the source stay what they are; none is held out. The same source gives the same bytes.

    >>> import tempfile
    >>> from holdfast.data import load
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     said = shard("digits", folder + "/shards")
    ...     len(load(folder + "/shards").train), said.partition(": ")[2]
    (1198, '1797 images of 10 classes in 2 shards')
    """
    require(megabytes > 0, f"megabytes must be above 0, got {megabytes}")
    folder = Path(at_home(out))
    data = _listed(source, options, unlabelled=unlabelled)
    _refuse_place(folder, source, overwrite=overwrite)
    if skip_unreadable:
        data = drop_unreadable(data)
    refuse(data.problems if unlabelled else find_problems(data, least=1, training=False), data.name)
    for said in map(str, data.notes):
        note(said)
    writer = IndexWriter()
    done, total = 0, sum(map(len, data.splits.values()))
    base = _base(source, data)
    with filling(folder) as temporary:
        for name, split in data.splits.items():
            with _ShardFiles(temporary, name, writer, int(megabytes * 1e6)) as tars:
                for key, original, content, ending, position in _files(split, name, base):
                    tars.add(key, original, content, ending, _words(data, split, position))
                    done += 1
                    shown(done, total)
        made = writer.finish(classes=data.classes, groups=data.group_names, attribute=data.group_attribute)
        (temporary / INDEX).write_bytes(made.to_bytes())
        if folder.exists():
            shutil.rmtree(folder)  # nothing but shards, or nothing at all: it was looked at
    return f"{folder}: {summary(made)}"


def _listed(source: Any, options: dict[str, Any], *, unlabelled: bool) -> Dataset:
    """The set as its reader gives it: nothing is resized or held out."""
    given = {("seed" if key == "data_seed" else key): value for key, value in options.items() if value is not None}
    own = ReaderOptions.of(**given)
    source = Path(source) if isinstance(source, os.PathLike) else source
    if isinstance(source, Dataset):
        return source
    with reading():
        found = declared(source, own) if unlabelled else find_reader(source, own)(own)
    if found is None:
        raise HoldfastError(f"{source} is a set that has a name, with labels; leave unlabelled out")
    if not unlabelled:
        return found
    lost = {name: replace(split, labels=torch.full_like(split.labels, -1)) for name, split in found.splits.items()}  # type: ignore[type-var]
    without: Dataset = replace(found, classes=(), **lost)  # type: ignore[arg-type]
    return without


def _refuse_place(folder: Path, source: Any, *, overwrite: bool) -> None:
    """Refuse to write where something else would be lost, or where the source would find its own shards."""
    if isinstance(source, str | Path) and os.path.isdir(at_home(source)):
        own = os.path.realpath(at_home(source))
        inside = os.path.realpath(folder) == own or os.path.realpath(folder).startswith(own + os.sep)
        require(not inside, f"{printable(folder)} lies in the data itself; choose another folder")
    if not folder.exists():
        return
    require(folder.is_dir(), f"{printable(folder)} is a file; choose another folder")
    others = [entry.name for entry in os.scandir(folder) if not entry.name.endswith((".tar", INDEX))]
    require(
        not others, f"{printable(folder)} holds other files, such as {printable((others or [''])[0])}; choose another"
    )
    used = any(os.scandir(folder))
    require(overwrite or not used, f"{printable(folder)} holds shards already; replace them with --overwrite")


def _base(source: Any, data: Dataset) -> str:
    """The folder that the names of files are relative to."""
    paths = [str(path) for split in data.splits.values() if isinstance(split, FileSplit) for path in _ends(split)]
    if not paths:
        return ""
    if isinstance(source, str | Path) and all(path.startswith(str(at_home(source)) + os.sep) for path in paths):
        return str(at_home(source))
    return os.path.commonpath([os.path.dirname(path) for path in paths])


def _ends(split: FileSplit) -> Iterator[Any]:
    """The first and the last path by the alphabet: what they share, all do."""
    if len(split):
        yield min(map(str, split.paths))
        yield max(map(str, split.paths))


def _words(data: Dataset, split: Split, position: int) -> dict[str, Any]:
    """What the sample's JSON says of it."""
    label, group = int(split.labels[position]), int(split.groups[position])
    said: dict[str, Any] = {} if label < 0 else {"label": label, "class": data.classes[label]}
    return said if group < 0 else {**said, "group": data.group_names[group]}


def _files(split: Split, name: str, base: str) -> Iterator[tuple[str, str, bytes, str, int]]:
    """(key, name in the set, bytes, ending, position) of every image. Keys have no dots and are given once."""
    taken: set[str] = set()
    for position, (original, content) in enumerate(_contents(split, name, base)):
        folder, _, own = original.rpartition("/")
        stem, _, ending = own.rpartition(".")
        key = f"{folder}/{stem.replace('.', '_')}" if folder else stem.replace(".", "_")
        number = 1
        while key in taken:  # a.b.jpg and a_b.jpg, a.jpg and a.png, or a file that a table names twice
            number += 1
            key = f"{folder}/{stem.replace('.', '_')}_{number}".removeprefix("/")
        taken.add(key)
        yield key, original, content, ending, position


def _contents(split: Split, name: str, base: str) -> Iterator[tuple[str, bytes]]:
    while isinstance(split, WrappedSplit) and split.painter is None:
        split = split.inner
    if isinstance(split, FileSplit):
        for path in split.paths:
            try:
                yield _set_name(path, base), path.read_bytes()
            except OSError as error:
                raise unreadable(path, error) from error
        return
    width = max(6, len(str(len(split))))
    if isinstance(split, ItemSplit):
        for i in range(len(split)):
            item, what = split.image(i), split.describe(i)
            if (content := bytes_of(item)) is not None and (ending := _ending(content)):
                yield f"{name}/{i:0{width}d}.{ending}", content
                continue
            size, mode = head_of(item, what)
            pixels = to_pixels(item, size=size, channels=1 if mode == "L" else 3, what=what)
            yield f"{name}/{i:0{width}d}.png", _png(pixels.numpy())
        return
    for part in torch.split(torch.arange(len(split)), AT_ONCE):
        for i, image in zip(part.tolist(), split.read(part).numpy(), strict=True):
            yield f"{name}/{i:0{width}d}.png", _png(image)


def _set_name(path: Path | Member, base: str) -> str:
    """The name of a file in its set; never one that leads out of a folder."""
    if isinstance(path, Member):
        return path.id
    text = str(path)
    own = text[len(base) :].lstrip("/") if base and text.startswith(base) else "/".join(path.parts[-2:])
    own = printable(own).replace("\\", "_")
    return own if not unsafe(own) else path.name


def _ending(content: bytes) -> str:
    """How a file with these bytes should end; "" where Pillow does not know it."""
    try:
        with Image.open(BytesIO(content)) as image:
            ending = {"JPEG": "jpg", "PNG": "png"}.get(image.format or "", (image.format or "").lower())
    except Exception:  # what it is will be told by whoever reads it
        return ""
    return ending if f".{ending}" in IMAGE_SUFFIXES else ""


def _png(pixels: Any) -> bytes:
    """uint8 (C, H, W) as a PNG file."""
    file = BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))).save(
        file, "PNG"
    )
    return file.getvalue()


class _ShardFiles:
    """The shards of one split, one open at a time."""

    def __init__(self, folder: Path, split: str, writer: IndexWriter, most: int) -> None:
        self.folder, self.split, self.writer, self.most = folder, split, writer, most
        self.tar: tarfile.TarFile | None = None
        self.count = 0

    def __enter__(self) -> _ShardFiles:
        return self

    def add(self, key: str, original: str, content: bytes, ending: str, words: dict[str, Any]) -> None:
        """Write a sample, into the next shard where this one is full."""
        name = f"{key}.{ending}"
        said = words if name == original else {**words, "holdfast": {"name": original}}
        extra = {"cls": str(words["label"]).encode()} if "label" in words else {}
        extra |= {"json": json.dumps(said).encode()} if said else {}
        room = sum(BLOCK * (1 + -(-len(own) // BLOCK)) for own in (content, *extra.values()))
        if self.tar is None or (self.tar.offset and self.tar.offset + room > self.most):
            self._next()
        assert self.tar is not None
        offset = self._write(name, content)
        for own, text in extra.items():
            self._write(f"{key}.{own}", text)
        label, named, group = words.get("label"), words.get("class"), words.get("group")
        number = len(self.writer.sizes) - 1
        sample = Sample(original, offset, len(content), zlib.crc32(content), label, named, group)
        self.writer.add(self.split, number, sample)

    def _write(self, name: str, content: bytes) -> int:
        """A file in the shard, with nothing of this machine in its header; where its bytes begin."""
        assert self.tar is not None
        info = tarfile.TarInfo(name)
        info.size = len(content)
        self.tar.addfile(info, BytesIO(content))
        self.tar.members = []  # type: ignore[attr-defined]  # tarfile would keep every one of them
        return self.tar.offset - -(-len(content) // BLOCK) * BLOCK

    def _next(self) -> None:
        self._close()
        self.name = f"{self.split}-{self.count:06d}.tar"
        self.tar = tarfile.open(  # noqa: SIM115 (until the next shard)
            self.folder / self.name, "w", format=tarfile.GNU_FORMAT, encoding="utf-8"
        )
        self.writer.sizes[self.name] = 0
        self.count += 1

    def _close(self) -> None:
        if self.tar is not None:
            self.tar.close()
            path = self.folder / self.name
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
            self.writer.sizes[self.name] = path.stat().st_size

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self._close()
        elif self.tar is not None:
            self.tar.fileobj.close()
