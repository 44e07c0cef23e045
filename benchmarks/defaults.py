"""How far the defaults of a training are from the best of a small search over optimiser, learning rate and length.

    python benchmarks/defaults.py --root DATA --out FILE [--only SET ...] [--seeds N] [--jobs 14] [--again]
    python benchmarks/defaults.py --root DATA --out FILE --rehearse     # a few images for one epoch, on a CPU

DATA holds fashion_mnist.npz and cifar10.npz, and efficientnet_lite0.pt, ImageNet weights under timm's names. Everything
is trained on one part of a training set and measured on another; no test set is read. Every training is written to FILE
as it ends, and what is there is not trained again, but for the defaults with --again. The sets:

coloured-digits      900 digits whose colour gives the class away but for 5 %, with LfF; measured on 300 digits whose
                     colours say nothing. A small network, on a CPU.
fashion-mnist        2,000 images, plain training, measured on 5,000. The same network, on a CPU.
cifar10              45,000 images with crops and flips, ResNet-18, measured on 5,000. On a GPU, in bf16.
cifar10-pretrained   5,000 images at 128 pixels with flips, EfficientNet-Lite0 from ImageNet weights, measured on 5,000.
                     On a GPU, in bf16.
mnist, cifar10-part  not used to choose the defaults, to see whether they hold elsewhere: 600 digits, on a CPU, and
                     10,000 images for a ResNet-18, on a GPU. Trained with --only.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from record import write_result
from torch.nn import functional

from holdfast.data import ArraySplit, Dataset, load
from holdfast.data.biased import coloured
from holdfast.data.splits import hold_out
from holdfast.train import fit

WEIGHTS = "efficientnet_lite0.pt"
DEFAULT = "default"
ON_GPU = {"precision": "bf16", "channels_last": True}


@dataclass(frozen=True)
class Search:
    """A data set and what is tried on it. rates: by optimiser. batch_size: of the search; the default has its own."""

    rates: Mapping[str, tuple[float, ...]]
    epochs: tuple[int, ...]
    batch_size: int
    seeds: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    gpu: bool = False
    extra: bool = False

    def cells(self) -> dict[str, dict[str, Any]]:
        """Settings by label; those of the default are for the program to choose."""
        found: dict[str, dict[str, Any]] = {DEFAULT: {}}
        for optimizer, epochs in product(self.rates, self.epochs):
            for lr in self.rates[optimizer]:
                own = {"optimizer": optimizer, "lr": lr, "epochs": epochs, "batch_size": self.batch_size}
                found[f"{optimizer} {lr:g}, {epochs} epochs"] = own
        return found


SMALL = {"sgd": (0.02, 0.1), "adamw": (1e-3, 3e-3, 1e-2)}
LARGE = {"sgd": (0.03, 0.1), "adamw": (1e-3, 3e-3)}
FINE = {"sgd": (0.01, 0.05), "adamw": (1e-4, 3e-4, 1e-3)}
SEARCHES: dict[str, Search] = {
    "coloured-digits": Search(SMALL, (10, 30, 90), 64, 5, {"method": "lff"}),
    "fashion-mnist": Search(SMALL, (10, 30, 90), 64, 3),
    "cifar10": Search(LARGE, (10, 30), 128, 1, {"model": "cifar-resnet18", "crop": 4, "flip": True}, gpu=True),
    "cifar10-pretrained": Search(FINE, (5, 15), 64, 1, {"model": "timm:tf_efficientnet_lite0", "flip": True}, gpu=True),
    "mnist": Search(SMALL, (10, 30, 90), 64, 3, extra=True),
    "cifar10-part": Search(
        LARGE, (10, 30), 128, 1, {"model": "cifar-resnet18", "crop": 4, "flip": True}, gpu=True, extra=True
    ),
}


@cache
def data_of(name: str, root: str, seed: int, few: bool) -> Dataset:
    """A training part, and as ``val`` the part that is measured; both of the training split."""
    if name == "coloured-digits":
        plain = load("digits", data_seed=seed)
        train, held = hold_out(plain.train, 0.25, seed)
        parts = replace(plain, train=train, val=held, test=None)
        biased = coloured(parts, conflict=0.05, seed=seed)
        return replace(biased, val=coloured(parts, conflict=1 - 1 / parts.num_classes, seed=seed).val)
    whole = load(name.removesuffix("-pretrained").removesuffix("-part"), root=root)
    count, held_count = {
        "fashion-mnist": (2_000, 5_000),
        "cifar10": (45_000, 5_000),
        "cifar10-pretrained": (5_000, 5_000),
        "mnist": (600, 5_000),
        "cifar10-part": (10_000, 5_000),
    }[name]
    if few:
        count, held_count = 200, 100
    order = torch.randperm(len(whole.train), generator=torch.Generator().manual_seed(seed))
    train, held = (whole.train.subset(part) for part in (order[:count], order[count : count + held_count]))
    if name == "cifar10-pretrained":
        train, held = enlarged(train, 64 if few else 128), enlarged(held, 64 if few else 128)
    return Dataset(name, whole.classes, train, held)


def enlarged(split: Any, side: int) -> ArraySplit:
    images = split.read(torch.arange(len(split)))
    parts = [
        functional.interpolate(part.float(), (side, side), mode="bicubic", antialias=True).clamp(0, 255).round().byte()
        for part in images.split(500)
    ]
    return ArraySplit(torch.cat(parts), split.labels, origin=split.origin)


def trained(name: str, cell: str, seed: int, root: str, few: bool) -> dict[str, Any]:
    """What one training reaches on the part that was held out."""
    torch.set_num_threads(1)
    search = SEARCHES[name]
    settings = dict(search.settings) | search.cells()[cell]
    if search.gpu and not few:
        settings |= ON_GPU
    if name == "cifar10-pretrained":
        settings["weights"] = os.path.join(root, WEIGHTS)
    if few:
        settings |= {"epochs": 1}
        if settings.get("model") == "cifar-resnet18":
            settings["model"] = "convnet"
    data, started = data_of(name, root, seed, few), time.perf_counter()
    device = "cuda" if search.gpu and not few else "cpu"
    run = fit(data, seed=seed, device=device, eval_every=0, progress=False, **settings)
    assert run.chosen is not None
    return {
        "accuracy": run["val_accuracy"],
        "seconds": time.perf_counter() - started,
        "chosen": dict(run.chosen.values),
        "images": len(data.train),
        "held_out": len(data.val) if data.val is not None else 0,
    }


def summary(cells: Mapping[str, Any]) -> dict[str, Any]:
    """The best of the search, the default, and how many points it is behind, of the cells that were trained."""
    means = {cell: fmean(run["accuracy"] for run in own["seeds"].values()) for cell, own in cells.items()}
    searched = {cell: mean for cell, mean in means.items() if cell != DEFAULT}
    if DEFAULT not in means or not searched:
        return {}
    best = max(searched, key=searched.__getitem__)
    first = next(iter(cells[DEFAULT]["seeds"].values()))
    return {
        "best": best,
        "best_accuracy": means[best],
        "default_accuracy": means[DEFAULT],
        "points_behind": 100 * (means[best] - means[DEFAULT]),
        "default": first["chosen"],
        "training_images": first["images"],
        "held_out_images": first["held_out"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="data")
    parser.add_argument("--only", nargs="+", choices=SEARCHES, default=[n for n, s in SEARCHES.items() if not s.extra])
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seeds", type=int, default=10, help="at most so many of each set")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    figures: dict[str, Any] = json.loads(args.out.read_text())["figures"] if args.out.is_file() else {}
    if args.again:
        for name in args.only:
            figures.get(name, {}).get("cells", {}).pop(DEFAULT, None)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes below
    spawn = get_context("spawn")
    with ProcessPoolExecutor(args.jobs, spawn) as cpu, ProcessPoolExecutor(1, spawn) as gpu:
        started: dict[Future[dict[str, Any]], tuple[str, str, int]] = {}
        for name in args.only:
            search = SEARCHES[name]
            if search.gpu and not torch.cuda.is_available() and not args.rehearse:
                print(f"{name} needs a GPU; left out")
                continue
            # the longest first, so that no core waits for them at the end
            jobs = product(range(1 if args.rehearse else min(search.seeds, args.seeds)), reversed(search.cells()))
            for seed, cell in jobs:
                if str(seed) in figures.get(name, {}).get("cells", {}).get(cell, {}).get("seeds", {}):
                    continue
                pool = gpu if search.gpu else cpu
                started[pool.submit(trained, name, cell, seed, args.root, args.rehearse)] = name, cell, seed
        for done in as_completed(started):
            name, cell, seed = started[done]
            own = figures.setdefault(name, {"cells": {}})
            own["cells"].setdefault(cell, {"seeds": {}})["seeds"][str(seed)] = result = done.result()
            own |= summary(own["cells"])
            write_result(args.out, figures)
            print(f"{name}, {cell}, seed {seed}: {result['accuracy']:.1%}, {result['seconds']:.0f} s", flush=True)
    for name, own in figures.items():
        if "best" in own:
            print(
                f"{name}: default {own['default_accuracy']:.1%} ({own['default']}), {own['points_behind']:+.1f} points "
            )
            print(f"  behind {own['best']} ({own['best_accuracy']:.1%})")


if __name__ == "__main__":
    main()
