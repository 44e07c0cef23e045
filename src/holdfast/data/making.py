"""``holdfast data make``: sets with a known shortcut or known anomalies, with a manifest of what is in them.

Sets with anomalies are made of Fashion-MNIST as the report's was. Noise and specks of damaged images are
corruptions of :mod:`holdfast.corruptions`, only stronger; the other kinds of damage remove or rearrange what the image
shows, which corruptions are careful not to do.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.corruptions import to_bytes
from holdfast.corruptions.imgaug import gaussian, salt_and_pepper
from holdfast.data.anomalies import FILE, SETS, AnomalySet, save_anomalies
from holdfast.data.biased import VARIANTS, apportion, make_biased
from holdfast.data.listing import ReaderOptions
from holdfast.data.load_data import load
from holdfast.data.readers.corrupted_cifar10 import KINDS as CORRUPTED_KINDS
from holdfast.data.readers.corrupted_cifar10 import make_corrupted_cifar10
from holdfast.data.readers.torchvision_sets import read_torchvision
from holdfast.data.splits import ArraySplit, Split, all_images
from holdfast.devices import resolve_device
from holdfast.errors import require, require_known
from holdfast.files import at_home
from holdfast.rng import derive
from holdfast.settings.training import CONFLICT

USES = {
    "corrupted-cifar10": ("kind", "conflict", "severity", "frost", "device"),
    **dict.fromkeys(VARIANTS, ("data", "image_size", "conflict")),
    "fashion-anomalies": ("anomalies", "strength"),
}
"""Which settings each set is made with, besides its place and its seed."""


def make_data(
    what: str,
    out: str | Path,
    *,
    note: Callable[[str], None] = lambda text: None,
    root: str | None = None,
    seed: int = 0,
    overwrite: bool = False,
    **settings: Any,
) -> str:
    """Make a set and say in one line what it holds.

    settings: those of ``USES``, None for the default. Those that the set does not use are refused.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    for name, value in given.items():
        users = [made for made, names in USES.items() if name in names]
        require(what in users, f"{name} {value} is for {', '.join(users)}, not for {what}; leave it out")
    require(what not in VARIANTS or "data" in given, f"{what} is added to a set: name it with --data")
    require(0 <= seed < 2**63, f"seed must be in 0..2**63-1, got {seed}")
    file = Path(out) / FILE if what == "fashion-anomalies" else Path(out)
    require(file.suffix == ".npz", f"out must end in .npz, got {file}")
    remedy = "replace it with --overwrite or choose another --out"
    require(overwrite or not file.exists(), f"{file} exists already; {remedy}")
    where = resolve_device(given.pop("device", "cpu"))
    if what == "fashion-anomalies":
        severity = given.get("strength", 0.5)
        made = make_fashion_anomalies(root=root, shares=given.get("anomalies"), severity=severity, seed=seed)
        folder = save_anomalies(made, out)
        kinds = ", ".join(f"{count} {kind}" for kind, count in made.manifest["anomalies_per_set"].items() if count)
        sizes = f"{len(made.unlabeled):,} garments without and {len(made.labeled):,} with label"
        return f"{folder}: {sizes}; {len(made.sets)} test sets with anomalies ({kinds} each)"
    if what == "corrupted-cifar10":
        source = load("cifar10", root=root)
        chosen: dict[str, Any] = {"kind": "dfa", "conflict": CONFLICT} | given
        frost = chosen.pop("frost", None)
        note(f"corrupting {len(source.train) + len(source.test or ()):,} images")
        if "frost" in CORRUPTED_KINDS.get(chosen["kind"], ()) and frost is None:
            note("frost textures are drawn from noise; --frost takes a folder of photographs")
        manifest = make_corrupted_cifar10(source, out=out, **chosen, seed=seed, device=where, frost_folder=frost)
    else:
        source = load(given["data"], root=root, image_size=given.get("image_size"))
        for own in source.notes:
            note(str(own))
        manifest = make_biased(source, what, out=out, conflict=given.get("conflict", CONFLICT), seed=seed)
    train = manifest.counts["train"]
    return f"{out}: {train['samples']} training images, {train['conflicting']} of them bias-conflicting"


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
        require_known("kind of anomaly", name, KINDS)
    total = sum(shares.values())
    ok = 0 < total < math.inf and min(shares.values()) >= 0
    require(ok, f"shares must be finite, >= 0 and not all 0, got {shares}")
    require(0 < severity <= 1, f"severity must be in (0, 1], got {severity}")
    options = ReaderOptions(root=None if root is None else at_home(root))
    fashion = read_torchvision("fashion-mnist", options)
    assert fashion.test is not None
    order = torch.Generator().manual_seed(derive(seed, "anomalies/order"))
    mine = torch.isin(fashion.train.labels, torch.tensor(CLASSES)).nonzero().flatten()
    mine = mine[torch.randperm(len(mine), generator=order)]
    sizes = [unlabeled, labeled, *([normal] * len(SETS))]
    needed, there = sum(sizes), len(mine)
    fit = min(sizes) >= 1 and needed <= there
    require(fit, f"{needed} normal images are needed and there are {there}; ask for fewer")
    number = torch.full((10,), -1)
    number[torch.tensor(CLASSES)] = torch.arange(len(CLASSES))
    parts = torch.split(mine[: sum(sizes)], sizes)
    images, labels = all_images(fashion.train), number[fashion.train.labels]
    exact = [share / total * anomalous for share in shares.values()]
    counts = dict(zip(shares, apportion(exact, anomalous), strict=True))
    draws = torch.Generator().manual_seed(derive(seed, "anomalies/draw"))
    left: dict[str, Tensor] = {}

    def draw(kind: str, count: int, test: Split = fashion.test) -> Tensor:
        """Anomalies of a kind, no image twice."""
        if kind == "noise":
            return torch.randint(0, 256, (count, 1, SIDE, SIDE), generator=draws).to(torch.uint8)
        if kind not in left:
            pool = _pool(kind, test, options)
            left[kind] = pool[torch.randperm(len(pool), generator=draws)]
        there = len(left[kind])
        require(there >= count, f"{count} anomalies of kind {kind} are needed, {there} are left; ask for fewer")
        drawn, left[kind] = left[kind][:count], left[kind][count:]
        return damage_each(drawn, severity=severity, generator=draws) if kind == "corrupted" else drawn

    sets = []
    for name, part in zip(SETS, parts[2:], strict=True):
        anomalies = [(KINDS.index(kind), draw(kind, count)) for kind, count in counts.items() if count]
        mixed_images = torch.cat([padded(images[part]), *(x for _, x in anomalies)])
        kinds = torch.cat([torch.full((normal,), -1), *(torch.full((len(x),), kind) for kind, x in anomalies)])
        truth = torch.cat([labels[part], torch.full((len(kinds) - normal,), len(CLASSES))])
        mixed = torch.randperm(len(truth), generator=order)
        sets.append(ArraySplit(mixed_images[mixed], truth[mixed], kinds[mixed], name))
    free = ArraySplit(padded(images[parts[0]]), origin="unlabeled")
    own = ArraySplit(padded(images[parts[1]]), labels[parts[1]], origin="labeled")
    manifest = {
        "made_by": "fashion-anomalies",
        "seed": seed,
        "severity": severity,
        "shares": {k: v / total for k, v in shares.items()},
        "anomalies_per_set": counts,
        "sizes": {"unlabeled": unlabeled, "labeled": labeled, "normal": normal, "anomalous": anomalous},
        "fashion_classes": list(CLASSES),
        "sha256": {s.origin: hashlib.sha256(s.images.numpy().tobytes()).hexdigest() for s in (free, own, *sets)},
    }
    return AnomalySet(tuple(fashion.classes[c] for c in CLASSES), free, own, tuple(sets), KINDS, manifest)


