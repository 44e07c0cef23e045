"""The index of a set of tar shards: which image lies where, with its label and group. Open this file to change what the
index holds, or what is understood of shards that other tools wrote.

One file, ``index.safetensors``, beside the shards: arrays of numbers, with a SHA-256 over all of it. It can be made
anew from the shards at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from holdfast.data.listing import SPLIT_FOLDERS, SPLITS
from holdfast.data.tables import name_order
from holdfast.errors import HoldfastError, brief, first_line, require
from holdfast.files import IMAGE_SUFFIXES
from holdfast.printable import printable

INDEX: Final = "index.safetensors"
FORMAT: Final = "holdfast shards 1"
ARRAYS: Final = {
    "split": np.uint8, "shard": np.int32, "offset": np.int64, "size": np.int64, "checksum": np.uint32,
    "label": np.int32, "group": np.int32, "ends": np.int64, "names": np.uint8,
}  # fmt: skip
"""What the index holds of every image, and the block of their names."""
MOST_JSON: Final = 2**20
OUR_OWN: Final = re.compile(r"(^|/)__[^/]*__($|/)")
"""Names that WebDataset keeps for itself."""
Shown = Callable[[int, int], None]


@dataclass(frozen=True)
class Sample:
    """One image as it lies in a shard. name: in the set. label: what the shard says: a number, a word or nothing."""

    name: str
    offset: int
    size: int
    checksum: int
    label: int | str | None = None
    class_name: str | None = None
    group: str | None = None


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """What is in a set of shards. shards: name and bytes of each. classes, groups: names by number. arrays: those of
    ``ARRAYS``, image by image, by split and then as they lie. left_out: what building it passed over, in words.
    attribute: what the groups are, in a word; empty where nobody said."""

    shards: Mapping[str, int]
    classes: tuple[str, ...]
    groups: tuple[str, ...]
    arrays: Mapping[str, npt.NDArray[Any]]
    left_out: tuple[str, ...] = ()
    attribute: str = ""

    def __len__(self) -> int:
        return len(self.arrays["ends"])

    @property
    def digest(self) -> str:
        """SHA-256 of everything in it."""
        found = hashlib.sha256(json.dumps(self._words(), sort_keys=True).encode())
        for name in sorted(ARRAYS):
            found.update(f"{name} {len(self.arrays[name])} ".encode() + self.arrays[name].tobytes())
        return found.hexdigest()

    def _words(self) -> dict[str, Any]:
        words = {"shards": dict(self.shards), "classes": self.classes, "groups": self.groups}
        said = {"attribute": self.attribute} if self.attribute else {}
        return {"format": FORMAT, **words, "left_out": self.left_out, **said}

    def to_bytes(self) -> bytes:
        """As the file has it."""
        said = {**self._words(), "sha256": self.digest}  # one entry: safetensors writes several in any order
        return save_arrays(dict(self.arrays), metadata={"holdfast": json.dumps(said)})

    @classmethod
    def from_bytes(cls, content: bytes, where: str) -> ShardIndex:
        """Refuses what is damaged, or does not fit together."""
        remedy = f"make it anew: holdfast data index {printable(os.path.dirname(where) or '.')} --overwrite"
        try:
            length = int.from_bytes(content[:8], "little")
            words = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["holdfast"])
            require(words["format"] == FORMAT, f"it is of the format {brief(words['format'])}, not {FORMAT!r}")
            arrays = {name: own.astype(ARRAYS[name], copy=False) for name, own in load_arrays(content).items()}
            names = {name: tuple(map(str, words[name])) for name in ("classes", "groups", "left_out")}
            sizes = {str(name): int(size) for name, size in words["shards"].items()}
            found = cls(sizes, arrays=arrays, **names, attribute=str(words.get("attribute", "")))
            require(found.digest == words["sha256"], "it does not match its checksum")
            found._check()
        except Exception as error:  # damaged files fail in many ways
            raise HoldfastError(f"cannot use the index {printable(where)}: {first_line(error)}; {remedy}") from error
        return found

    def _check(self) -> None:
        """Numbers that a checksum cannot judge: it is right where somebody made the file to be wrong."""
        a, n = self.arrays, len(self)
        require({*a} == {*ARRAYS}, "it lacks arrays")
        lengths = {len(own) for name, own in a.items() if name != "names"}
        require(lengths == {n} and all(own.ndim == 1 for own in a.values()), "its arrays differ in length")
        for name in self.shards:
            require(not unsafe(name) and name.endswith(".tar"), f"it names the shard {brief(name)}")
        if not n:
            return
        limits = {"split": len(SPLITS), "shard": len(self.shards)}
        limits |= {"label": len(self.classes), "group": len(self.groups)}
        for name, limit in limits.items():
            least = -1 if name in ("label", "group") else 0
            within = int(a[name].min()) >= least and int(a[name].max()) < limit
            require(within, f"its array {name} has numbers that are out of range")
        sizes = np.array([*self.shards.values()], np.int64)[a["shard"]]
        ends = a["offset"] + a["size"]
        inside = bool(((a["offset"] >= 0) & (a["size"] >= 0) & (ends >= 0) & (ends <= sizes)).all())
        require(inside, "it names bytes outside of the shards")
        rising = bool((np.diff(a["ends"], prepend=0) >= 0).all()) and int(a["ends"][-1]) == len(a["names"])
        require(rising, "its names do not fit")


def unsafe(name: str) -> bool:
    """Whether a name could lead out of a folder, or hides something."""
    parts = name.split("/")
    return name.startswith("/") or ".." in parts or "\\" in name or any(ord(c) < 32 for c in name) or not name


class IndexWriter:
    """Collects samples, shard by shard, in few bytes each, and makes the index of them."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self._columns = {key: array("q") for key in ("split", "shard", "offset", "size", "checksum", "label", "group")}
        self._names, self._ends = bytearray(), array("q")
        self._labels: dict[tuple[int | str, str | None], int] = {}
        self._groups: dict[str, int] = {}

    def add(self, split: str, shard: int, sample: Sample) -> None:
        label = -1
        if sample.label is not None:
            label = self._labels.setdefault((sample.label, sample.class_name), len(self._labels))
        group = -1 if sample.group is None else self._groups.setdefault(sample.group, len(self._groups))
        where = (SPLITS.index(split), shard, sample.offset, sample.size, sample.checksum, label, group)
        for column, value in zip(self._columns.values(), where, strict=True):
            column.append(value)
        self._names += os.fsencode(sample.name)
        self._ends.append(len(self._names))

    def finish(
        self,
        *,
        classes: Sequence[str] = (),
        groups: Sequence[str] = (),
        left_out: Iterable[str] = (),
        attribute: str = "",
    ) -> ShardIndex:
        """The index. classes, groups: in the order of their numbers, where that is known; else numbers by value, words
        by the alphabet."""
        columns = {key: np.frombuffer(own, np.int64) for key, own in self._columns.items()}
        names, by_label = self._classes(classes)
        all_groups = [*groups] or name_order({*self._groups})
        by_group = np.array([all_groups.index(own) for own in self._groups] + [-1], np.int64)
        columns["label"], columns["group"] = by_label[columns["label"]], by_group[columns["group"]]
        shards = sorted(self.sizes)
        numbers = {name: number for number, name in enumerate(shards)}
        columns["shard"] = np.array([numbers[name] for name in self.sizes] or [0], np.int64)[columns["shard"]]
        order = np.argsort(columns["split"], kind="stable")
        arrays: dict[str, npt.NDArray[Any]] = {key: own[order].astype(ARRAYS[key]) for key, own in columns.items()}
        ends = np.frombuffer(self._ends, np.int64)
        block = np.frombuffer(bytes(self._names), np.uint8)
        if (np.diff(order) < 0).any():  # names go where their images went
            starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
            block = np.concatenate([block[starts[i] : ends[i]] for i in order])
            ends = np.cumsum((ends - starts)[order])
        arrays |= {"names": block, "ends": ends.copy()}
        sizes = {name: self.sizes[name] for name in shards}
        return ShardIndex(sizes, names, tuple(all_groups), arrays, tuple(left_out), attribute)

    def _classes(self, given: Sequence[str]) -> tuple[tuple[str, ...], npt.NDArray[Any]]:
        """(names of the classes, the number of each label as it was met)."""
        if given:
            found = list(given)
            numbers = [label if isinstance(label, int) else found.index(label) for label, _ in self._labels]
        elif all(isinstance(label, int) and name is not None for label, name in self._labels):
            named: dict[Any, Any] = {}
            for label, name in self._labels:
                two = f"label {label} is called {brief(named.get(label))} and {brief(name)} in different samples"
                require(named.setdefault(label, name) == name, f"{two}; make them equal")
            order = sorted(named)
            found, numbers = [named[label] for label in order], [order.index(label) for label, _ in self._labels]
        else:
            found = name_order({str(label) for label, _ in self._labels})
            numbers = [found.index(str(label)) for label, _ in self._labels]
        return tuple(found), np.array([*numbers, -1], np.int64)


