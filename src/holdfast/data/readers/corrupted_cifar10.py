"""Corrupted CIFAR-10: every class has a corruption of its own, but for a share of its training images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from holdfast.data.listing import ReaderOptions
from holdfast.data.readers.torchvision_sets import read_torchvision
from holdfast.errors import require, require_known
from holdfast.parts import reader

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from holdfast.data.biased import Manifest
    from holdfast.data.splits import Dataset, Split

ORIGINAL = "original"
KINDS: Mapping[str, tuple[str, ...]] = {
    "lff-0": (
        "snow", "frost", "fog", "brightness", "contrast",
        "spatter", "elastic", "jpeg", "pixelate", "saturate",
    ),
    "lff-1": (
        "gaussian-noise", "shot-noise", "impulse-noise", "speckle-noise", "gaussian-blur",
        "defocus-blur", "glass-blur", "motion-blur", "zoom-blur", ORIGINAL,
    ),
    "dfa": (
        "brightness", "contrast", "gaussian-noise", "frost", "elastic",
        "gaussian-blur", "defocus-blur", "impulse-noise", "saturate", "pixelate",
    ),
}  # fmt: skip
"""The corruption of class 0, 1, ... as Learning from Failure (two types) and DFA chose them."""
SEVERITY = 5
"""Hendrycks' scale. LfF's generator adds one to its severity, so that what it calls 4 is this too."""
CHUNK = 2000
"""Images corrupted at a time. Part of what a seed means: draws follow the chunks."""

Progress = Callable[[int, int], None]
"""Called with (images done, images in all)."""
PREFIX = "corrupted-cifar10-"


@reader(
    "corrupted-cifar10",
    about="Corrupted CIFAR-10: a corruption per class as its shortcut, made of CIFAR-10 when it is loaded.",
    names={
        f"{PREFIX}{kind}": f"CIFAR-10 with {', '.join(names[:2])}, ... as shortcuts, severity {SEVERITY}."
        for kind, names in KINDS.items()
    },
    takes=("conflict",),
    order=40,
)
def read_corrupted_cifar10(source: str | Path, options: ReaderOptions) -> Dataset:
    """Made anew; ``holdfast data make corrupted-cifar10`` keeps it in a file."""
    cifar10 = read_torchvision("cifar10", options)
    kind = str(source).removeprefix(PREFIX)
    return corrupted_cifar10(cifar10, kind=kind, conflict=options.conflict, seed=options.seed)


def corrupted_cifar10(
    source: Dataset,
    *,
    kind: str = "lff-0",
    conflict: float = 0.01,
    severity: int | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    frost_folder: str | Path | None = None,
    progress: Progress = lambda done, total: None,
) -> Dataset:
    """The set in memory; groups are corruptions. Training is biased, the test set balanced within every class.

    source: any set of ten classes. severity: 1..5, by default 5, which LfF's authors call 4. Bias-conflicting images of
    a class have the other corruptions evenly in LfF's kinds, as their generator gives them, and at random in dfa.
    Numbers are drawn on the CPU and computed in float64, so that the result does not depend on the device, but
    for very rare ties in rounding. JPEG is Pillow's.
    """
    import torch

    from holdfast.corruptions import corrupt, to_bytes
    from holdfast.data.biased import balanced_groups, biased_groups
    from holdfast.data.splits import ArraySplit, Dataset
    from holdfast.rng import derive

    require_known("kind of corrupted CIFAR-10", kind, KINDS)
    names = KINDS[kind]
    there = f"{source.name} has {source.num_classes} classes"
    require(source.num_classes == len(names), f"{there}; there is a corruption for each of {len(names)}")
    require(source.shape[0] == 3, f"{source.name} is grey; corrupted CIFAR-10 is made of coloured images")
    require(severity is None or severity in (1, 2, 3, 4, 5), f"severity must be 1, 2, 3, 4 or 5, got {severity}")
    level = severity or SEVERITY
    options: dict[str, Any] = {"table": "cifar", "frost_folder": frost_folder, "codec": "pillow"}
    total, done, lock = len(source.train) + len(source.test or ()), 0, Lock()

    def count(more: int) -> None:
        nonlocal done
        with lock:  # several threads count
            done += more
            progress(done, total)

    def make(part: str, split: Split, groups: Tensor) -> ArraySplit:
        images = torch.empty(len(split), *split.shape, dtype=torch.uint8)

        def fill(group: int) -> None:
            name = names[group]
            generator = torch.Generator().manual_seed(derive(seed, f"corrupted-cifar10/{part}/{name}"))
            own = (groups == group).nonzero().flatten()
            for index in (own[start : start + CHUNK] for start in range(0, len(own), CHUNK)):
                x = split.read(index)
                if name != ORIGINAL:
                    x = x.to(device).to(torch.float64) / 255
                    x = to_bytes(corrupt(x, name, severity=level, generator=generator, **options)).cpu()
                images[index] = x
                count(len(index))

        with ThreadPoolExecutor(_threads(torch.device(device))) as pool:
            for _ in pool.map(fill, range(len(names))):
                pass
        return ArraySplit(images, split.labels, groups, origin=f"corrupted-{source.name}:{part}")

    train, test = source.train, source.test
    return Dataset(
        f"corrupted-{source.name}",
        source.classes,
        make("train", train, biased_groups(train.labels, len(names), conflict, seed, evenly=kind != "dfa")),
        test=None if test is None else make("test", test, balanced_groups(test.labels, len(names), seed)),
        group_names=names,
        group_attribute="corruption",
    )


def make_corrupted_cifar10(
    source: Dataset,
    *,
    out: str | Path,
    kind: str = "lff-0",
    conflict: float = 0.01,
    severity: int | None = None,
    seed: int = 0,
    frost_folder: str | Path | None = None,
    **computing: Any,
) -> Manifest:
    """The set as an .npz file, with a manifest beside it. Arguments as for :func:`corrupted_cifar10`."""
    from holdfast.data.biased import write_set

    settings: dict[str, Any] = {"kind": kind, "conflict": conflict, "severity": severity, "seed": seed}
    data = corrupted_cifar10(source, **settings, frost_folder=frost_folder, **computing)
    settings |= {"severity": severity or SEVERITY, "frost": "photographs" if frost_folder else "grown"}
    return write_set(data, Path(out), made_from=source.name, settings=settings)


def _threads(device: torch.device) -> int:
    """Beside a GPU the host is the slow part: it draws, and each corruption draws from a generator of its own."""
    return 1 if device.type == "cpu" else 10
