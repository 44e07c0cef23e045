"""Sets with anomalies among normal images: the report's nested dictionary, and such a set made of Fashion-MNIST."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.data import builtin, embedded
from holdfast.data.arrays import Array, to_images
from holdfast.data.options import Options, at_home
from holdfast.data.printable import printable
from holdfast.data.splits import ArraySplit
from holdfast.errors import HoldfastError, require, unknown
from holdfast.files import write_atomic
from holdfast.rng import derive

CLASSES: Final = (1, 5, 7, 8, 9)
"""Trouser, sandal, sneaker, bag, ankle boot: the normal classes of the report, as Fashion-MNIST numbers them."""
SIDE: Final = 32
UNLABELED, LABELED, NORMAL, ANOMALOUS = 26_000, 2_000, 1_000, 52
SETS: Final = ("representative_set_1", "representative_set_2")
SHARES: Final = {"corrupted": 0.5, "garments": 0.25, "digits": 0.25}
KINDS: Final = ("corrupted", "garments", "digits", "noise")


@dataclass(frozen=True, eq=False)
class AnomalySet:
    """Normal images without and with labels, and test sets with anomalies among them.

    classes: names of the normal ones; in the test sets the label after the last of them is an anomaly.
    unlabeled: its labels are all -1. sets: the group is the kind of anomaly, -1 for normal images and where unknown.
    manifest: how the set was made; empty for one that was read.
    """

    classes: tuple[str, ...]
    unlabeled: ArraySplit
    labeled: ArraySplit
    sets: tuple[ArraySplit, ...]
    kinds: tuple[str, ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def anomalous(self, split: ArraySplit) -> Tensor:
        """(N,) whether each image of a test set is an anomaly."""
        return split.labels == len(self.classes)

    def pooled(self) -> ArraySplit:
        """All test sets as one."""
        return ArraySplit(
            torch.cat([s.images for s in self.sets]),
            torch.cat([s.labels for s in self.sets]),
            torch.cat([s.groups for s in self.sets]),
            "pooled",
        )


def make_fashion_anomalies(
    *,
    root: str | Path | None = None,
    shares: Mapping[str, float] | None = None,
    severity: float = 0.5,
    seed: int = 0,
    unlabeled: int = UNLABELED,
    labeled: int = LABELED,
    normal: int = NORMAL,
    anomalous: int = ANOMALOUS,
) -> AnomalySet:
    """The report's set, rebuilt: the five classes of Fashion-MNIST's training part, padded to 32×32, cut in four.

    shares: how much of the anomalies each kind is: ``corrupted`` (normal classes, damaged), ``garments`` (the other
    classes), ``digits`` (MNIST), ``noise``. They are damaged or taken from the test parts, so that none of them is an
    image that was trained on. severity: strength of the damage, in (0, 1]. Everything else follows the seed.
    """
    shares = dict(SHARES if shares is None else shares)
    for name in shares:
        if name not in KINDS:
            raise unknown("kind of anomaly", name, KINDS)
    total = sum(shares.values())
    require(total > 0 and min(shares.values()) >= 0, f"shares must be >= 0 and not all 0, got {shares}")
    require(0 < severity <= 1, f"severity must be in (0, 1], got {severity}")
    options = Options(root=None if root is None else at_home(root))
    fashion = builtin.fashion_mnist(options)
    assert isinstance(fashion.train, ArraySplit)
    assert isinstance(fashion.test, ArraySplit)
    order = torch.Generator().manual_seed(derive(seed, "anomalies/order"))
    mine = torch.isin(fashion.train.labels, torch.tensor(CLASSES)).nonzero().flatten()
    mine = mine[torch.randperm(len(mine), generator=order)]
    sizes = [unlabeled, labeled, *([normal] * len(SETS))]
    require(
        min(sizes) >= 1 and sum(sizes) <= len(mine),
        f"{sum(sizes)} normal images are asked for and {len(mine)} are there; ask for fewer",
    )
    number = torch.full((10,), -1)
    number[torch.tensor(CLASSES)] = torch.arange(len(CLASSES))
    parts = torch.split(mine[: sum(sizes)], sizes)
    images, labels = fashion.train.images, number[fashion.train.labels]
    counts = _counts({k: v / total for k, v in shares.items()}, anomalous)
    source = _Source(fashion.test, options, severity, torch.Generator().manual_seed(derive(seed, "anomalies/draw")))
    sets = []
    for name, part in zip(SETS, parts[2:], strict=True):
        strange = [(KINDS.index(kind), source.draw(kind, count)) for kind, count in counts.items() if count]
        pictures = torch.cat([padded(images[part]), *(x for _, x in strange)])
        kinds = torch.cat([torch.full((normal,), -1), *(torch.full((len(x),), kind) for kind, x in strange)])
        truth = torch.cat([labels[part], torch.full((len(kinds) - normal,), len(CLASSES))])
        mixed = torch.randperm(len(truth), generator=order)
        sets.append(ArraySplit(pictures[mixed], truth[mixed], kinds[mixed], name))
    unknown_groups = torch.full((max(unlabeled, labeled),), -1)
    made = AnomalySet(
        classes=tuple(fashion.classes[c] for c in CLASSES),
        unlabeled=ArraySplit(
            padded(images[parts[0]]), unknown_groups[:unlabeled], unknown_groups[:unlabeled], "unlabeled"
        ),
        labeled=ArraySplit(padded(images[parts[1]]), labels[parts[1]], unknown_groups[:labeled], "labeled"),
        sets=tuple(sets),
        kinds=KINDS,
    )
    manifest = {
        "made_by": "fashion-anomalies",
        "seed": seed,
        "severity": severity,
        "shares": {k: v / total for k, v in shares.items()},
        "anomalies_a_set": counts,
        "sizes": {"unlabeled": unlabeled, "labeled": labeled, "normal": normal, "anomalous": anomalous},
        "fashion_classes": list(CLASSES),
        "sha256": {s.origin: digest(s.images) for s in (made.unlabeled, made.labeled, *made.sets)},
    }
    return AnomalySet(made.classes, made.unlabeled, made.labeled, made.sets, made.kinds, manifest)


def make_digits_anomalies(*, severity: float = 0.5, seed: int = 0) -> AnomalySet:
    """The same with the embedded digits, to try everything in seconds: 0 to 4 are normal, 5 to 9 foreign."""
    digits = embedded.digits(Options())
    assert isinstance(digits.train, ArraySplit)
    assert isinstance(digits.test, ArraySplit)
    images = torch.cat([digits.train.images, digits.test.images])
    labels = torch.cat([digits.train.labels, digits.test.labels])
    generator = torch.Generator().manual_seed(derive(seed, "anomalies/digits"))
    order = torch.randperm(len(labels), generator=generator)
    mine, foreign = order[labels[order] < 5], order[labels[order] >= 5]
    parts = torch.split(mine, [500, 100, 100, 100, len(mine) - 800])
    names = list(CORRUPTIONS)
    sets = []
    for i, name in enumerate(SETS):
        spoilt = parts[4][i * 20 : i * 20 + 20]
        damaged = [
            corrupt(images[p], names[k % len(names)], severity=severity, generator=generator)
            for k, p in enumerate(spoilt.tolist())
        ]
        pictures = torch.cat([images[parts[2 + i]], torch.stack(damaged), images[foreign[i * 20 : i * 20 + 20]]])
        kinds = torch.cat([torch.full((100,), -1), torch.zeros(20, dtype=torch.int64), torch.full((20,), 2)])
        truth = torch.cat([labels[parts[2 + i]], torch.full((40,), 5)])
        mixed = torch.randperm(140, generator=generator)
        sets.append(ArraySplit(pictures[mixed], truth[mixed], kinds[mixed], name))
    none = torch.full((500,), -1)
    return AnomalySet(
        classes=digits.classes[:5],
        unlabeled=ArraySplit(images[parts[0]], none, none, "unlabeled"),
        labeled=ArraySplit(images[parts[1]], labels[parts[1]], none[:100], "labeled"),
        sets=tuple(sets),
        kinds=KINDS,
        manifest={"made_by": "digits-anomalies", "seed": seed, "severity": severity},
    )


def padded(images: Tensor, side: int = SIDE) -> Tensor:
    """28×28 in the middle of 32×32, black around it."""
    height, width = images.shape[2:]
    top, left = (side - height) // 2, (side - width) // 2
    return F.pad(images, (left, side - width - left, top, side - height - top))


def digest(images: Tensor) -> str:
    return hashlib.sha256(images.numpy().tobytes()).hexdigest()


@dataclass(eq=False)
class _Source:
    """Hands out anomalies, no image twice."""

    fashion: ArraySplit
    options: Options
    severity: float
    generator: torch.Generator
    _left: dict[str, Tensor] = field(default_factory=dict)

    def draw(self, kind: str, count: int) -> Tensor:
        if kind == "noise":
            return torch.randint(0, 256, (count, 1, SIDE, SIDE), generator=self.generator).to(torch.uint8)
        if kind not in self._left:
            pool = self._pool(kind)
            self._left[kind] = pool[torch.randperm(len(pool), generator=self.generator)]
        left = self._left[kind]
        require(len(left) >= count, f"{count} anomalies of kind {kind} are asked for, {len(left)} are left; ask fewer")
        drawn, self._left[kind] = left[:count], left[count:]
        if kind == "corrupted":
            names = list(CORRUPTIONS)
            which = torch.randint(len(names), (count,), generator=self.generator).tolist()
            drawn = torch.stack([
                corrupt(x, names[i], severity=self.severity, generator=self.generator)
                for x, i in zip(drawn, which, strict=True)
            ]) if count else drawn  # fmt: skip
        return drawn

    def _pool(self, kind: str) -> Tensor:
        if kind == "digits":
            mnist = builtin.mnist(self.options).test
            assert isinstance(mnist, ArraySplit)
            return padded(mnist.images)
        mine = torch.isin(self.fashion.labels, torch.tensor(CLASSES))
        return padded(self.fashion.images[mine if kind == "corrupted" else ~mine])


def _counts(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Whole numbers in these shares that sum to the total: the largest remainders are rounded up.

    >>> _counts({"a": 0.5, "b": 0.25, "c": 0.25}, 5)
    {'a': 3, 'b': 1, 'c': 1}
    """
    counts = {name: int(share * total) for name, share in shares.items()}
    short = sorted(shares, key=lambda name: counts[name] - shares[name] * total)[: total - sum(counts.values())]
    return {name: count + (name in short) for name, count in counts.items()}


