"""Well-known sets: the .npz of the same name where one lies in the root folder, else torchvision's files."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.data import class_names
from holdfast.data.arrays import assemble, unpack
from holdfast.data.checked import Array
from holdfast.data.options import Options
from holdfast.data.printable import printable
from holdfast.data.splits import Dataset
from holdfast.errors import HoldfastError

TIMEOUT = 30.0
"""Seconds without an answer after which a download is given up; torchvision would wait for ever."""
MNIST_ARCHIVES = tuple(f"{p}-{k}-ubyte.gz" for p in ("train", "t10k") for k in ("images-idx3", "labels-idx1"))


@dataclass(frozen=True)
class Builtin:
    """How torchvision names and stores a set.

    kind: its class in torchvision.datasets.
    folder: where in the root folder it keeps the files; "" for the root folder itself.
    archives: downloads it can start from, relative to the root folder.
    classes: names in the order of the labels; none where torchvision's class knows them.
    split_by_name: whether it is asked for split="train" rather than train=True.
    """

    name: str
    kind: str
    folder: str
    archives: tuple[str, ...]
    classes: tuple[str, ...] = ()
    split_by_name: bool = False

    def __call__(self, options: Options) -> Dataset:
        """Read the set, or download it where it is not there."""
        root = options.folder()
        origin, content = self._npz(root) or self._torchvision(root)
        return assemble(
            content,
            name=self.name,
            origin=printable(origin),
            classes=self.classes or tuple(self._source().classes),
            image_size=options.image_size,
        )

    def _source(self) -> Any:
        import torchvision.datasets  # slow to import, and needed for few sets

        return getattr(torchvision.datasets, self.kind)

    def _npz(self, root: Path) -> tuple[Path, dict[str, Array]] | None:
        for name in (self.name, self.name.replace("-", "_")):
            path = root / f"{name}.npz"
            if path.is_file():
                return path, unpack(path)[0]
        return None

    def _torchvision(self, root: Path) -> tuple[Path, dict[str, Array]]:
        source = self._source()
        where = root / self.folder
        with suppress(Exception):  # absent or damaged, in as many ways as there are formats: a download mends both
            return where, self._content(source, root)
        try:
            with _staged(root, self.archives) as stage, _patience(TIMEOUT):
                source(stage, download=True, **self._part("train"))
                source(stage, download=True, **self._part("test"))
            return where, self._content(source, root)
        except Exception as error:
            files = f"{self.folder}/" if self.folder else ", ".join(self.archives)
            raise HoldfastError(
                f"cannot get {self.name}: {printable(root)} holds neither {self.name}.npz nor torchvision's "
                f"own files ({files}) whole, and the download failed ({' '.join(str(error).split())}); put "
                f"{self.name}.npz (x_train, y_train, x_test, y_test) there, name another folder with root or "
                "$HOLDFAST_ROOT, or try again with a network"
            ) from error

    def _content(self, source: Any, root: Path) -> dict[str, Array]:
        content: dict[str, Array] = {}
        for split in ("train", "test"):
            part = source(root, **self._part(split))
            content[f"x_{split}"] = np.asarray(part.data)
            content[f"y_{split}"] = np.asarray(part.labels if hasattr(part, "labels") else part.targets)
        return content

    def _part(self, split: str) -> dict[str, Any]:
        return {"split": split} if self.split_by_name else {"train": split == "train"}


cifar10 = Builtin("cifar10", "CIFAR10", "cifar-10-batches-py", ("cifar-10-python.tar.gz",), class_names.CIFAR10)
cifar100 = Builtin("cifar100", "CIFAR100", "cifar-100-python", ("cifar-100-python.tar.gz",), class_names.CIFAR100)
svhn = Builtin(
    "svhn", "SVHN", "", ("train_32x32.mat", "test_32x32.mat"), class_names.DIGITS, split_by_name=True
)  # fmt: skip
mnist = Builtin("mnist", "MNIST", "MNIST/raw", tuple(f"MNIST/raw/{a}" for a in MNIST_ARCHIVES))
fashion_mnist = Builtin(
    "fashion-mnist",
    "FashionMNIST",
    "FashionMNIST/raw",
    tuple(f"FashionMNIST/raw/{a}" for a in MNIST_ARCHIVES),
)


@contextmanager
def _staged(root: Path, archives: tuple[str, ...]) -> Iterator[Path]:
    """A folder to download into; its files move to root once all went well, and nothing is left if not.

    archives: files to start from where root has them already.
    """
    made = [folder for folder in (root, *root.parents) if not folder.exists()]
    root.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as temporary:
            stage = Path(temporary)
            for name in archives:
                if (root / name).is_file():
                    (stage / name).parent.mkdir(parents=True, exist_ok=True)
                    (stage / name).symlink_to((root / name).resolve())
            yield stage
            for file in stage.rglob("*"):
                if file.is_file() and not file.is_symlink():
                    target = root / file.relative_to(stage)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(file, target)
    except BaseException:
        with suppress(OSError):  # not empty: someone else put something there meanwhile
            for folder in made:
                folder.rmdir()
        raise


@contextmanager
def _patience(seconds: float) -> Iterator[None]:
    """Network operations give up after so long; afterwards they have the old limit back."""
    old = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(old)
