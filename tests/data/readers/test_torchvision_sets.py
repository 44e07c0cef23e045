"""Well-known sets: from an .npz, from torchvision's own files, by download, or a message that says how to get them."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision.datasets
import torchvision.datasets.utils

from holdfast.data import ArraySplit, Dataset, load
from holdfast.errors import HoldfastError
from holdfast.quality import check_data

COUNTS = {"train": 40, "t10k": 20}


def digits(part: str) -> tuple[np.ndarray, np.ndarray]:
    count = COUNTS[part]
    images = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    return images, np.arange(count, dtype=np.uint8) % 10


def write_npz(path: Path) -> None:
    (x, y), (x_test, y_test) = digits("train"), digits("t10k")
    np.savez(path, x_train=x, y_train=y, x_test=x_test, y_test=y_test)


def write_archives(folder: Path) -> list[tuple[str, str]]:
    """The four files of MNIST in its own format, and their checksums."""
    folder.mkdir(parents=True)
    made = []
    for part in COUNTS:
        images, labels = digits(part)
        for name, values in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            head = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
            content = gzip.compress(head + values.tobytes())
            (folder / f"{name}.gz").write_bytes(content)
            made.append((f"{name}.gz", hashlib.md5(content).hexdigest()))
    return made


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that answers torchvision's downloads of MNIST."""
    folder = tmp_path / "server"
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", write_archives(folder))

    def fetch(url: str, filename: str, **_: Any) -> None:
        try:
            shutil.copy(folder / url.rpartition("/")[2], filename)
        except FileNotFoundError:
            raise URLError("no such page") from None

    monkeypatch.setattr(torchvision.datasets.utils, "_get_redirect_url", lambda url, **_: url)
    monkeypatch.setattr(torchvision.datasets.utils, "_urlretrieve", fetch)
    return folder


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, **_: Any) -> None:
        raise URLError("no network")

    monkeypatch.setattr(torchvision.datasets.utils, "_get_redirect_url", refuse)


def is_mnist(data: Dataset) -> bool:
    assert isinstance(data.train, ArraySplit)
    assert isinstance(data.test, ArraySplit)
    (x, y), (x_test, y_test) = digits("train"), digits("t10k")
    return (
        np.array_equal(data.train.images[:, 0], x)
        and np.array_equal(data.test.images[:, 0], x_test)
        and data.train.labels.tolist() == y.tolist()
        and data.test.labels.tolist() == y_test.tolist()
    )


@pytest.mark.parametrize("file", ["fashion-mnist.npz", "fashion_mnist.npz"])
def test_an_npz_of_the_same_name_comes_first(tmp_path: Path, file: str) -> None:
    write_npz(tmp_path / file)
    data = load("fashion-mnist", root=tmp_path)
    assert is_mnist(data)
    assert data.name == "fashion-mnist"
    assert data.classes == tuple(torchvision.datasets.FashionMNIST.classes)


