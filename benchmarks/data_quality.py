"""How much of what is planted in real data ``holdfast data check`` finds: duplicates, leaks and flipped labels.

    python benchmarks/data_quality.py --root DATA [--device cuda] [--out FILE]     # DATA: the sets as .npz
    python benchmarks/data_quality.py --root DATA --sets --labels --bounds mnist fashion_mnist [--draws 6] [--out FILE]

Into a part of each set are planted: identical copies and changed ones (JPEG at quality 50, 20 % brighter, noise of 5
grey levels) of training images, half of them within the training split and half in the test split (leaks); and 5 % of
the training labels flipped to another class at random. Nothing that is planted is known to the check. Precision counts
a pair as right if it was planted; pairs that the set has by itself count as wrong, so that it is a lower bound, and the
same check on the set without anything planted says how many those are. So it is with labels: wrong ones that the set
has by itself count against the check. Fashion-MNIST and MNIST are judged with the defaults, 20,000 images of CIFAR-10
by a ResNet-18; "counted" is what the counting rule of confident learning flags of the same predictions. How far copies
and other images are apart, by which the threshold was chosen, is measured too, and the time that the search takes for
50,000 images. The second command holds the printed lower bound of the precision against the measured one, over draws of
images and flips; the level of the bound was chosen on draws 0 to 3, and these begin with 10.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from record import write_result

from holdfast.data import ArraySplit, Dataset
from holdfast.data.duplicates import RANK, REFERENCES, descriptors, near_pairs, small_copies
from holdfast.metrics import find_label_errors
from holdfast.quality import DataReport, check_data
from holdfast.quality.label_errors import held_out_probabilities
from holdfast.settings.command_settings import QualitySettings

Array = npt.NDArray[Any]
SPLITS = ("train", "test")
CHANGES = ("identical", "jpeg", "brighter", "noise")
LABELS: dict[str, tuple[int | None, dict[str, Any]]] = {
    "fashion_mnist": (None, {}),
    "mnist": (None, {}),
    "cifar10": (20_000, {"model": "cifar-resnet18", "epochs": 15}),
}
"""Sets to find wrong labels in: how many images (--count otherwise), and with which settings."""


def changed(image: Array, kind: str, rng: np.random.Generator) -> Array:
    """A copy of an image uint8 (H, W) or (H, W, 3)."""
    if kind == "jpeg":
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=50)
        return np.asarray(Image.open(file))
    if kind == "brighter":
        return np.minimum(image * 1.2, 255).astype(np.uint8)
    if kind == "noise":
        return np.clip(image + rng.normal(0, 5, image.shape), 0, 255).astype(np.uint8)
    return image


def plant(root: Path, name: str, count: int, copies: int, seed: int) -> tuple[dict[str, Array], dict[str, Any]]:
    """Arrays of a set with planted defects, and what was planted."""
    rng = np.random.default_rng(seed)
    with np.load(root / f"{name}.npz") as file:
        given = {key: file[key] for key in ("x_train", "y_train", "x_test", "y_test")}
    chosen = rng.choice(len(given["x_train"]), count, replace=False)
    x, y = given["x_train"][chosen], given["y_train"][chosen].astype(np.int64)
    xt, yt = given["x_test"][: count // 5], given["y_test"][: count // 5].astype(np.int64)
    sources = rng.choice(count, 2 * len(CHANGES) * copies, replace=False)
    pairs: dict[tuple[str, str], list[tuple[tuple[str, int], tuple[str, int]]]] = {}
    new: dict[str, list[tuple[Array, int]]] = {"train": [], "test": []}
    for i, source in enumerate(sources.tolist()):
        kind, split = CHANGES[i % len(CHANGES)], SPLITS[(i // len(CHANGES)) % 2]
        at = len(x if split == "train" else xt) + len(new[split])
        new[split].append((changed(x[source], kind, rng), int(y[source])))
        pairs.setdefault((kind, split), []).append((("train", source), (split, at)))
    x, y = np.concatenate([x, np.stack([i for i, _ in new["train"]])]), np.append(y, [k for _, k in new["train"]])
    xt, yt = np.concatenate([xt, np.stack([i for i, _ in new["test"]])]), np.append(yt, [k for _, k in new["test"]])
    flipped = rng.choice(len(y), round(0.05 * len(y)), replace=False)
    classes = int(y.max()) + 1
    y[flipped] = (y[flipped] + rng.integers(1, classes, len(flipped))) % classes
    made = {"x_train": x, "y_train": y, "x_test": xt, "y_test": yt}
    return made, {"pairs": pairs, "flipped": set(flipped.tolist())}


def pairs_of(report: DataReport) -> set[frozenset[tuple[str, int]]]:
    return {
        frozenset(((a.split, a.position), (b.split, b.position)))
        for group in report.duplicates
        for i, a in enumerate(group.samples)
        for b in group.samples[:i]
    }


def judged(report: DataReport, truth: dict[str, Any]) -> dict[str, Any]:
    found = pairs_of(report)
    planted = {frozenset(pair) for own in truth["pairs"].values() for pair in own}
    leaks = {pair for pair in found if len({split for split, _ in pair}) > 1}
    planted_leaks = {frozenset(p) for (_, split), own in truth["pairs"].items() if split == "test" for p in own}
    return {
        "duplicates": rates(found, planted),
        "recall_by_change": {
            kind: float(
                np.mean([frozenset(p) in found for own in (truth["pairs"][kind, s] for s in SPLITS) for p in own])
            )
            for kind in CHANGES
        },
        "leaks": rates(leaks, planted_leaks),
    }


def judged_labels(root: Path, name: str, args: argparse.Namespace, seed: int = 0) -> dict[str, Any]:
    """Precision and recall for planted wrong labels, of all that is flagged and of the first so many."""
    count, settings = LABELS[name]
    arrays, truth = plant(root, name, count or args.count, args.copies, seed=seed)
    data = Dataset(
        name,
        tuple(map(str, range(10))),
        train=ArraySplit(arrays["x_train"], arrays["y_train"]),
        test=ArraySplit(arrays["x_test"], arrays["y_test"]),
    )
    own = QualitySettings(label_errors=True, device=args.device, **settings)
    same = [[a[1], b[1]] for a, b in truth["pairs"]["identical", "train"]]  # what the check finds before
    started = time.perf_counter()
    p = held_out_probabilities(data, own, tied=same)["train"]
    seconds, labels = time.perf_counter() - started, data.train.labels
    found, planted = find_label_errors(labels, p), truth["flipped"]
    order = found.wrong.argsort(descending=True).tolist()
    return {
        "label_errors": rates(set(found.flagged.tolist()), planted) | {"least_precision": found.least_precision},
        "precision_of_first": {str(k): len(planted & set(order[:k])) / k for k in (50, 100, len(planted))},
        "counted": rates(set(find_label_errors(labels, p, rule="both").flagged.tolist()), planted),
        "samples": len(labels),
        "estimated_noise": found.noise,
        "held_out_accuracy": float((p.argmax(1) == labels).double().mean()),
        "settings": settings,
        "label_seconds": seconds,
    }


def rates(found: set[Any], planted: set[Any]) -> dict[str, Any]:
    right = len(found & planted)
    return {"flagged": len(found), "planted": len(planted), "found": right,
            "precision": right / max(len(found), 1), "recall": right / len(planted)}  # fmt: skip


def distances(x: Array, rng: np.random.Generator, sampled: int = 400) -> dict[str, Any]:
    """How far copies, and the nearest other image, are, as a share of the distance to ordinary neighbours."""
    images = torch.from_numpy(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2).copy())
    own = descriptors(small_copies(images))
    references = own[np.linspace(0, len(own) - 1, REFERENCES).round().astype(int)]
    chosen = rng.choice(len(x), sampled, replace=False)
    ordinary = np.sqrt(np.maximum(0, np.partition(2 - 2 * own[chosen] @ references.T, RANK, axis=1)[:, RANK]))
    squared = 2 - 2 * own[chosen] @ own.T
    squared[np.arange(sampled), chosen] = np.inf
    nearest = np.sqrt(np.maximum(0, squared.min(1)))
    low = dict(zip(("0.5 %", "1 %", "5 %"), np.quantile(nearest / ordinary, [0.005, 0.01, 0.05]).tolist(), strict=True))
    result: dict[str, Any] = {"nearest other image": low}
    for kind in CHANGES[1:]:
        made = np.stack([changed(x[i], kind, rng) for i in chosen.tolist()])
        copies = torch.from_numpy(made[:, None] if made.ndim == 3 else made.transpose(0, 3, 1, 2).copy())
        ratio = np.linalg.norm(descriptors(small_copies(copies)) - own[chosen], axis=1) / ordinary
        result[kind] = dict(zip(("50 %", "95 %", "99 %"), np.quantile(ratio, [0.5, 0.95, 0.99]).tolist(), strict=True))
    return result


def searched(x: Array) -> dict[str, Any]:
    """Seconds for the search for near duplicates among so many images, once they are read."""
    small = small_copies(torch.from_numpy(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2).copy()))
    figures: dict[str, Any] = {}
    for n in (12_500, 25_000, 50_000):
        started = time.process_time()
        pairs = len(near_pairs(small[:n])[0])
        figures[str(n)] = {"processor_seconds": time.process_time() - started, "pairs": pairs}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", default=["fashion_mnist", "cifar10"])
    parser.add_argument("--labels", nargs="*", default=list(LABELS), choices=list(LABELS), help="for wrong labels")
    parser.add_argument("--bounds", nargs="*", default=[], choices=list(LABELS), help="for the bound of the precision")
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--count", type=int, default=3_000)
    parser.add_argument("--copies", type=int, default=50, help="of each change, in each split")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    for name in args.sets:
        arrays, truth = plant(args.root, name, args.count, args.copies, seed=0)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.npz"
            np.savez(path, **arrays)
            started = time.perf_counter()
            report = check_data(path)
            seconds = time.perf_counter() - started
            clean = {key: own[: args.count if "train" in key else args.count // 5] for key, own in arrays.items()}
            np.savez(path, **clean)
            without = len(pairs_of(check_data(path)))
        figures[name] = judged(report, truth) | {"pairs_without_planting": without, "seconds": seconds}
        with np.load(args.root / f"{name}.npz") as file:
            whole = file["x_train"]
        figures[name]["distance_ratios"] = distances(whole[:20_000], np.random.default_rng(0))
        figures[name]["search"] = searched(whole[:50_000])
        print(name, figures[name], flush=True)
    for name in args.labels:
        figures.setdefault(name, {}).update(judged_labels(args.root, name, args))
        print(name, "labels", figures[name]["label_errors"], figures[name]["precision_of_first"], flush=True)
    for name in args.bounds:
        draws = [judged_labels(args.root, name, args, seed)["label_errors"] for seed in range(10, 10 + args.draws)]
        figures.setdefault(name, {})["bounds"] = draws
        print(name, [(own["least_precision"], own["precision"]) for own in draws], flush=True)
    if args.out:
        write_result(args.out, figures, gpu=args.device != "cpu")


if __name__ == "__main__":
    main()