def padded(images: Tensor) -> Tensor:
    """28×28 in the middle of 32×32, black around it."""
    height, width = images.shape[2:]
    top, left = (SIDE - height) // 2, (SIDE - width) // 2
    return F.pad(images, (left, SIDE - width - left, top, SIDE - height - top))


def _pool(kind: str, fashion: Split, options: ReaderOptions) -> Tensor:
    """Images that anomalies of a kind are taken from."""
    if kind == "digits":
        mnist = read_torchvision("mnist", options).test
        assert mnist is not None
        return padded(all_images(mnist))
    mine = torch.isin(fashion.labels, torch.tensor(CLASSES))
    return padded(all_images(fashion)[mine if kind == "corrupted" else ~mine])


def damage(image: Tensor, name: str, *, severity: float, generator: torch.Generator) -> Tensor:
    """One uint8 image (C, H, W), damaged. severity: in (0, 1]."""
    require_known("damage", name, DAMAGES)
    return to_bytes(DAMAGES[name](image[None].float() / 255, severity, generator))[0]


def damage_each(images: Tensor, *, severity: float, generator: torch.Generator) -> Tensor:
    """uint8 images (N, C, H, W), each damaged in a way drawn for it."""
    names = list(DAMAGES)
    which = torch.randint(len(names), (len(images),), generator=generator).tolist()
    one = partial(damage, severity=severity, generator=generator)
    done = [one(image, names[i]) for image, i in zip(images, which, strict=True)]
    return torch.stack(done) if done else images


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


def _stripes(x: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    """Every few rows lost."""
    period = max(2, round(2 / severity))
    start = int(torch.randint(period, (), generator=generator))
    x = x.clone()
    x[:, :, start::period] = 0
    return x


DAMAGES: dict[str, Damage] = {
    "noise": lambda x, severity, g: gaussian(x, generator=g, deviation=(0.5 * severity, 0.5 * severity)),
    "salt-and-pepper": lambda x, severity, g: salt_and_pepper(x, generator=g, share=0.25 * severity),
    "occlusion": _occlude,
    "shuffle": _shuffle,
    "inversion": lambda x, severity, g: (1 - severity) * x + severity * (1 - x),
    "stripes": _stripes,
}
"""Kinds of damage by name: (images in [0, 1] (B, C, H, W), severity, generator) to images."""
