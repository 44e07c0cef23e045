"""A set with anomalies made of the embedded digits, to try the whole study in seconds, without a download."""

from __future__ import annotations

import torch

from holdfast.data.anomalies import SETS, AnomalySet
from holdfast.data.listing import ReaderOptions
from holdfast.data.making import KINDS, damage_each
from holdfast.data.readers.digits import read_digits
from holdfast.data.splits import ArraySplit, all_images
from holdfast.rng import derive


def make_digits_anomalies(*, severity: float = 0.5, seed: int = 0) -> AnomalySet:
    """The report's set with digits instead of garments: 0 to 4 are normal, 5 to 9 anomalies."""
    digits = read_digits("digits", ReaderOptions())
    assert digits.test is not None
    images = torch.cat([all_images(digits.train), all_images(digits.test)])
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
    return AnomalySet(
        classes=digits.classes[:5],
        unlabeled=ArraySplit(images[parts[0]], origin="unlabeled"),
        labeled=ArraySplit(images[parts[1]], labels[parts[1]], origin="labeled"),
        sets=tuple(sets),
        kinds=KINDS,
        manifest={"made_by": "digits-anomalies", "seed": seed, "severity": severity},
    )
