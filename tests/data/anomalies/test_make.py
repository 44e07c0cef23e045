"""Sets with anomalies are made as promised."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.data.anomalies import AnomalySet
from holdfast.data.making import CLASSES, KINDS, make_fashion_anomalies
from holdfast.errors import HoldfastError

from .conftest import SMALL


def test_sizes_classes_and_shape(made: AnomalySet) -> None:
    assert made.classes == ("Trouser", "Sandal", "Sneaker", "Bag", "Ankle boot")
    assert (len(made.unlabeled), len(made.labeled)) == (60, 20)
    assert {len(s) for s in made.sets} == {23}
    assert made.unlabeled.shape == made.sets[0].shape == (1, 32, 32)
    assert made.unlabeled.images[:, :, :2].max() == 0  # the border
    assert (made.unlabeled.labels == -1).all()
    pixel = made.labeled.images[:, 0, 10, 10].long() - 100
    assert torch.equal(torch.tensor(CLASSES)[made.labeled.labels], pixel)


def test_no_image_is_in_two_parts(made: AnomalySet) -> None:
    normal = [made.unlabeled, made.labeled, *(s.subset((s.groups < 0).nonzero().flatten()) for s in made.sets)]
    numbers = [tuple(p) for s in normal for p in s.images[:, 0, 2, 2:4].tolist()]
    assert len(set(numbers)) == len(numbers) == 60 + 20 + 30
    assert {part for _, part in numbers} == {1}


def test_kinds_and_shares(made: AnomalySet, root: Path) -> None:
    for split in made.sets:
        counts = torch.bincount(split.groups[split.groups >= 0], minlength=4).tolist()
        assert dict(zip(KINDS, counts, strict=True)) == {"corrupted": 4, "garments": 2, "digits": 2, "noise": 0}
        assert torch.equal(made.anomalous(split), split.groups >= 0)
        garments = split.images[split.groups == 1][:, 0, 10, 10] - 100
        assert not set(garments.tolist()) & set(CLASSES)
        assert (split.images[split.groups == 2][:, 0, 10, 10] >= 200).all()
    only = make_fashion_anomalies(root=root, shares={"noise": 1.0}, **SMALL)
    noise = only.sets[0].images[only.sets[0].groups == 3].float()
    assert len(noise) == 8
    assert noise.mean() == pytest.approx(127.5, abs=5)


def test_the_seed_decides(made: AnomalySet, root: Path) -> None:
    again, other = (make_fashion_anomalies(root=root, seed=s, **SMALL) for s in (0, 1))
    assert again.manifest == made.manifest
    assert made.manifest["sha256"] != other.manifest["sha256"]
    assert made.manifest["anomalies_per_set"] == {"corrupted": 4, "garments": 2, "digits": 2}


def test_bad_settings_are_refused(root: Path) -> None:
    for changes, message in (
        ({"shares": {"digit": 1.0}}, "unknown kind of anomaly 'digit'; did you mean 'digits'"),
        ({"shares": {"digits": 0.0}}, "shares must be finite, >= 0 and not all 0"),
        ({"shares": {"digits": float("inf")}}, "shares must be finite"),
        ({"severity": 0.0}, "severity must be in"),
        ({"unlabeled": 26_000}, "26050 normal images are needed and there are 125"),
    ):
        with pytest.raises(HoldfastError, match=message):
            make_fashion_anomalies(root=root, **{**SMALL, **changes})  # type: ignore[arg-type]
