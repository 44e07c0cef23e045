"""Sets with anomalies: made as promised, read back, and never unpickled further than arrays."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.data.anomalies import (
    CLASSES,
    CORRUPTIONS,
    KINDS,
    AnomalySet,
    corrupt,
    make_fashion_anomalies,
    padded,
    read_anomalies,
    save_anomalies,
)
from holdfast.errors import HoldfastError

SMALL = {"unlabeled": 60, "labeled": 20, "normal": 15, "anomalous": 8}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-ins for the two sets: each image tells its set, class and number by its pixels."""
    folder = tmp_path_factory.mktemp("sets")
    for name, base in (("fashion_mnist", 100), ("mnist", 200)):
        arrays = {}
        for split, n in (("train", 250), ("test", 200)):
            x = np.zeros((n, 28, 28), dtype=np.uint8)
            x[:, 4:24, 4:24] = base + np.arange(n)[:, None, None] % 10
            x[:, 0, 0], x[:, 0, 1] = np.arange(n) % 256, 1 if split == "train" else 2
            arrays |= {f"x_{split}": x, f"y_{split}": (np.arange(n) % 10).astype(np.uint8)}
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


@pytest.fixture(scope="module")
def made(root: Path) -> AnomalySet:
    return make_fashion_anomalies(root=root, **SMALL)


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
    assert made.manifest["anomalies_a_set"] == {"corrupted": 4, "garments": 2, "digits": 2}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_damage_shows_and_grows(name: str) -> None:
    image = padded(torch.arange(28 * 28).view(1, 1, 28, 28).remainder(200).to(torch.uint8))[0]
    change = []
    for severity in (0.2, 1.0):
        other = corrupt(image, name, severity=severity, generator=torch.Generator().manual_seed(3))
        assert other.shape == image.shape
        change.append(float((other.float() - image.float()).square().mean()))
    assert change[0] > 0
    assert change[1] > change[0] or name == "shuffle"


def test_saved_and_read_back(made: AnomalySet, tmp_path: Path) -> None:
    path = save_anomalies(made, tmp_path)
    again = read_anomalies(path)
    assert again.classes == made.classes
    assert again.kinds == made.kinds
    for a, b in zip((again.labeled, *again.sets), (made.labeled, *made.sets), strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.groups, b.groups)
    assert torch.equal(again.unlabeled.images, made.unlabeled.images)
    assert '"seed": 0' in (tmp_path / "manifest.json").read_text()


def nested(made: AnomalySet) -> dict[str, Any]:
    def part(split: Any, width: int) -> dict[str, Any]:
        return {"data": split.images[:, 0].numpy(), "labels": np.eye(width, dtype=np.float32)[split.labels.numpy()]}

    sets = {f"representative_set_{i + 1}": part(s, 6) for i, s in enumerate(made.sets)}
    return {"unlabeled_data": made.unlabeled.images[:, 0].numpy(), "labeled_data": part(made.labeled, 5), **sets}


@pytest.mark.parametrize("kind", ["npy", "npz", "protocol 2", "protocol 5"])
def test_the_reports_dictionary_is_read(made: AnomalySet, tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("set.npz" if kind == "npz" else "set.npy")
    if kind == "npz":
        np.savez(path, data=np.array(nested(made), dtype=object))
    elif kind == "npy":
        np.save(path, np.array(nested(made), dtype=object), allow_pickle=True)
    else:
        write_npy(path, np.array(nested(made), dtype=object), int(kind[-1]))
    again = read_anomalies(path)
    assert torch.equal(again.sets[1].images, made.sets[1].images)
    assert torch.equal(again.sets[1].labels, made.sets[1].labels)
    assert again.classes == ("0", "1", "2", "3", "4")


def write_npy(path: Path, value: Any, protocol: int) -> None:
    """An .npy of objects with a pickle of our choice."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
    path.write_bytes(file.getvalue() + pickle.dumps(value, protocol=protocol))


class Trap:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_would_run_something_is_refused_before_it_does(tmp_path: Path, protocol: int) -> None:
    write_npy(tmp_path / "trap.npy", Trap(f"touch {tmp_path / 'ran'}"), protocol)
    with pytest.raises(HoldfastError, match=r"more than arrays \(posix.system\), which could run foreign code"):
        read_anomalies(tmp_path / "trap.npy")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["builtins.eval", "numpy.load", "numpy.f2py.os.system", "_codecs.decode"])
def test_no_other_name_can_be_reached(tmp_path: Path, name: str) -> None:
    module, _, attribute = name.rpartition(".")
    write_npy(tmp_path / "x.npy", 0, 2)
    head = (tmp_path / "x.npy").read_bytes()[: -len(pickle.dumps(0, protocol=2))]
    (tmp_path / "x.npy").write_bytes(head + f"c{module}\n{attribute}\n.".encode())
    with pytest.raises(HoldfastError, match="more than arrays"):
        read_anomalies(tmp_path / "x.npy")


def test_bad_files_are_refused(made: AnomalySet, tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="no such file"):
        read_anomalies(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(b"nonsense")
    with pytest.raises(HoldfastError, match="cannot read"):
        read_anomalies(tmp_path / "a.npy")
    whole = nested(made)
    for change, message in (
        ({"unlabeled_data": None}, "unlabeled_data must be an array, got NoneType"),
        ({"labeled_data": {"data": whole["labeled_data"]["data"]}}, "labeled_data has no labels; it has: data"),
        ({"labeled_data": {**whole["labeled_data"], "labels": np.zeros((20, 5))}}, "must be one-hot rows"),
        ({"representative_set_2": whole["labeled_data"]}, "6 wide; got shape .20, 5."),
    ):
        np.save(tmp_path / "b.npy", np.array({**whole, **change}, dtype=object), allow_pickle=True)
        with pytest.raises(HoldfastError, match=message):
            read_anomalies(tmp_path / "b.npy")
    del whole["representative_set_1"]
    np.save(tmp_path / "c.npy", np.array(whole, dtype=object), allow_pickle=True)
    with pytest.raises(HoldfastError, match="has no representative_set_1; it has: unlabeled_data"):
        read_anomalies(tmp_path / "c.npy")
    good = (tmp_path / "c.npy").read_bytes()
    (tmp_path / "d.npy").write_bytes(good[: len(good) // 2])
    with pytest.raises(HoldfastError, match="cannot read"):
        read_anomalies(tmp_path / "d.npy")


def test_bad_settings_are_refused(root: Path) -> None:
    for changes, message in (
        ({"shares": {"digit": 1.0}}, "unknown kind of anomaly 'digit'; did you mean 'digits'"),
        ({"shares": {"digits": 0.0}}, "shares must be >= 0 and not all 0"),
        ({"severity": 0.0}, "severity must be in"),
        ({"unlabeled": 26_000}, "26050 normal images are asked for and 125 are there"),
    ):
        with pytest.raises(HoldfastError, match=message):
            make_fashion_anomalies(root=root, **{**SMALL, **changes})  # type: ignore[arg-type]