def corrupt(image: Tensor, name: str, *, severity: float, generator: torch.Generator) -> Tensor:
    """One uint8 image (C, H, W), damaged."""
    x = image.float() / 255
    return CORRUPTIONS[name](x, severity, generator).clamp(0, 1).mul(255).round().to(torch.uint8)


def _noise(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    return x + 0.5 * severity * torch.randn(x.shape, generator=generator)


def _salt_and_pepper(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    hit = torch.rand(x.shape, generator=generator) < 0.25 * severity
    return torch.where(hit, (torch.rand(x.shape, generator=generator) < 0.5).float(), x)


def _occlude(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    """A square of one random grey over a place in the middle part."""
    side = max(2, round(severity * 0.7 * x.shape[1]))
    top, left = (int(torch.randint(x.shape[1] - side + 1, (), generator=generator)) for _ in range(2))
    x = x.clone()
    x[:, top : top + side, left : left + side] = torch.rand((), generator=generator)
    return x


def _shuffle(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    """Quarters of the image swapped."""
    half = x.shape[1] // 2
    parts = [x[:, i : i + half, j : j + half] for i in (0, half) for j in (0, half)]
    turn = 1 + int(torch.randint(3, (), generator=generator))
    a, b, c, d = parts[turn:] + parts[:turn]
    return torch.cat([torch.cat([a, b], 2), torch.cat([c, d], 2)], 1)


def _invert(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    return (1 - severity) * x + severity * (1 - x)


def _stripes(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    """Every few rows lost."""
    period = max(2, round(2 / severity))
    start = int(torch.randint(period, (), generator=generator))
    x = x.clone()
    x[:, start::period] = 0
    return x


CORRUPTIONS: dict[str, Callable[[Tensor, float, torch.Generator], Tensor]] = {
    "noise": _noise,
    "salt-and-pepper": _salt_and_pepper,
    "occlusion": _occlude,
    "shuffle": _shuffle,
    "inversion": _invert,
    "stripes": _stripes,
}
"""What can befall a picture: (image in [0, 1] (C, H, W), severity, generator) to an image."""


def save_anomalies(made: AnomalySet, folder: str | Path) -> Path:
    """The set in the report's layout, as plain arrays (no pickle), with a manifest beside it."""
    folder = Path(folder)
    width = len(made.classes)
    arrays: dict[str, Array] = {
        "unlabeled_data": made.unlabeled.images[:, 0].numpy(),
        "labeled_data/data": made.labeled.images[:, 0].numpy(),
        "labeled_data/labels": F.one_hot(made.labeled.labels, width).float().numpy(),
        "classes": np.array(made.classes),
        "kinds": np.array(made.kinds),
    }
    for name, split in zip(SETS, made.sets, strict=True):
        arrays[f"{name}/data"] = split.images[:, 0].numpy()
        arrays[f"{name}/labels"] = F.one_hot(split.labels, width + 1).float().numpy()
        arrays[f"{name}/kinds"] = split.groups.numpy()
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    path = folder / "fashion-anomalies.npz"
    write_atomic(path, file.getvalue())
    write_atomic(folder / "manifest.json", (json.dumps(made.manifest, indent=2) + "\n").encode())
    return path


def holds_anomalies(path: str | Path) -> bool:
    """Whether a file looks like one of :func:`read_anomalies`, without reading any of its arrays.

    An .npy file is taken for one: no other data comes in it.
    """
    path = at_home(path)
    if path.suffix.lower() == ".npy":
        return path.is_file()
    if path.suffix.lower() != ".npz" or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
    return "unlabeled_data" in names or len(names) == 1


def read_anomalies(path: str | Path) -> AnomalySet:
    """The report's nested dictionary from .npy or .npz, or what :func:`save_anomalies` wrote.

    The dictionary is a pickle. It is read by an unpickler that can rebuild numpy arrays and nothing else, so a file
    that holds anything more is refused before it can do anything.
    """
    path = at_home(path)
    require(path.is_file(), f"no such file: {printable(path)}; correct the path of the data")
    content = _nested(_content(path))
    shown = printable(path)
    for name in ("unlabeled_data", "labeled_data", *SETS):
        require(name in content, f"{shown} has no {name}; it has: {', '.join(map(printable, content)) or 'nothing'}")
    labeled, width = _labelled(content["labeled_data"], f"{shown}: labeled_data", None)
    sets = tuple(_labelled(content[name], f"{shown}: {name}", width + 1)[0] for name in SETS)
    images = to_images(_array(content["unlabeled_data"], f"{shown}: unlabeled_data"), f"{shown}: unlabeled_data")
    none = torch.full((len(images),), -1)
    shapes = {s.shape for s in (labeled, *sets)} | {tuple(images.shape[1:])}
    require(len(shapes) == 1, f"{shown}: images differ in shape (C, H, W): {sorted(shapes)}; make them equal")
    names, kinds = content.get("classes"), content.get("kinds")
    return AnomalySet(
        classes=tuple(map(str, range(width))) if names is None else tuple(map(str, names)),
        unlabeled=ArraySplit(images, none, none, f"{shown}:unlabeled_data"),
        labeled=labeled,
        sets=sets,
        kinds=() if kinds is None else tuple(map(str, kinds)),
    )


def _labelled(part: Any, what: str, width: int | None) -> tuple[ArraySplit, int]:
    """Images with one-hot labels, and how many classes there are."""
    require(isinstance(part, Mapping), f"{what} must hold data and labels, got {type(part).__name__}")
    for name in ("data", "labels"):
        require(name in part, f"{what} has no {name}; it has: {', '.join(map(str, part)) or 'nothing'}")
    images = to_images(_array(part["data"], f"{what}.data"), f"{what}.data")
    one_hot = _array(part["labels"], f"{what}.labels")
    ok = one_hot.ndim == 2 and one_hot.dtype.kind in "fiub" and len(one_hot) == len(images)
    ok = ok and bool((np.isin(one_hot, (0, 1)) & (one_hot.sum(1, keepdims=True) == 1)).all())
    require(
        ok and (width is None or one_hot.shape[1] == width),
        f"{what}.labels must be one-hot rows, one for each of {len(images)} images"
        + ("" if width is None else f", {width} wide")
        + f"; got shape {one_hot.shape}",
    )
    labels = torch.from_numpy(one_hot.argmax(1).astype(np.int64))
    groups = torch.full_like(labels, -1) if "kinds" not in part else torch.from_numpy(np.asarray(part["kinds"]))
    return ArraySplit(images, labels, groups.long(), what), one_hot.shape[1]


def _array(value: Any, what: str) -> Array:
    require(isinstance(value, np.ndarray), f"{what} must be an array, got {type(value).__name__}")
    array: Array = value
    require(array.dtype != object, f"{what} is an array of Python objects; save it as numbers")
    return array


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """``a/b`` as ``a`` that holds ``b``."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        head, _, tail = name.partition("/")
        if tail:
            nested.setdefault(head, {})[tail] = value
        else:
            nested[head] = value
    return nested


def _content(path: Path) -> dict[str, Any]:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                members = {i.filename.removesuffix(".npy"): archive.read(i) for i in archive.infolist()}
        else:
            members = {"": path.read_bytes()}
        values = {name: _read_npy(io.BytesIO(data)) for name, data in members.items()}
    except (OSError, ValueError, EOFError, MemoryError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise HoldfastError(f"cannot read {printable(path)}: {error}") from error
    if len(values) == 1 and isinstance(next(iter(values.values())), dict):
        return dict(next(iter(values.values())))
    return values


def _read_npy(file: io.BytesIO) -> Any:
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    dtype = header(file)[2]
    if not dtype.hasobject:
        file.seek(0)
        return np.load(file, allow_pickle=False)
    try:
        value = _ArraysOnly(file).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle fails in nearly any way
        raise pickle.UnpicklingError(f"a damaged pickle ({type(error).__name__})") from error
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


class _ArraysOnly(pickle.Unpickler):
    """Rebuilds numpy arrays, dictionaries, lists, text and numbers. Asked for any other name, it refuses."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.zeros(0).__reduce__()[0]
        if module in ("numpy.core.numeric", "numpy._core.numeric") and name == "_frombuffer":
            return _frombuffer
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        raise pickle.UnpicklingError(
            f"it holds more than arrays ({printable(module)}.{printable(name)}), which could run foreign code and is "
            "never unpickled; save it as plain arrays: numpy.savez(file, **{'labeled_data/data': ..., ...})"
        )


def _frombuffer(buffer: Any, dtype: Any, shape: Any, order: Any, axis_order: Any = None) -> Array:
    array: Array = np.frombuffer(buffer, dtype=np.dtype(dtype)).reshape(shape, order=order)
    return array if axis_order is None else array.transpose(axis_order)


def _latin1(text: str, encoding: str) -> bytes:
    """How old pickles write bytes; no other encoding has a place in an array."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it encodes text as {encoding!r}, which no array does")
    return text.encode("latin1")