def index_shards_of(
    shards: Mapping[str, int], opened: Callable[[str], IO[bytes]], shown: Shown = lambda done, total: None
) -> ShardIndex:
    """The index of shards, from reading all of them once. shards: name and bytes of each. opened: a shard, to read.
    shown: called with the number of shards that are read, and of all."""
    writer, passed = IndexWriter(), {"without an image": 0, "without an ending": 0}
    writer.sizes = dict(sorted(shards.items()))
    for number, shard in enumerate(writer.sizes):
        split = split_of(shard)
        with opened(shard) as file:
            for sample in samples_of(file, shard, shards[shard], passed):
                writer.add(split, number, sample)
        shown(number + 1, len(writer.sizes))
    left_out = [
        f"{count} {'samples' if 'image' in what else 'files'} {what}" for what, count in passed.items() if count
    ]
    return writer.finish(left_out=left_out)


def split_of(shard: str) -> str:
    """The split that the name of a shard says, in its folder or its own name; train where it says none.

    >>> split_of("imagenet-val-000003.tar"), split_of("test/000.tar"), split_of("part-1.tar")
    ('val', 'test', 'train')
    """
    words = re.split(r"[^a-z]+", shard.lower())
    return next((SPLIT_FOLDERS[word] for word in words if word in SPLIT_FOLDERS), "train")


