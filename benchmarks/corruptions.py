"""The eight corruptions as batches against the same operations image by image, and the time to make Corrupted CIFAR-10.

    python benchmarks/corruptions.py [--device cpu] [--images 10000] [--root DATA] [--out benchmarks/results/NAME.json]

Image by image means one CPU core, numpy, scipy and Pillow, on a sample of the images; its time is scaled to all of
them. The batched functions run on the device named, on images that are there already, with a generator of their own
device; after one call to warm up, the median of five. Corrupted CIFAR-10 is made from DATA's cifar10.npz (60,000
images), or from as many random images, and includes reading, drawing, hashing and writing the file.
"""

from __future__ import annotations

import argparse
import io
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from record import write_result
from scipy import ndimage

from holdfast.corruptions import corrupt, corruption_names
from holdfast.data import ArraySplit, Dataset, load
from holdfast.data.readers.corrupted_cifar10 import KINDS, make_corrupted_cifar10

Array = np.ndarray[Any, Any]


def gaussian(image: Array, rng: np.random.Generator) -> Array:
    noise = rng.normal(0, rng.uniform(0, 0.01), image.shape[:2])
    return np.clip(image + noise[..., None], 0, 1)


def salt_and_pepper(image: Array, rng: np.random.Generator) -> Array:
    chosen = rng.random(image.shape[:2]) < 0.001
    out = image.copy()
    out[chosen] = rng.beta(0.5, 0.5, int(chosen.sum()))[:, None]
    return out


def cutout(image: Array, rng: np.random.Generator) -> Array:
    out = image.copy()
    side = round(0.2 * min(image.shape[:2]))
    for _ in range(2):
        top, left = (round(rng.random() * size - side / 2) for size in image.shape[:2])
        out[max(top, 0) : top + side, max(left, 0) : left + side] = 128 / 255
    return out


def dropout(image: Array, rng: np.random.Generator) -> Array:
    rows, columns = rng.integers(3, 9, 2)
    dropped = rng.random((rows, columns)) < rng.uniform(0, 0.05)
    height, width = image.shape[:2]
    mask = dropped[np.arange(height) * rows // height][:, np.arange(width) * columns // width]
    return np.where(mask[..., None], 0, image)


def rotation(image: Array, rng: np.random.Generator) -> Array:
    angle = math.radians(rng.uniform(-30, 30))
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    centre = (np.array(image.shape[:2]) - 1) / 2
    shift = centre - turn @ centre
    return np.stack(
        [ndimage.affine_transform(image[..., c], turn, shift, order=1, mode="reflect") for c in range(3)], -1
    )


def perspective(image: Array, rng: np.random.Generator) -> Array:
    inward = np.abs(rng.normal(0, rng.uniform(0.05, 0.15), (4, 2))).clip(max=0.45)
    unit = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])
    size = np.array(image.shape[1::-1])
    source, target = unit * size, (unit + inward * (1 - 2 * unit)) * size
    rows = []
    for (u, v), (a, b) in zip(source, target, strict=True):
        rows += [[u, v, 1, 0, 0, 0, -a * u, -a * v], [0, 0, 0, u, v, 1, -b * u, -b * v]]
    coefficients = np.linalg.solve(np.array(rows), target.flatten()).tolist()
    moved = _picture(image).transform(tuple(size), Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BILINEAR)
    return np.asarray(moved) / 255


def jpeg_compression(image: Array, rng: np.random.Generator) -> Array:
    file = io.BytesIO()
    quality = round(1 + 99 * (1 - rng.uniform(80, 95) / 101))
    _picture(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file)) / 255


def gaussian_blur(image: Array, rng: np.random.Generator) -> Array:
    sigma = rng.uniform(1, 3)
    return ndimage.gaussian_filter(
        image, (sigma, sigma, 0), mode="mirror", radius=(*(max(int(3.3 * sigma), 5) // 2,) * 2, 0)
    )


def _picture(image: Array) -> Image.Image:
    return Image.fromarray(np.rint(image * 255).astype(np.uint8))


ONE_BY_ONE: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "gaussian": gaussian,
    "salt-and-pepper": salt_and_pepper,
    "cutout": cutout,
    "dropout": dropout,
    "rotation": rotation,
    "perspective": perspective,
    "jpeg-compression": jpeg_compression,
    "gaussian-blur": gaussian_blur,
}


def seconds_one_by_one(name: str, images: Array, count: int) -> float:
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    for image in images:
        ONE_BY_ONE[name](image, rng)
    return (time.perf_counter() - start) / len(images) * count


def seconds_batched(run: Callable[[], Any], device: torch.device, repeats: int = 5) -> float:
    times = []
    for _ in range(repeats + 1):
        _wait(device)
        start = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def source(root: Path | None) -> Dataset:
    if root is not None:
        return load("cifar10", root=root)
    generator = torch.Generator().manual_seed(0)
    splits = [
        ArraySplit(
            torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=generator),
            torch.arange(n) % 10,
            torch.full((n,), -1),
        )
        for n in (50_000, 10_000)
    ]
    return Dataset("random", tuple(map(str, range(10))), train=splits[0], test=splits[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--sample", type=int, default=500, help="images corrupted one by one")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit")
    options = parser.parse_args()
    device = torch.device(options.device)
    data = source(options.root)
    x = data.train.read(torch.arange(options.images)).to(device).float() / 255
    sample = (x[: options.sample].permute(0, 2, 3, 1).cpu().numpy()).astype(np.float64)
    generator = torch.Generator(device).manual_seed(0)
    figures: dict[str, Any] = {"images": options.images, "eight": {}, "nineteen": {}, "corrupted_cifar10": {}}
    total = {"one": 0.0, "batched": 0.0}
    for name in ONE_BY_ONE:
        one = seconds_one_by_one(name, sample, options.images)
        batched = seconds_batched(lambda name=name: corrupt(x, name, strength=1.0, generator=generator), device)
        total["one"] += one
        total["batched"] += batched
        figures["eight"][name] = {"one_by_one_s": one, "batched_s": batched, "ratio": one / batched}
        print(f"{name:18} one by one {one:8.3f} s   batched {batched:8.4f} s   {one / batched:7.1f} x", flush=True)
    figures["eight_ratio"] = total["one"] / total["batched"]
    print(f"{'all eight':18} one by one {total['one']:8.3f} s   batched {total['batched']:8.4f} s   "
          f"{figures['eight_ratio']:7.1f} x")  # fmt: skip
    for name in corruption_names("imagenet-c"):
        run = lambda name=name: corrupt(x, name, severity=5, generator=generator)  # noqa: E731
        figures["nineteen"][name] = seconds_batched(run, device, repeats=2)
        print(f"{name:18} severity 5 {figures['nineteen'][name]:8.4f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            start = time.perf_counter()
            manifest = make_corrupted_cifar10(data, kind=kind, out=Path(folder) / f"{kind}.npz", device=device)
            taken = time.perf_counter() - start
            figures["corrupted_cifar10"][kind] = {"seconds": taken, "sha256": dict(manifest.sha256)}
            print(f"corrupted-cifar10 {kind:6} {taken:6.2f} s   x_train {manifest.sha256['x_train'][:16]}", flush=True)
    if options.out is not None:
        write_result(options.out, figures, commit=options.commit)


if __name__ == "__main__":
    main()
