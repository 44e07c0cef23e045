"""CIFAR, SVHN, MNIST and Fashion-MNIST: the .npz of that name in the root folder, else torchvision's files."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.data.listing import ReaderOptions
from holdfast.data.readers.npz import assemble, unpack
from holdfast.errors import HoldfastError
from holdfast.parts import reader
from holdfast.printable import printable

if TYPE_CHECKING:
    from holdfast.data.images import Array
    from holdfast.data.splits import Dataset

TIMEOUT = 30.0
"""Seconds without an answer after which a download is given up; torchvision would wait for ever."""
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree
orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum
rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train
trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR100 = tuple(_CIFAR100.split())
DIGITS = tuple("0123456789")
"""Class names in the order of their labels, for files that come without them."""
MNIST_ARCHIVES = tuple(f"{p}-{k}-ubyte.gz" for p in ("train", "t10k") for k in ("images-idx3", "labels-idx1"))


@dataclass(frozen=True)
class TorchvisionSet:
    """How torchvision names and stores a set.

    kind: its class in torchvision.datasets.
    folder: where in the root folder it keeps the files; "" for the root folder itself.
    archives: downloads it can start from, relative to the root folder.
    classes: names in the order of the labels; none where torchvision's class knows them.
    """

    name: str
    kind: str
    folder: str
    archives: tuple[str, ...]
    classes: tuple[str, ...] = ()

    def read(self, root: Path) -> tuple[Path, dict[str, Array]]:
        """(where it was found, its arrays), downloaded where it is not there."""
        for name in (self.name, self.name.replace("-", "_")):
            path = root / f"{name}.npz"
            if path.is_file():
                return path, unpack(path)[0]
        source, where = self.source(), root / self.folder
        with suppress(Exception):  # absent or damaged, in as many ways as there are formats: a download repairs both
            return where, self._content(source, root)
        try:
            with _staged(root, self.archives) as stage, _patience(TIMEOUT):
                source(stage, download=True, **_part(source, "train"))
                source(stage, download=True, **_part(source, "test"))
            return where, self._content(source, root)
        except Exception as error:
            files = f"{self.folder}/" if self.folder else ", ".join(self.archives)
            raise HoldfastError(
                f"cannot get {self.name}: {printable(root)} holds neither {self.name}.npz nor torchvision's "
                f"own files ({files}) whole, and the download failed ({' '.join(str(error).split())}); put "
                f"{self.name}.npz (x_train, y_train, x_test, y_test) there, name another folder with root or "
                "$HOLDFAST_ROOT, or try again with a network"
            ) from error

    def source(self) -> Any:
        import torchvision.datasets  # slow to import, and needed for few sets

        return getattr(torchvision.datasets, self.kind)

    def _content(self, source: Any, root: Path) -> dict[str, Array]:
        import numpy as np

        content: dict[str, Array] = {}
        for split in ("train", "test"):
            part = source(root, **_part(source, split))
            content[f"x_{split}"] = np.asarray(part.data)
            content[f"y_{split}"] = np.asarray(part.labels if hasattr(part, "labels") else part.targets)
        return content


def _part(source: Any, split: str) -> dict[str, Any]:
    """How a class of torchvision takes a split: SVHN by its name."""
    return {"split": split} if "split" in signature(source).parameters else {"train": split == "train"}


SETS = (
    TorchvisionSet("cifar10", "CIFAR10", "cifar-10-batches-py", ("cifar-10-python.tar.gz",), CIFAR10),
    TorchvisionSet("cifar100", "CIFAR100", "cifar-100-python", ("cifar-100-python.tar.gz",), CIFAR100),
    TorchvisionSet("svhn", "SVHN", "", ("train_32x32.mat", "test_32x32.mat"), DIGITS),
    TorchvisionSet("mnist", "MNIST", "MNIST/raw", tuple(f"MNIST/raw/{a}" for a in MNIST_ARCHIVES)),
    TorchvisionSet(
        "fashion-mnist", "FashionMNIST", "FashionMNIST/raw", tuple(f"FashionMNIST/raw/{a}" for a in MNIST_ARCHIVES)
    ),
)


@reader(
    "torchvision",
    about="Sets that torchvision downloads.",
    names={
        "cifar10": "CIFAR-10: ten kinds of animals and vehicles, 32x32 pixels.",
        "cifar100": "CIFAR-100: a hundred classes, 32x32 pixels.",
        "svhn": "Street view house numbers: digits, 32x32 pixels.",
        "mnist": "MNIST: handwritten digits, grey, 28x28 pixels.",
        "fashion-mnist": "Fashion-MNIST: ten kinds of garments, grey, 28x28 pixels.",
    },
    order=20,
)
def read_torchvision(source: str | Path, options: ReaderOptions) -> Dataset:
    """Read the set, or download it where it is not there."""
    own = next(own for own in SETS if own.name == source)
    origin, content = own.read(options.folder())
    classes = own.classes or tuple(own.source().classes)
    return assemble(content, name=own.name, origin=printable(origin), classes=classes, image_size=options.image_size)


@reader(
    "coloured",
    about="MNIST and Fashion-MNIST with their colour as a shortcut to the class, made when they are loaded.",
    names={
        "coloured-mnist": "MNIST with its colour as a shortcut to the class.",
        "coloured-fashion-mnist": "Fashion-MNIST with its colour as a shortcut to the class.",
    },
    takes=("conflict",),
    order=21,
)
def read_coloured(source: str | Path, options: ReaderOptions) -> Dataset:
    """As ``holdfast data make coloured`` writes it: a colour goes with its class in training, not in the test set."""
    from holdfast.data.biased import coloured

    grey = read_torchvision(str(source).removeprefix("coloured-"), options)
    return replace(coloured(grey, conflict=options.conflict, seed=options.seed), name=str(source))


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
