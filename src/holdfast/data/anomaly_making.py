"""Sets with anomalies, made of Fashion-MNIST as the report's was, and of the embedded digits.

Noise and specks of damaged images are corruptions of :mod:`holdfast.corruptions`, only stronger; the other kinds of
damage remove or rearrange what the image shows, which corruptions are careful not to do.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.corruptions import to_bytes
from holdfast.corruptions.imgaug import gaussian, salt_and_pepper
from holdfast.data.anomalies import SETS, AnomalySet
from holdfast.data.biased import apportion
from holdfast.data.listing import ReaderOptions
from holdfast.data.readers.digits import read_digits
from holdfast.data.readers.torchvision_sets import read_torchvision
from holdfast.data.splits import ArraySplit
from holdfast.errors import require, unknown
from holdfast.files import at_home
from holdfast.rng import derive

CLASSES: Final = (1, 5, 7, 8, 9)
"""Trouser, sandal, sneaker, bag, ankle boot: the normal classes of the report, as Fashion-MNIST numbers them."""
SIDE: Final = 32
UNLABELED, LABELED, NORMAL, ANOMALOUS = 26_000, 2_000, 1_000, 52
SHARES: Final = {"corrupted": 0.5, "garments": 0.25, "digits": 0.25}
KINDS: Final = ("corrupted", "garments", "digits", "noise")
Damage = Callable[[Tensor, float, torch.Generator], Tensor]


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
    require(
        0 < total < math.inf and min(shares.values()) >= 0, f"shares must be finite, >= 0 and not all 0, got {shares}"
    )
    require(0 < severity <= 1, f"severity must be in (0, 1], got {severity}")
    options = ReaderOptions(root=None if root is None else at_home(root))
    fashion = read_torchvision("fashion-mnist", options)
    assert isinstance(fashion.train, ArraySplit)
    assert isinstance(fashion.test, ArraySplit)
    order = torch.Generator().manual_seed(derive(seed, "anomalies/order"))
    mine = torch.isin(fashion.train.labels, torch.tensor(CLASSES)).nonzero().flatten()
    mine = mine[torch.randperm(len(mine), generator=order)]
    sizes = [unlabeled, labeled, *([normal] * len(SETS))]
    require(
        min(sizes) >= 1 and sum(sizes) <= len(mine),
        f"{sum(sizes)} normal images are needed and there are {len(mine)}; ask for fewer",
    )
    number = torch.full((10,), -1)
    number[torch.tensor(CLASSES)] = torch.arange(len(CLASSES))
    parts = torch.split(mine[: sum(sizes)], sizes)
    images, labels = fashion.train.images, number[fashion.train.labels]
    exact = [share / total * anomalous for share in shares.values()]
    counts = dict(zip(shares, apportion(exact, anomalous), strict=True))
    draws = torch.Generator().manual_seed(derive(seed, "anomalies/draw"))
    source = _AnomalySource(fashion.test, options, severity, draws)
    sets = []
    for name, part in zip(SETS, parts[2:], strict=True):
        anomalies = [(KINDS.index(kind), source.draw(kind, count)) for kind, count in counts.items() if count]
        mixed_images = torch.cat([padded(images[part]), *(x for _, x in anomalies)])
        kinds = torch.cat([torch.full((normal,), -1), *(torch.full((len(x),), kind) for kind, x in anomalies)])
        truth = torch.cat([labels[part], torch.full((len(kinds) - normal,), len(CLASSES))])
        mixed = torch.randperm(len(truth), generator=order)
        sets.append(ArraySplit(mixed_images[mixed], truth[mixed], kinds[mixed], name))
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
        "anomalies_per_set": counts,
        "sizes": {"unlabeled": unlabeled, "labeled": labeled, "normal": normal, "anomalous": anomalous},
        "fashion_classes": list(CLASSES),
        "sha256": {s.origin: digest(s.images) for s in (made.unlabeled, made.labeled, *made.sets)},
    }
    return replace(made, manifest=manifest)


def make_digits_anomalies(*, severity: float = 0.5, seed: int = 0) -> AnomalySet:
    """The same with the embedded digits, to try everything in seconds: 0 to 4 are normal, 5 to 9 anomalies."""
    digits = read_digits("digits", ReaderOptions())
    assert isinstance(digits.train, ArraySplit)
    assert isinstance(digits.test, ArraySplit)
    images = torch.cat([digits.train.images, digits.test.images])
    labels = torch.cat([digits.train.labels, digits.test.labels])
    generator = torch.Generator().manual_seed(derive(seed, "anomalies/digits"))
    order = torch.randperm(len(labels), generator=generator)
    mine, others = order[labels[order] < 5], order[labels[order] >= 5]
    parts = torch.split(mine, [500, 100, 100, 100, len(mine) - 800])
    sets = []
    for i, name in enumerate(SETS):
        own = slice(20 * i, 20 * i + 20)
        damaged = damage_each(images[parts[4][own]], severity=severity, generator=generator)
        mixed_images = torch.cat([images[parts[2 + i]], damaged, images[others[own]]])
        kinds = torch.cat([torch.full((100,), -1), torch.zeros(20, dtype=torch.int64), torch.full((20,), 2)])
        truth = torch.cat([labels[parts[2 + i]], torch.full((40,), 5)])
        mixed = torch.randperm(140, generator=generator)
        sets.append(ArraySplit(mixed_images[mixed], truth[mixed], kinds[mixed], name))
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
class _AnomalySource:
    """Hands out anomalies, no image twice."""

    fashion: ArraySplit
    options: ReaderOptions
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
        require(len(left) >= count, f"{count} anomalies of kind {kind} are needed, {len(left)} are left; ask for fewer")
        drawn, self._left[kind] = left[:count], left[count:]
        if kind == "corrupted":
            return damage_each(drawn, severity=self.severity, generator=self.generator)
        return drawn

    def _pool(self, kind: str) -> Tensor:
        if kind == "digits":
            mnist = read_torchvision("mnist", self.options).test
            assert isinstance(mnist, ArraySplit)
            return padded(mnist.images)
        mine = torch.isin(self.fashion.labels, torch.tensor(CLASSES))
        return padded(self.fashion.images[mine if kind == "corrupted" else ~mine])


def damage(image: Tensor, name: str, *, severity: float, generator: torch.Generator) -> Tensor:
    """One uint8 image (C, H, W), damaged. severity: in (0, 1]."""
    if name not in DAMAGES:
        raise unknown("damage", name, DAMAGES)
    return to_bytes(DAMAGES[name](image[None].float() / 255, severity, generator))[0]


def damage_each(images: Tensor, *, severity: float, generator: torch.Generator) -> Tensor:
    """uint8 images (N, C, H, W), each damaged in a way drawn for it."""
    names = list(DAMAGES)
    which = torch.randint(len(names), (len(images),), generator=generator).tolist()
    done = [
        damage(image, names[i], severity=severity, generator=generator) for image, i in zip(images, which, strict=True)
    ]
    return torch.stack(done) if done else images


def _noise(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    return gaussian(x, generator=generator, deviation=(0.5 * severity, 0.5 * severity))


def _specks(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    return salt_and_pepper(x, generator=generator, share=0.25 * severity)


def _occlude(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    """A square of one random grey, wholly inside the image."""
    height, width = x.shape[2:]
    side = max(2, round(severity * 0.7 * min(height, width)))
    top, left = (int(torch.randint(n - side + 1, (), generator=generator)) for n in (height, width))
    x = x.clone()
    x[:, :, top : top + side, left : left + side] = torch.rand((), generator=generator)
    return x


def _shuffle(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    """Quarters of the image swapped; of an odd side, the last row or column stays."""
    height, width = (n // 2 for n in x.shape[2:])
    places = [(slice(i, i + height), slice(j, j + width)) for i in (0, height) for j in (0, width)]
    turn = 1 + int(torch.randint(3, (), generator=generator))
    made = x.clone()
    for target, source in zip(places, places[turn:] + places[:turn], strict=True):
        made[:, :, *target] = x[:, :, *source]
    return made


def _invert(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    return (1 - severity) * x + severity * (1 - x)


def _stripes(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    """Every few rows lost."""
    period = max(2, round(2 / severity))
    start = int(torch.randint(period, (), generator=generator))
    x = x.clone()
    x[:, :, start::period] = 0
    return x


DAMAGES: dict[str, Damage] = {
    "noise": _noise,
    "salt-and-pepper": _specks,
    "occlusion": _occlude,
    "shuffle": _shuffle,
    "inversion": _invert,
    "stripes": _stripes,
}
"""Kinds of damage by name: (images in [0, 1] (B, C, H, W), severity, generator) to images."""