def samples_of(file: IO[bytes], shard: str, size: int, passed: dict[str, int]) -> Iterator[Sample]:
    """The samples of a shard, in its order: files that share everything before the first dot of their own name.

    passed: counts what is left out.
    """
    remedy = "write it again, or leave it out"
    where = printable(shard)
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            yield from _grouped(tar, where, passed)
            end = tar.offset  # of the first block of zeros, which every whole archive has
    except (tarfile.TarError, OSError, EOFError) as error:
        why = "it is compressed, cut off, or not a tar file"
        raise HoldfastError(f"cannot read the shard {where}: {first_line(error)} ({why}); {remedy}") from error
    require(end < size, f"the shard {where} is cut off: it has no end mark; {remedy}")


def _grouped(tar: tarfile.TarFile, where: str, passed: dict[str, int]) -> Iterator[Sample]:
    key, parts = "", _Parts()
    done: set[str] = set()
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # tarfile would keep every one of them
        name = member.name.removeprefix("./")
        if member.isdir() or OUR_OWN.search(name) or os.path.basename(name).startswith("."):
            continue
        refused = f"the shard {where} has a member {brief(name)}"
        remedy = "write the shard again without it"
        require(not unsafe(name), f"{refused}, which leads out of its folder or hides something; {remedy}")
        require(member.isreg(), f"{refused}, which is a link or a device; {remedy}")
        folder, _, base = name.rpartition("/")
        stem, dot, ending = base.partition(".")
        if not dot:
            passed["without an ending"] += 1
            continue
        own = f"{folder}/{stem}" if folder else stem
        if own != key:
            if key:
                yield from parts.sample(key, where, passed)
                done.add(key)
            again = f"the shard {where} has the key {brief(own)} twice; write it again with keys of their own"
            require(own not in done, again)
            key, parts = own, _Parts()
        twice = f"the shard {where} has {brief(name)} twice; write it again with keys of their own"
        require(ending.lower() not in parts.endings, twice)
        parts.take(tar, member, name, ending.lower())
    if key:
        yield from parts.sample(key, where, passed)


@dataclass
class _Parts:
    """The files of one sample as they are met."""

    endings: set[str] = field(default_factory=set)
    images: list[Sample] = field(default_factory=list)
    words: dict[str, bytes] = field(default_factory=dict)

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, ending: str) -> None:
        self.endings.add(ending)
        image = f".{ending}" in IMAGE_SUFFIXES  # "seg.png" is a mask beside the image
        if not image and (ending not in ("cls", "json") or member.size > MOST_JSON):
            return
        file = tar.extractfile(member)
        assert file is not None
        content = file.read()
        if image:
            self.images.append(Sample(name, member.offset_data, member.size, zlib.crc32(content)))
        else:
            self.words[ending] = content

    def sample(self, key: str, where: str, passed: dict[str, int]) -> Iterator[Sample]:
        if not self.images:
            passed["without an image"] += 1
            return
        names = ", ".join(printable(own.name) for own in self.images)
        remedy = "write it again with one image per key"
        require(
            len(self.images) == 1, f"the shard {where} has several images of the key {brief(key)}: {names}; {remedy}"
        )
        yield _labelled(self.images[0], self.words, f"{where}: {printable(key)}")


def _labelled(sample: Sample, words: Mapping[str, bytes], where: str) -> Sample:
    """A sample with what .cls and .json say of it."""
    said: Any = {}
    if "json" in words:
        try:
            said = json.loads(words["json"])
        except (ValueError, RecursionError) as error:
            raise HoldfastError(f"{where}.json is not JSON ({first_line(error)}); write the shard again") from error
    said = said if isinstance(said, dict) else {}
    label: Any = said.get("label", said.get("class"))
    if "cls" in words:
        text = words["cls"].decode("utf-8", "replace").strip()
        label = int(text) if re.fullmatch(r"\d{1,9}", text) else text
    if isinstance(label, bool) or not isinstance(label, int | str | None) or (isinstance(label, int) and label < 0):
        raise HoldfastError(f"{where}.json has the label {brief(label)}; labels are words, or numbers from 0 on")
    text_of = {key: own for key in ("class", "group") if isinstance(own := said.get(key), str)}
    ours = said.get("holdfast") if isinstance(said.get("holdfast"), dict) else {}
    named_so = isinstance(ours.get("name"), str) and not unsafe(ours["name"])
    name = str(ours["name"]) if named_so else sample.name
    group = text_of.get("group")
    if group is None and isinstance(said.get("group"), int):
        group = str(said["group"])
    named = text_of.get("class") if isinstance(label, int) else None
    label = None if label == "" else label
    return replace(sample, name=name, label=label, class_name=named, group=group)


def local_shards(folder: Path) -> dict[str, int]:
    """Name and bytes of every shard in a folder and the folders directly below, in order."""
    found = sorted(path for pattern in ("*.tar", "*/*.tar") for path in folder.glob(pattern) if path.is_file())
    visible = (path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in visible}