def test_root_is_the_argument_else_the_environment_else_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("given", "environment", "data"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_ROOT", str(tmp_path / "environment"))
    write_npz(tmp_path / "environment/mnist.npz")
    assert is_mnist(load("mnist"))
    write_npz(tmp_path / "given/mnist.npz")
    (tmp_path / "environment/mnist.npz").write_text("not read")
    assert is_mnist(load("mnist", root="given"))
    write_npz(tmp_path / "data/mnist.npz")
    monkeypatch.delenv("HOLDFAST_ROOT")
    assert is_mnist(load("mnist"))


def test_what_is_not_there_is_downloaded_and_then_stays(
    tmp_path: Path, server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "new/root"
    assert is_mnist(load("mnist", root=root))
    assert not [path for path in root.iterdir() if path.name.startswith(".")]
    shutil.rmtree(server)
    assert is_mnist(load("mnist", root=root))


def test_archives_that_are_there_need_no_network(tmp_path: Path, server: Path) -> None:
    shutil.copytree(server, tmp_path / "root/MNIST/raw")
    shutil.rmtree(server)
    assert is_mnist(load("mnist", root=tmp_path / "root"))


def test_damaged_files_are_replaced(tmp_path: Path, server: Path) -> None:
    load("mnist", root=tmp_path / "root")
    (tmp_path / "root/MNIST/raw/train-images-idx3-ubyte").write_bytes(b"damaged")
    assert is_mnist(load("mnist", root=tmp_path / "root"))


def test_a_download_that_breaks_off_leaves_nothing(tmp_path: Path, server: Path) -> None:
    (server / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(HoldfastError, match=r"cannot get mnist: .*the download failed \(.*no such page"):
        load("mnist", root=tmp_path / "new/root")
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with pytest.raises(HoldfastError):
        load("mnist", root=tmp_path / "old")
    assert list((tmp_path / "old").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("cifar10", "cifar-10-batches-py/"),
        ("cifar100", "cifar-100-python/"),
        ("svhn", "train_32x32.mat, test_32x32.mat"),
        ("mnist", "MNIST/raw/"),
        ("fashion-mnist", "FashionMNIST/raw/"),
    ],
)
@pytest.mark.usefixtures("offline")
def test_without_files_and_network_the_message_says_what_to_do(tmp_path: Path, name: str, files: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        load(name, root=tmp_path / "nowhere")
    message = str(caught.value)
    for part in (f"cannot get {name}: {tmp_path}/nowhere holds neither {name}.npz nor", f"({files})", "no network",
                 f"put {name}.npz (x_train, y_train, x_test, y_test) there", "$HOLDFAST_ROOT"):  # fmt: skip
        assert part in message
    assert "\n" not in message
    assert not (tmp_path / "nowhere").exists()


def test_cifar_and_svhn_are_read_from_torchvisions_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.io import savemat

    x = np.random.default_rng(0).integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
    y = np.arange(20) % 10
    batches = tmp_path / "cifar-10-batches-py"
    batches.mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (batches / name).write_bytes(pickle.dumps({"data": x.reshape(20, -1), "labels": y.tolist()}))
    (batches / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    for name in ("train_32x32.mat", "test_32x32.mat"):
        savemat(tmp_path / name, {"X": x.transpose(2, 3, 1, 0), "y": np.where(y == 0, 10, y)[:, None]})
    for module in (torchvision.datasets.cifar, torchvision.datasets.svhn):
        monkeypatch.setattr(module, "check_integrity", lambda path, md5=None: Path(path).is_file())
    for name in ("cifar10", "svhn"):
        data = load(name, root=tmp_path)
        assert data.test is not None
        assert np.array_equal(data.test.read(torch.arange(20)), x)
        assert data.test.labels.tolist() == y.tolist()


def test_a_class_that_the_npz_lacks_is_named(tmp_path: Path) -> None:
    x = np.zeros((9, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=np.arange(9), x_test=x, y_test=np.arange(9))
    with pytest.raises(HoldfastError, match=r"cifar10: class 'truck' \(label 9\) has no training sample"):
        load("cifar10", root=tmp_path)


REAL = {
    # file, samples of a class in training and test, sum of all training pixels' mean (published channel means)
    "cifar10": (["cifar10.npz"], (5000, 1000), (0.4914, 0.4822, 0.4465)),
    "mnist": (["mnist.npz"], None, (0.1307,)),
    "fashion-mnist": (["fashion-mnist.npz", "fashion_mnist.npz"], (6000, 1000), (0.2860,)),
}


@pytest.mark.parametrize("name", REAL)
def test_the_real_sets_have_their_published_means_and_counts(name: str) -> None:
    files, counts, means = REAL[name]
    root = Path(os.environ.get("HOLDFAST_ROOT", ""))
    if "HOLDFAST_ROOT" not in os.environ or not any((root / file).is_file() for file in files):
        pytest.skip(f"$HOLDFAST_ROOT holds no {name}.npz")
    data = load(name)
    assert isinstance(data.train, ArraySplit)
    assert data.test is not None
    mean = data.train.images.double().mean((0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx(means, abs=1e-4)
    assert (len(data.test), data.num_classes) == (10_000, 10)
    if counts:
        assert torch.bincount(data.train.labels).tolist() == [counts[0]] * 10
        assert torch.bincount(data.test.labels).tolist() == [counts[1]] * 10


@pytest.mark.usefixtures("offline")
def test_check_reports_a_set_that_cannot_be_had(tmp_path: Path) -> None:
    report = check_data("svhn", root=tmp_path)
    assert not report.sound
    assert "cannot get svhn" in report.to_text()
